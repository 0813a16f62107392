"""The Hugging Face hub: cards, and uploads of an export as a dataset, of a model directory as a model, in one commit,
only by an explicit call. huggingface_hub finds the token (``HF_TOKEN``, or ``hf auth login``), which is not read here.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

import cleanpairs
from cleanpairs.core import METHODS, ConfigError, DataError, OutputError, plural
from cleanpairs.core.regular import AnyPath
from cleanpairs.data.recorded import check_inside
from cleanpairs.export.ledger import REVERSIBLE
from cleanpairs.export.manifest import CARD, STORED, open_export
from cleanpairs.repair.plan import RepairPlan


@dataclass(frozen=True)
class CardFacts:
    """Facts for a card, beyond the export. None: unknown.

    - ``license``: an identifier of the hub, such as cc-by-4.0
    - ``method``: the one that gave the scores
    - ``flagged``: pairs that it took for wrong, of ``fitted`` pairs
    - ``noise``: how many pairs are mismatched, in words
    - ``versions``: those of packages
    """

    license: str | None = None
    method: str | None = None
    flagged: int | None = None
    fitted: int | None = None
    noise: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)


def dataset_card(about: CardFacts, plan: RepairPlan, *, loads: str | None, **facts: Any) -> str:
    """The text of the card of an export, of which `datasets` reads the files ``loads``.

    The template takes the ``facts`` of the output: ``name``, ``format``, ``rows``, ``counts``, ``shards`` (tars of a
    webdataset) and ``all_captions``.
    """
    from huggingface_hub import DatasetCardData

    # Settings of a plan that say how it was made. Others name local files.
    names = ("repairs", "strategy", "take_from", "targets", "max_reuse", "candidates", "min_confidence")
    files = {"config_name": "default", "data_files": [{"split": "train", "path": loads}]}
    header = DatasetCardData(
        license=about.license or "unknown",
        task_categories=["image-to-text", "text-to-image"],
        size_categories=size_category(facts["rows"]),
        tags=["image-text", "noisy-correspondence", "cleanpairs", *["webdataset"] * (facts["format"] == "webdataset")],
        configs=None if loads is None else [files],
    )
    return filled(
        "card.md",
        header=header.to_yaml(),
        title=facts["name"].partition(".")[0] or "dataset",
        known=about.method in METHODS,
        settings={setting: plan.settings[setting] for setting in names if plan.settings.get(setting) is not None},
        versions={**about.versions, "cleanpairs": cleanpairs.__version__, "pyarrow": pa.__version__},
        restorable=facts["format"] in REVERSIBLE,
        plan=plan,
        about=about,
        **facts,
    )


def filled(template: str, **values: Any) -> str:
    """The text of a card, by a template in the folder of this module."""
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("cleanpairs", "export"),
        autoescape=False,  # it is Markdown: see _inline
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"inline": _inline, "quoted": shlex.quote}
    return environment.get_template(template).render(**values)


def _inline(value: object) -> str:
    """A value of a run or a plan as one line of text: nothing in it is Markdown or HTML."""
    line = "".join(c for c in " ".join(str(value).split()) if c.isprintable())
    return re.sub(r"([\\`*\[\]<>&|~])", r"\\\1", line)


def size_category(rows: int) -> str:
    """The hub's class of sizes, from a thousand rows on by their digits."""
    ends = "1K 10K 100K 1M 10M 100M 1B 10B 100B 1T".split()
    names = ["n<1K", *(f"{low}<n<{high}" for low, high in pairwise(ends)), "n>1T"]
    return names[min(max(len(str(rows)) - 3, 0), len(names) - 1)]


@dataclass(frozen=True)
class Pushed:
    """An upload: the repository's address, whether it was made private, the files in it, those that it replaced."""

    url: str
    private: bool
    files: tuple[str, ...]
    removed: tuple[str, ...] = ()

    def __str__(self) -> str:
        gone = f", {len(self.removed):,} of an earlier upload removed" if self.removed else ""
        return f"{plural(len(self.files), 'file')} pushed{gone}: {self.url}"


def check_push(repo: str) -> None:
    """Find out, without the network, that a push could not work. ConfigError: ``repo`` is no OWNER/NAME, or there is no
    token. OutputError: huggingface_hub is set to stay offline.
    """
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
        if "/" not in repo:
            raise ValueError("there is no OWNER")
    except ValueError as error:
        raise ConfigError(f"{repo!r} is no name of a repository on the hub, which is OWNER/NAME: {error}") from error
    if constants.HF_HUB_OFFLINE:
        raise OutputError(f"{repo} cannot be pushed: HF_HUB_OFFLINE is set; unset it where there is a network")
    if get_token() is None:
        where = f"{constants.ENDPOINT}/settings/tokens"
        raise ConfigError(f"{repo} cannot be pushed: there is no token. Make one at {where}, and set HF_TOKEN")


def push_files(
    repo: str, files: Mapping[str, Path | bytes], *, kind: Literal["dataset", "model"], message: str,
    private: bool = True,
) -> Pushed:  # fmt: skip
    """Commit files to the repository ``repo``, OWNER/NAME, of the hub (``HF_ENDPOINT``).

    A new repository is made where there is none, ``private`` or not. The ``files`` are name in the repository -> a
    file, or its contents. A dataset's shards of an earlier upload go in the same commit, or they would mix with the
    new ones.

    Raises ConfigError: as :func:`check_push`, or no right to write. OutputError: the hub cannot be reached or refuses.
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, OfflineModeIsEnabled

    check_push(repo)
    api = HfApi(library_name="cleanpairs")
    try:
        url = str(api.create_repo(repo, repo_type=kind, private=private, exist_ok=True))
        present = api.list_repo_files(repo, repo_type=kind) if kind == "dataset" else []
        # Of an earlier upload, in any of the formats: they would be read together with the new ones.
        stale = rf"{STORED}|data/train-\d+-of-\d+\.parquet|uids\.npy|kept\.csv"
        old = [name for name in present if name not in files and re.fullmatch(stale, name)]
        adds = [CommitOperationAdd(path_in_repo=name, path_or_fileobj=content) for name, content in files.items()]
        removed = [CommitOperationDelete(path_in_repo=name) for name in old]
        api.create_commit(repo, [*adds, *removed], commit_message=message, repo_type=kind)
    except (HTTPError, OfflineModeIsEnabled, OSError, ValueError) as error:
        status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
        text = f"{repo} cannot be pushed to {api.endpoint}: {' '.join(str(error).split())[:400]}"
        if status in (401, 403):
            raise ConfigError(f"{text}. The token needs the right to write there, for OWNER") from error
        if isinstance(error, ValueError):  # the hub's judgement of the card
            raise ConfigError(text) from error
        raise OutputError(f"{text}. What was to be pushed is whole on disk: `cleanpairs push` tries again") from error
    return Pushed(url, private, tuple(files), tuple(old))


def push_export(
    out: AnyPath, repo: str, *, private: bool = True, card: AnyPath | None = None, ledger: AnyPath | None = None
) -> Pushed:
    """Upload an export as a dataset. The ledger and the dropped pairs stay where they are.

    ``out``: the cleaned data, its manifest beside it. ``card``: by default README.md of a directory, else
    ``<out>.card.md``. ``ledger``: its path, by default the manifest's. Raises DataError: ``out`` is no export, or has
    changed since. ConfigError, OutputError: as :func:`push_files`, or there is no card.
    """
    export = open_export(out, ledger)
    check_push(repo)  # before all files are hashed
    export.check(*export.parts)
    folder = export.out if export.out.is_dir() else export.out.parent
    usual = folder / (CARD if export.out.is_dir() else f"{export.out.name}.card.md")
    chosen = usual if card is None else Path(card)
    if not chosen.is_file():
        raise ConfigError(f"there is no dataset card {chosen}: name it by --card, or export again with --card")
    if card is None:
        check_inside(chosen, (folder,), folder, "name it by --card")
    files: dict[str, Path | bytes] = {CARD: chosen}
    # As the hub's own uploads are named.
    single = {"parquet": "data/train-00000-of-00001.parquet", "uids": "uids.npy", "csv": "kept.csv"}
    for part in export.parts:
        name = single.get(export.format) or part.path.relative_to(export.out).as_posix()
        if name not in ("state.json", "dataset_info.json"):  # for load_from_disk: load_dataset refuses them
            files[name] = part.path
    return push_files(repo, files, kind="dataset", message="Cleaned by cleanpairs", private=private)


def push_model(folder: str | Path, repo: str, *, about: CardFacts, private: bool = True) -> Pushed:
    """Upload a model directory (``save_pretrained``) with a model card.

    Raises DataError: ``folder`` holds no model. ConfigError, OutputError: as :func:`push_files`.
    """
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} is no model directory: it holds no config.json")
    files: dict[str, Path | bytes] = {CARD: model_card(repo, about).encode()}
    uploads = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != CARD]
    for path in uploads:
        check_inside(path, (folder,), folder, "a link is not pushed")
    files |= {p.relative_to(folder).as_posix(): p for p in uploads}
    return push_files(repo, files, kind="model", message="A model fitted by cleanpairs", private=private)


def model_card(repo: str, about: CardFacts) -> str:
    """The text of a model's README.md."""
    from huggingface_hub import ModelCardData

    header: dict[str, Any] = {"license": about.license or "unknown", "library_name": "cleanpairs"}
    header["tags"] = ["image-text-matching", "noisy-correspondence", "cleanpairs"]
    text, title = ModelCardData(**header).to_yaml(), repo.partition("/")[2]
    return filled("model_card.md", header=text, title=title, repo=repo, about=about)
