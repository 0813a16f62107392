"""The role of each column, by its usual names."""

import re
import shlex
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from cleanpairs.core import DataError, nearest
from cleanpairs.ops.columns import is_image_struct, is_list

_VECTORS = ("features", "emb", "embs", "embedding", "embeddings", "vector", "vectors")
USUAL_NAMES: dict[str, tuple[str, ...]] = {
    "text": ("caption", "text", "title", "captions", "texts", "sentence", "sentences", "description", "comment",
             "alt_text", "alttext", "alt", "caption_str", "raw"),
    "image": (
        "image", "image_path", "filepath", "file_name", "jpg", "jpeg", "png", "webp", "img", "images",
        "filename", "image_name", "image_file", "img_path", "file", "path", "photo", "picture",
    ),
    "key": ("key", "__key__", "uid", "id", "image_id"),
    "features": ("image_features", "features", *(f"{side}_{end}" for side in ("image", "img") for end in _VECTORS)),
    "text_features": tuple(f"{side}_{end}" for end in _VECTORS for side in ("text", "caption", "txt")),
}  # fmt: skip

TRUTH = ("true_mismatch", "true_key")  # columns of the truth
# A score that the data brings has the role "score:<column>". There may be several.
SCORE = "score:"


def is_text(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are texts."""
    if pa.types.is_dictionary(kind):  # a pandas category
        kind = kind.value_type
    return kind in (pa.string(), pa.large_string(), pa.string_view())


def is_bytes(kind: pa.DataType) -> bool:
    """Whether values of an Arrow type are bytes."""
    return kind in (pa.binary(), pa.large_binary(), pa.binary_view()) or bool(pa.types.is_fixed_size_binary(kind))


def _inner_type(kind: pa.DataType) -> pa.DataType:
    """The type of a value, or of the values in a list of them."""
    return kind.value_type if is_list(kind) else kind


def _is_number(kind: pa.DataType) -> bool:
    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))


def _fits(role: str, kind: pa.DataType) -> bool:
    inner = _inner_type(kind)
    if role == "text":
        return is_text(inner)
    if role == "key":
        return is_text(kind) or _is_number(kind)
    if role in ("features", "text_features"):
        return is_list(kind) and bool(pa.types.is_floating(_inner_type(inner)))
    if pa.types.is_struct(inner):
        return any(inner.field(i).name in ("bytes", "path") for i in range(inner.num_fields))
    return is_bytes(inner) or is_text(inner)


def is_score(name: str, kind: pa.DataType) -> bool:
    """Whether a column is one of given similarities, by its name and type: numbers, or lists of them."""
    # similarity (LAION), clip_similarity_vitb32 (COYO), clip_l14_similarity_score (DataComp), clip_score
    names = r"similarity|(cosine|clip)_?(similarity|score)|clip_\w*(similarity|score)\w*"
    return bool(_is_number(_inner_type(kind)) and re.fullmatch(names, name, re.IGNORECASE))


def number_of(value: Any) -> float | None:
    """The value as a number, also where it is written as text. None where it is no number."""
    with suppress(ValueError, TypeError, OverflowError):
        return None if isinstance(value, bool) else float(value)
    return None


def score_columns(columns: Mapping[str, str]) -> list[str]:
    """The columns of precomputed scores, out of role -> column."""
    return [name for role, name in columns.items() if role.startswith(SCORE)]


_WANTED = {
    "text": "text, or a list of text",
    "image": "bytes, struct<bytes, path>, paths, or Pillow's images (Image.fromarray)",
    "key": "text or numbers",
    "features": "a list of floats, or a list of such lists",
    "text_features": "a list of floats",
}


def usual_columns(schema: pa.Schema, role: str) -> list[str]:
    """The columns with a usual name of a role, in the order of these names. Small letters come before capitals."""
    exact_first = sorted(schema.names, key=lambda name: name.lower() != name)
    return [name for usual in USUAL_NAMES[role] for name in exact_first if name.lower() == usual]


def named_column(schema: pa.Schema, name: str, data: str) -> pa.Field:
    """The column of this name. DataError: there is none."""
    if name not in schema.names:
        raise DataError(f"{data} has no column {name!r}{nearest(name, schema.names)} (columns: {_listed(schema)})")
    return schema.field(name)


def _listed(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema) or "none"


def _unfit(schema: pa.Schema, *roles: str) -> str:
    """Why the first column with a usual name of one of the roles is not of its type."""
    unfit = [(name, role) for role in roles for name in usual_columns(schema, role)]
    return next((f": {n!r} is {schema.field(n).type}, not {_WANTED[role]}" for n, role in unfit), "")


def _no_images(schema: pa.Schema, data: str, text: str) -> DataError:
    addresses = r"((image|img|photo|picture)_?)?(urls?|links?|uri)"
    if urls := [n for n in schema.names if re.fullmatch(addresses, n, re.IGNORECASE)]:
        kind = Path(data).suffix.lstrip(".") or "parquet"
        return DataError(
            f"the images of {data} are URLs (column {urls[0]!r}), and nothing is fetched. Download them: "
            f"img2dataset --url_list {shlex.quote(data)} --input_format {kind} --url_col {shlex.quote(urls[0])} "
            f"--caption_col {shlex.quote(text)} --output_format webdataset --output_folder shards; then give shards/. "
            """Other columns are lost without --save_additional_columns '["NAME"]'"""
        )
    unfit = _unfit(schema, "image", "features")
    remedy = f"give --column image=NAME (columns: {_listed(schema)})"
    return DataError(f"{data} has no column of images or vectors{unfit}; {remedy}")


def find_columns(schema: pa.Schema, given: Mapping[str, Any], data: str) -> dict[str, str]:
    """Role -> column: text, image, features, text_features, key, and ``score:NAME`` for each column of similarities.

    Vectors of captions go with one caption a row. Where the captions are lists, they are not taken. There need be no
    captions where there are vectors of both sides. The user has ``given`` names, as the fields of
    :class:`cleanpairs.core.recipe.DataOptions`. A column without a name (None) is looked for. Messages name the input
    ``data``.

    Raises DataError: a named column is missing or of a wrong type, or there are no captions or no images.
    """
    roles: dict[str, str] = {}
    for role in USUAL_NAMES:
        wanted = given.get("text_vectors" if role == "text_features" else f"{role}_column")
        if wanted is not None:
            kind = named_column(schema, wanted, data).type
            found = "features" if role == "image" and not _fits(role, kind) and _fits("features", kind) else role
            if not _fits(found, kind):
                raise DataError(f"column {wanted!r} of {data} is {kind}; the {role} must be {_WANTED[role]}")
            roles[found] = wanted
            continue
        fitting = [name for name in usual_columns(schema, role) if _fits(role, schema.field(name).type)]
        if role == "image":  # encoded images before paths, and an image of another name before none
            fitting.sort(key=lambda name: is_text(_inner_type(schema.field(name).type)))
            fitting = fitting or [field.name for field in schema if is_image_struct(field.type)]
        roles |= {role: fitting[0]} if fitting else {}
    vectors, kinds = roles.get("text_features"), {role: schema.field(name).type for role, name in roles.items()}
    if vectors and (is_list(kinds["text_features"].value_type) or is_list(kinds.get("text", pa.null()))):
        if given.get("text_vectors") is not None:
            raise DataError(f"{data} has lists of captions, or of their vectors; captions with vectors need a row each")
        warnings.warn(f"column {vectors!r} is not read: vectors of captions need one caption a row", stacklevel=1)
        del roles["text_features"]
    elif vectors is None and (unfit := _unfit(schema, "text_features")):
        warnings.warn(f"vectors of captions are not read{unfit}", stacklevel=1)
    if given.get("image_column") is not None and "image" in roles:
        roles.pop("features", None)  # the user names the images, so their vectors are not used
    if "text" not in roles and not {"features", "text_features"} <= roles.keys():
        raise DataError(
            f"{data} has no column of captions{_unfit(schema, 'text')}; name one with --column text=NAME, or bring "
            f"vectors of both sides, by --column text-vectors=NAME (columns: {_listed(schema)})"
        )
    if "image" not in roles and "features" not in roles:
        raise _no_images(schema, data, roles["text"])
    roles |= {SCORE + name: name for name in _named_scores(schema, given.get("score_columns") or "", data)}
    return roles | {SCORE + f.name: f.name for f in schema if is_score(f.name, f.type) and f.name not in roles.values()}


def _named_scores(schema: pa.Schema, named: str, data: str) -> list[str]:
    """The columns of ``named``, which are separated by commas. DataError: one is missing, or holds no numbers."""
    names = [name.strip() for name in named.split(",") if name.strip()]
    for name in names:
        kind = named_column(schema, name, data).type
        if not _is_number(_inner_type(kind)):
            raise DataError(f"column {name!r} of {data} is {kind}; a score must be a number")
    return names


def check_truth(schema: pa.Schema, data: str) -> None:
    """DataError where the column ``true_mismatch`` holds no booleans: the text "False" would pass for true."""
    if "true_mismatch" in schema.names:
        kind = schema.field("true_mismatch").type
        inner = _inner_type(kind)
        if not (pa.types.is_boolean(inner) or pa.types.is_null(inner)):
            raise DataError(f"column 'true_mismatch' of {data} is {kind}; it must be bool, or a list of bool")
