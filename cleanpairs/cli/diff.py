"""``cleanpairs diff``."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from cleanpairs.cli.printing import json_option, print_json

if TYPE_CHECKING:  # pyarrow takes a moment, and --help needs none
    from cleanpairs.export import Change, ExportDiff

__all__ = ["diff"]

SHOWN = 20
NAMES = {
    "keep": "kept",
    "rematch_text": "with a new caption",
    "rematch_image": "with a new image",
    "recaption": "with a caption written for it",
    "drop": "dropped",
    "quarantine": "quarantined",
}


@click.command(short_help="Show what an export changed, pair by pair.")
@click.argument("out", metavar="OUT", type=click.Path())
@click.option("--ledger", metavar="FILE", help="Where the ledger is, if it is not where it was written.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    metavar="N",
    help=f"Changes at most.  [default: {SHOWN}; all of them with --json or --csv]",
)
@click.option(
    "--action",
    "actions",
    multiple=True,
    type=click.Choice([name for name in NAMES if name != "keep"]),
    help="Only this kind of change; may be given several times.",
)
@json_option
@click.option("--csv", metavar="FILE", help="Write the changes to FILE, for a spreadsheet.")
@click.option("--overwrite", is_flag=True, help="Replace --csv.")
def diff(
    out: str,
    ledger: str | None,
    limit: int | None,
    actions: tuple[str, ...],
    as_json: bool,
    csv: str | None,
    overwrite: bool,
) -> None:
    """Show what the export OUT changed, out of its ledger: how many pairs, then each of them, before and after."""
    from dataclasses import asdict

    from cleanpairs.export import diff_export
    from cleanpairs.export.diff import write_changes

    if as_json and csv is not None:
        raise click.UsageError("--json and --csv: give one of them")
    if limit is None and not as_json and csv is None:
        limit = SHOWN
    found = diff_export(out, ledger=ledger, limit=limit, actions=actions or None)
    if as_json:
        figures = {"pairs": found.pairs, "counts": dict(found.counts), "changes": [asdict(c) for c in found.changes]}
        print_json(figures)
        return
    if csv is not None:
        write_changes(found.changes, csv, overwrite=overwrite)
        click.echo(f"{_plural(len(found.changes), 'change')} -> {csv}")
        return
    width = shutil.get_terminal_size((100, 24)).columns
    for line, style in _lines(out, found, actions, width):
        click.echo(line if style is None else click.style(line, fg=style))


def _lines(out: str, found: ExportDiff, actions: tuple[str, ...], width: int) -> Iterator[tuple[str, str | None]]:
    """(Line, colour) of everything that is shown."""
    counts = [f"{n:,} {NAMES.get(name, name)}" for name, n in found.counts.items() if n or name != "recaption"]
    yield f"{_safe(out)}: {_plural(found.pairs, 'pair')}", None
    yield "  " + ", ".join(counts), None
    for change in found.changes:
        yield "", None
        yield from _change(change, width)
    total = sum(n for name, n in found.counts.items() if name in actions) if actions else found.changed
    if total > len(found.changes):
        yield "", None
        yield (
            f"{_plural(total - len(found.changes), 'more change')}: --limit {total} shows all, --csv FILE writes them",
            None,
        )
    elif not total:
        yield "  nothing of this kind was changed" if actions else "  nothing was changed", None


def _change(change: Change, width: int) -> Iterator[tuple[str, str | None]]:
    was = "" if change.correspondence is None else f", correspondence {change.correspondence:.2f}"
    yield _cut(f"@ {_safe(change.key)}", f"  (pair {change.pair_id}{was})", width), "cyan"
    before = _safe(change.before) if change.before else "(no caption)"
    score = "" if change.repair_score is None else f", score {change.repair_score:.2f}"
    source = "written for it" if change.source_key is None else f"from {_cut(_safe(change.source_key), '', width // 3)}"
    if change.action == "rematch_image":
        yield _cut(f"- image of {_safe(change.key)}", "", width), "red"
        yield _cut(f"+ image of {_safe(change.source_key or '')}", f"  ({score[2:]})" if score else "", width), "green"
        yield _cut(f"  {before}", "", width), None
    elif change.after is not None:
        yield _cut(f"- {before}", "", width), "red"
        yield _cut(f"+ {_safe(change.after)}", f"  ({source}{score})", width), "green"
    else:
        yield _cut(f"- {before}", "", width), "red"
        reason = "" if change.reason is None else f": {_safe(change.reason)}"
        yield _cut(f"  {NAMES[change.action]}{reason}", "", width), None


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def _safe(text: str) -> str:
    """One line without anything that a terminal would obey, cannot write, or would turn around; blanks as blanks."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    line = "".join(
        c if c.isprintable() else " " if unicodedata.category(c) == "Zs" else c.encode("unicode_escape").decode()
        for c in text
    )
    return line.encode(encoding, "backslashreplace").decode(encoding)


def _columns(char: str) -> int:
    """Columns that a terminal gives a character."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def _cut(text: str, end: str, width: int) -> str:
    """``text`` and ``end`` in at most ``width`` columns: of the text as much as there is room for, of the end all."""
    room = max(width - sum(map(_columns, end)), 12)
    if sum(map(_columns, text)) <= room:
        return text + end
    used, kept = 3, 0
    for char in text:
        used += _columns(char)
        if used > room:
            break
        kept += 1
    return text[:kept] + "..." + end
