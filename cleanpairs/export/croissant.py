"""Croissant 1.0 metadata of an export (MLCommons, https://docs.mlcommons.org/croissant/docs/croissant-spec.html): its
files with their SHA-256, and the columns of one table.
"""

import json
import mimetypes
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core import sha256_of
from cleanpairs.ops.columns import flat_type, is_image_struct, is_list


def croissant(out: Path, staged: Path, folder: Path, schema: pa.Schema, license: str | None) -> str:
    """The JSON-LD of the export ``out``, whose files are in ``staged`` now, for a file in ``folder``.

    Columns of ``schema`` are described where the export is one Parquet or CSV. Those of a type that Croissant does not
    have are left out.
    """
    terms = "column", "extract", "field", "fileObject", "jsonPath", "recordSet", "repeated", "source", "transform"
    context: dict[str, Any] = {"@language": "en", "@vocab": "https://schema.org/", "sc": "https://schema.org/"}
    context |= {"cr": "http://mlcommons.org/croissant/", "dct": "http://purl.org/dc/terms/"}
    context |= {"conformsTo": "dct:conformsTo", "dataType": {"@id": "cr:dataType", "@type": "@vocab"}}
    context |= {term: f"cr:{term}" for term in terms}
    files = [p for p in sorted(staged.rglob("*")) if p.is_file()] if staged.is_dir() else [staged]
    distribution = []
    for file in files:
        final = out / file.relative_to(staged)
        kind = "application/x-parquet" if final.suffix in (".parquet", ".pq") else mimetypes.guess_type(final.name)[0]
        url = os.path.relpath(final.absolute(), folder.absolute())
        distribution.append({
            "@type": "cr:FileObject", "@id": url, "name": final.name, "contentUrl": url,
            "contentSize": f"{file.stat().st_size} B", "encodingFormat": kind or "application/octet-stream",
            "sha256": sha256_of(file),
        })  # fmt: skip
    metadata: dict[str, Any] = {
        "@context": context, "@type": "sc:Dataset", "name": out.name.partition(".")[0] or "dataset",
        "description": "Image-text pairs, cleaned by cleanpairs.", "conformsTo": "http://mlcommons.org/croissant/1.0",
        "datePublished": datetime.now(UTC).date().isoformat(), "distribution": distribution,
    }  # fmt: skip
    if license is not None:
        metadata["license"] = license
    if out.suffix in (".parquet", ".pq", ".csv") and staged.is_file():
        described = (_field(column, distribution[0], out.suffix == ".csv") for column in schema)
        fields = [field for field in described if field is not None]
        metadata["recordSet"] = [{"@type": "cr:RecordSet", "@id": "pairs", "name": "pairs", "field": fields}]
    return json.dumps(metadata, indent=2, ensure_ascii=False) + "\n"


def _field(column: pa.Field, file: Mapping[str, Any], named: bool) -> dict[str, Any] | None:
    """A column of the table in ``file``. None where Croissant has no type for it. ``named``: images are names."""
    kind = flat_type(column.type)
    image = is_image_struct(kind)
    words = (
        (pa.types.is_boolean, "sc:Boolean"), (pa.types.is_integer, "sc:Integer"), (pa.types.is_floating, "sc:Float"),
        (pa.types.is_string, "sc:Text"), (pa.types.is_large_string, "sc:Text"), (pa.types.is_temporal, "sc:DateTime"),
        (lambda kind: image or kind in (pa.binary(), pa.large_binary()), "sc:Text" if named else "sc:ImageObject"),
    )  # fmt: skip
    word = next((word for is_kind, word in words if is_kind(kind)), None)
    if word is None:
        return None
    source: dict[str, Any] = {"fileObject": {"@id": file["@id"]}, "extract": {"column": column.name}}
    if image and not named:
        source["transform"] = {"jsonPath": "bytes"}
    return {
        "@type": "cr:Field", "@id": f"pairs/{column.name}", "name": column.name, "dataType": word,
        "repeated": is_list(column.type), "source": source,
    }  # fmt: skip
