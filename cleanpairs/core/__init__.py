"""The base of the package: errors, limits, parameters, the registry, recipes, processes, opening of files.

The names here are those that modules all over the package use.
"""

from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, OutputError, OutputExistsError, RefusedError
from cleanpairs.core.limits import limit, memory_is_capped, one_thread
from cleanpairs.core.parameters import check_choice, check_number, check_settings, check_whole, is_share, refuse_unknown
from cleanpairs.core.plain import first_few, jsonable, percent, plain_text, plural, without_secrets
from cleanpairs.core.progress import current_progress, reported_to
from cleanpairs.core.registry import BACKBONES, METHODS, READERS, nearest
from cleanpairs.core.regular import cached_by_file, error_text, open_regular, read_json, reading, sha256_of, writing

__all__ = [
    "BACKBONES", "METHODS", "READERS", "CleanpairsError", "ConfigError", "DataError", "OutputError",
    "OutputExistsError", "RefusedError", "cached_by_file", "check_choice", "check_number", "check_settings",
    "check_whole", "current_progress", "error_text", "first_few", "is_share", "jsonable", "limit", "memory_is_capped",
    "nearest", "one_thread", "open_regular", "percent", "plain_text", "plural", "read_json", "reading",
    "refuse_unknown", "reported_to", "sha256_of", "without_secrets", "writing",
]  # fmt: skip
