"""An export as a dataset of the hub, a model directory as a model: which files go, under which names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.card import CardFacts, filled
from cleanpairs.export.files import CARD
from cleanpairs.export.hub import Pushed, check_push, push_files
from cleanpairs.export.opening import open_export

PARQUET_NAME = "data/train-00000-of-00001.parquet"  # as the hub's own uploads are named
# Of an earlier upload, in any of the formats: they would be read together with the new ones.
STALE = r"\d{5,}\.(tar|parquet)|data-\d{5}\.arrow|data/train-\d+-of-\d+\.parquet|uids\.npy"
# load_dataset refuses a repository with the first two; they are for load_from_disk
_LOCAL_ONLY = ("state.json", "dataset_info.json")
_SINGLE = {"parquet": PARQUET_NAME, "uids": "uids.npy"}


def beside_card(out: Path) -> Path:
    """Where the dataset card of a single file goes that is to be pushed: ``<out>.card.md``."""
    return out.with_name(out.name + ".card.md")


def push_export(
    out: str | Path,
    repo: str,
    *,
    private: bool = True,
    card: str | Path | None = None,
    ledger: str | Path | None = None,
    endpoint: str | None = None,
) -> Pushed:
    """Upload an export as a dataset; the ledger and the dropped pairs stay where they are.

    ``out``: the cleaned data; its manifest is beside it, and its files are compared with that first; ``card``: the
    dataset card; README.md of a directory, else ``<out>.card.md``, when None; ``ledger``: where it is now; where the
    manifest says when None. Data files of an earlier upload go in the same commit.
    Raises DataError: ``out`` is no export, or not as it was exported; ConfigError, OutputError: as
    :func:`cleanpairs.export.hub.push_files`, for the other parameters too; or there is no card.
    """
    check_push(repo, endpoint)
    export = open_export(out, ledger)
    export.check(*export.parts)
    own = export.out if export.out.is_dir() else export.out.parent
    chosen = Path(card) if card is not None else export.out / CARD if export.out.is_dir() else beside_card(export.out)
    if not chosen.is_file():
        raise ConfigError(
            f"there is no dataset card {chosen}: name it by --card, or export again with "
            f"--card {beside_card(export.out)}"
        )
    if card is None:
        check_inside(chosen, (own,), own, "name it by --card")
    files: dict[str, Path | bytes] = {CARD: chosen}
    for part in export.parts:
        name = _SINGLE.get(export.format) or part.path.relative_to(export.out).as_posix()
        if name not in _LOCAL_ONLY:
            files[name] = part.path
    return push_files(
        repo, files, kind="dataset", message="Cleaned by cleanpairs", private=private, stale=STALE, endpoint=endpoint
    )


def push_model(
    folder: str | Path, repo: str, *, about: CardFacts, private: bool = True, endpoint: str | None = None
) -> Pushed:
    """Upload a model directory (``save_pretrained``) with a model card.

    Raises DataError: ``folder`` holds no model; ConfigError, OutputError: as :func:`cleanpairs.export.hub.push_files`.
    """
    check_push(repo, endpoint)
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} is no model directory: it holds no config.json")
    files: dict[str, Path | bytes] = {CARD: model_card(repo, about).encode()}
    found = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != CARD]
    for path in found:
        check_inside(path, (folder,), folder, "a link is not pushed")
    files |= {p.relative_to(folder).as_posix(): p for p in found}
    return push_files(
        repo, files, kind="model", message="A model fitted by cleanpairs", private=private, endpoint=endpoint
    )


def model_card(repo: str, about: CardFacts) -> str:
    """The text of a model's README.md."""
    from huggingface_hub import ModelCardData

    header: dict[str, Any] = {"license": about.license or "unknown", "library_name": "cleanpairs"}
    header["tags"] = ["image-text-matching", "noisy-correspondence", "cleanpairs"]
    return filled(
        "model_card.md", header=ModelCardData(**header).to_yaml(), title=repo.partition("/")[2], repo=repo, about=about
    )
