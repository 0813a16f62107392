"""What an export did: ``cleanpairs diff``, ``restore`` and ``verify``."""

import shutil
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cleanpairs.cli.options import PathsCommand, Reads, Writes, ledger_option, option
from cleanpairs.cli.terminal import cut, echo, flag, has_flag, print_result, safe
from cleanpairs.core import DataError, plural

if TYPE_CHECKING:  # pyarrow takes a moment, and --help needs none
    from cleanpairs.export import Change, ExportDiff

NAMES = {
    "keep": "kept",
    "rematch_text": "with a new caption",
    "rematch_image": "with a new image",
    "recaption": "with a caption written for it",
    "drop": "dropped",
    "quarantine": "quarantined",
}


@click.command(cls=PathsCommand)
@click.argument("export", metavar="OUT", type=Reads())
@ledger_option
@option("--n=N --limit limit", "Changes to show at most.  [default: 20; all with --json]", click.IntRange(min=0))
def diff(export: str, ledger: str | None, limit: int | None) -> None:
    """Show what the export OUT changed, by its ledger: counts, then each changed pair before and after."""
    from cleanpairs.export import diff_export

    if limit is None and not has_flag("json"):
        limit = 20
    changes = diff_export(export, ledger=ledger, limit=limit)
    if has_flag("json"):
        print_result({"pairs": changes.pairs, "counts": changes.counts, "changes": changes.changes})
    else:
        for line, style in _lines(export, changes, shutil.get_terminal_size((100, 24)).columns):
            echo(line, fg=style)


def _lines(out: str, changes: "ExportDiff", width: int) -> Iterator[tuple[str, str | None]]:
    counts = [f"{n:,} {NAMES.get(name, name)}" for name, n in changes.counts.items() if n or name != "recaption"]
    yield f"{safe(out)}: {plural(changes.pairs, 'pair')}", None
    yield "  " + ", ".join(counts), None
    for change in changes.changes:
        yield "", None
        yield from _change(change, width)
    if more := changes.changed - len(changes.changes):
        yield f"\n{plural(more, 'more change')}: --n {changes.changed} shows all", None
    elif not changes.changed:
        yield "  nothing was changed", None


def _change(change: "Change", width: int) -> Iterator[tuple[str, str | None]]:
    was = "" if change.correspondence is None else f", correspondence {change.correspondence:.2f}"
    yield cut(f"@ {safe(change.key)}", f"  (pair {change.pair_id}{was})", width), "cyan"
    before = safe(change.before) if change.before else "(no caption)"
    about = [] if change.source_pair_id is None else [f"pair {change.source_pair_id}"]
    source = f"from {cut(safe(change.source_key or ''), '', width // 3)}" if about else "written for it"
    about += [] if change.repair_score is None else [f"score {change.repair_score:.2f}"]
    if change.action == "rematch_image":
        yield cut(f"- image of {safe(change.key)}", "", width), "red"
        yield cut(f"+ image of {safe(change.source_key or '')}", f"  ({', '.join(about)})", width), "green"
        yield cut(f"  {before}", "", width), None
    elif change.after is not None:
        yield cut(f"- {before}", "", width), "red"
        yield cut(f"+ {safe(change.after) or '(no caption)'}", f"  ({', '.join([source, *about])})", width), "green"
    else:
        yield cut(f"- {before}", "", width), "red"
        reason = "" if change.reason is None else f": {safe(change.reason)}"
        yield cut(f"  {NAMES[change.action]}{reason}", "", width), None


@click.command(cls=PathsCommand)
@click.argument("export", metavar="OUT", type=Reads())
@option("--out=FILE", "Parquet to write: the table that was exported.", Writes(), required=True)
@ledger_option
@option("--overwrite", "Replace --out.")
def restore(export: str, out: str, ledger: str | None, overwrite: bool) -> None:
    """Write the input of the export OUT again, from OUT and its ledger.

    The restored table equals the input, with its dropped rows, replaced captions and images, names, types and metadata
    of columns, and its order. OUT and its ledger must be unchanged since the export.
    """
    from cleanpairs.export import restore_export

    print_result(restore_export(export, out, ledger=ledger, overwrite=overwrite))


@click.command(cls=PathsCommand, flags=[flag("quiet", "Print only what is wrong.")])
@click.argument("path", metavar="PATH", type=Reads())
def verify(path: str) -> None:
    """Check that PATH is complete and undamaged. Faults are listed with file, row group, row and column.

    PATH is the cleaned data of an export (or its manifest), a run directory, a saved model, a Parquet file, or a
    directory of these. Checked of an export are sizes and SHA-256 of all files, page checksums, counts, and that
    the ledger has every pair of the input exactly once. Checked of a run are the files and their SHA-256, rows and
    ranges of the scores, and that the model loads.

    The exit code is 3 if anything is wrong.
    """
    from cleanpairs.verification import verify_path

    findings = verify_path(path)
    text = str(findings) + (f"\n{plural(len(findings.checked), 'check')}, nothing wrong" if findings.ok else "")
    text = "\n".join(map(str, findings.problems)) if has_flag("quiet") else text
    if text or has_flag("json"):
        print_result({**vars(findings), "ok": findings.ok}, text)
    if not findings.ok:
        sys.exit(DataError.exit_code)
