"""Reading every kind of input into :class:`Pairs`. Validation and quarantine, noise injection, atomic writing."""

from cleanpairs.data.atomic import staged_directory, staged_file, staged_set
from cleanpairs.data.images import ImageSource, read_image
from cleanpairs.data.pairs import Pairs
from cleanpairs.data.readers import iter_tables, load_pairs, load_source, open_source
from cleanpairs.data.recorded import check_recorded, open_recorded, remember_user_path
from cleanpairs.data.source import Source, cache_dir, fingerprint_of, refuse_changed_input
from cleanpairs.data.text import normalise_text, visible
from cleanpairs.data.writing import ParquetSink

__all__ = [
    "ImageSource", "Pairs", "ParquetSink", "Source", "cache_dir", "check_recorded", "fingerprint_of", "iter_tables",
    "load_pairs", "load_source", "normalise_text", "open_recorded", "open_source", "read_image", "refuse_changed_input",
    "remember_user_path", "staged_directory", "staged_file", "staged_set", "visible",
]  # fmt: skip
