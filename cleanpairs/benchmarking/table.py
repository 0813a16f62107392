"""The cells of a benchmark as tables and a plot: mean and spread over seeds of each method and noise."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


@dataclass(frozen=True)
class Column:
    """A figure of a cell: its key there, its heading, decimals, and whether more (1) or less (-1) is better (0: no)."""

    key: str
    title: str
    digits: int
    better: int = 1


_RECALLS = tuple(
    Column(f"{way}_r{k}", f"{'i->t' if way == 'i2t' else 't->i'} R@{k}", 1)
    for way in ("i2t", "t2i")
    for k in (1, 5, 10)
)
LEGEND = (
    "wrong in, kept, repaired: share of mismatched pairs as the data came, of what is kept, and with the repairs made "
    "by default; repair: share of the method's own repairs, probable or not, that are right; restored: share of the "
    "mismatched pairs that these give a right caption"
)
TABLES: dict[str, tuple[Column, ...]] = {
    "Detection and repair": (
        Column("mismatched", "wrong in", 3, 0),
        Column("wrong_kept", "kept", 3, -1),
        Column("wrong_out", "repaired", 3, -1),
        Column("rsum", "rSum", 1),
        Column("auroc", "AUROC", 3),
        Column("auroc_best_epoch", "best epoch", 3, 0),
        Column("ap", "AP", 3),
        Column("f1", "F1", 3),
        Column("repair_precision", "repair", 3),
        Column("corrupted_restored", "restored", 3),
        Column("noise_rate_estimate", "noise est.", 3, 0),
    ),
    "Retrieval": (Column("rsum", "rSum", 1), *_RECALLS, Column("val_rsum", "val rSum", 1, 0)),
    "Threshold": (
        Column("precision", "precision", 3),
        Column("recall", "recall", 3),
        Column("f1", "F1", 3),
        Column("flagged", "flagged", 3, 0),
        Column("repaired", "repairs", 0, 0),
        Column("repair_random", "random repair", 4, 0),
    ),
    "Cost": (
        Column("seconds", "seconds", 0, 0),
        Column("pairs_per_second", "pairs/s", 0, 0),
        Column("pairs_per_cpu_second", "pairs/CPU s", 0, 0),
        Column("peak_mb", "peak MB", 0, 0),
        Column("peak_gpu_mb", "GPU MB", 0, 0),
        Column("epochs", "epochs", 0, 0),
    ),
}
COLUMNS = tuple({column.key: column for columns in TABLES.values() for column in columns}.values())
# Six colours that colour-blind readers tell apart (Okabe and Ito, 2008, without yellow and black); the second six
# methods have them again with open markers and broken lines.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_MARKERS = ("o", "s", "^", "D", "v", "P")
_UNIFORM = "uniform"
_PANELS = (("rsum", "rSum (test)"), ("auroc", "AUROC of wrong pairs"))


@dataclass(frozen=True)
class Summary:
    """One method at one noise: figures by key over the ``seeds`` that ran, with ``std`` (n - 1) where there are two;
    ``best``: keys in which the mean is the best of its noise; ``problem`` says why other seeds have not run.
    """

    noise: str
    method: str
    seeds: int
    mean: dict[str, float]
    std: dict[str, float | None]
    best: set[str]
    problem: str | None


def summarise(rows: Sequence[Mapping[str, Any]], methods: Sequence[str] | None = None) -> list[Summary]:
    """Group cells by noise (ascending, files last) and method (in the order of ``methods``, or of appearance)."""
    order = list(methods) if methods is not None else list(dict.fromkeys(str(row["method"]) for row in rows))
    noises = {str(row["noise"]): row.get("rate") for row in rows}
    found: list[Summary] = []
    for noise in sorted(noises, key=lambda n: (noises[n] is None, noises[n] or 0.0, n)):
        by_method = {m: [row for row in rows if str(row["noise"]) == noise and row["method"] == m] for m in order}
        group = [_summary(noise, method, cells) for method, cells in by_method.items() if cells]
        for column in COLUMNS:
            means = {s.method: column.better * s.mean[column.key] for s in group if column.key in s.mean}
            if len(set(means.values())) > 1:  # there is a choice
                for s in group:
                    s.best.update([column.key] if means.get(s.method) == max(means.values()) else [])
        found += group
    return found


def _summary(noise: str, method: str, cells: Sequence[Mapping[str, Any]]) -> Summary:
    ran = [cell for cell in cells if cell.get("status") == "ok"]
    problems = list(dict.fromkeys(str(cell.get("error")) for cell in cells if cell.get("status") != "ok"))
    mean: dict[str, float] = {}
    std: dict[str, float | None] = {}
    for column in COLUMNS:
        values = [float(cell[column.key]) for cell in ran if cell.get(column.key) is not None]
        if values:
            mean[column.key] = float(np.mean(values))
            std[column.key] = float(np.std(values, ddof=1)) if len(values) > 1 else None
    return Summary(noise, method, len(ran), mean, std, set(), "; ".join(problems) or None)


def _cell(s: Summary, column: Column, mark: str) -> str:
    if column.key not in s.mean:
        return "-"
    text = f"{s.mean[column.key]:.{column.digits}f}"
    std = s.std[column.key]
    text += f" ± {std:.{column.digits}f}" if std is not None else ""
    return mark.format(text) if column.key in s.best else text


def _tables(found: Sequence[Summary], names: Iterable[str], mark: str) -> Iterator[tuple[str, list[list[str]]]]:
    """Of the tables that have any figure the name, and the lines, the headings first."""
    for name in names:
        columns = [column for column in TABLES[name] if any(column.key in s.mean for s in found)]
        if columns:
            lines = [["noise", "method", "seeds", *(column.title for column in columns)]]
            lines += [[s.noise, s.method, str(s.seeds), *(_cell(s, c, mark) for c in columns)] for s in found]
            yield name, lines


def to_text(found: Sequence[Summary], *, tables: Sequence[str] = ("Detection and repair", "Cost")) -> str:
    """Aligned for a terminal; ``*`` marks the best of a noise, and problems stand below."""
    blocks = []
    for _, lines in _tables(found, tables, "{}*"):
        # What is not marked leaves room for the mark, so that the digits stand below each other.
        head, *rows = [[c if c.endswith("*") else c + " " for c in line] for line in lines]
        text = pd.DataFrame(rows, columns=head).to_string(index=False)
        blocks.append("\n".join(line.rstrip() for line in text.splitlines()))
    blocks += ["\n".join(f"{s.method} at {s.noise}: {s.problem}" for s in found if s.problem)]
    return "\n\n".join(block for block in blocks if block)


def to_markdown(found: Sequence[Summary], heading: str = "", notes: Sequence[str] = ()) -> str:
    """All tables, the best of a noise in bold; problems and notes below."""
    parts = [f"# {heading}"] if heading else []
    for name, (head, *lines) in _tables(found, TABLES, "**{}**"):
        rows = [head, *([_escaped(noise), *cells] for noise, *cells in lines)]
        text = [f"| {' | '.join(row)} |" for row in rows]
        parts.append("\n".join([f"## {name}", "", text[0], "|---" * len(head) + "|", *text[1:]]))
    remarks = [f"- {s.method} at {_escaped(s.noise)}: {_escaped(s.problem)}" for s in found if s.problem]
    remarks += [f"- {_escaped(note)}" for note in notes]
    if remarks:
        parts.append("\n".join(remarks))
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def to_csv(found: Sequence[Summary]) -> str:
    """One line a method and noise: mean and standard deviation of every figure, unrounded; empty where unknown."""
    rows = [
        {"noise": _inert(s.noise), "method": s.method, "seeds": s.seeds}
        | {f"{c.key}{end}": known.get(c.key) for c in COLUMNS for end, known in (("", s.mean), ("_std", s.std))}
        | {"problem": _inert(s.problem or "")}
        for s in found
    ]
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def _inert(text: str) -> str:
    """Text that a spreadsheet does not take for a formula."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def plot(
    rows: Sequence[Mapping[str, Any]], path: str | Path, *, methods: Sequence[str] | None = None, title: str = ""
) -> None:
    """Means over seeds, the standard deviation as a bar, against the share of mismatched pairs; by kind of noise."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    ran = [row for row in rows if row.get("status") == "ok"]
    order = list(methods) if methods is not None else list(dict.fromkeys(str(row["method"]) for row in ran))
    keys = [(key, label) for key, label in _PANELS if any(row.get(key) is not None for row in ran)]
    kinds = sorted({_kind(row) for row in ran}, key=lambda kind: (kind != _UNIFORM, kind))
    panels = [(kind, key, label) for kind in kinds for key, label in keys]
    across, down = max(len(keys), 1), max(len(kinds), 1)
    style: Any = {"font.family": "DejaVu Sans", "font.size": 9, "axes.spines.right": False, "axes.spines.top": False}
    with mpl.rc_context(style):
        figure = Figure(figsize=(4.2 * across + 1.6, 3.5 * down + 0.3), dpi=150, layout="constrained")
        handles: dict[str, Any] = {}
        for at, (kind, key, label) in enumerate(panels, start=1):
            ax = figure.add_subplot(down, across, at)
            for k, method in enumerate(order):
                cells = [
                    row for row in ran if row["method"] == method and row.get(key) is not None and _kind(row) == kind
                ]
                if cells:
                    handles[method] = _line(ax, cells, key, k, len(order))
            about = "noise rate" if len(kinds) == 1 else f"noise rate, {kind}"
            ax.set(xlabel=about, ylabel=label, axisbelow=True)
            ax.grid(axis="y", color="#e3e5e8", linewidth=0.7)
        if not panels:
            figure.text(0.5, 0.5, "nothing has been measured yet", ha="center")
        elif handles:
            figure.legend(handles.values(), handles.keys(), loc="outside right center", frameon=False)
        if title:
            figure.suptitle(title, fontsize=10)
        figure.savefig(path, format="png", metadata={"Software": None})


def _kind(row: Mapping[str, Any]) -> str:
    """Of noise; rows with a unit in its place, or a file, are of uniform noise."""
    per = str(row.get("per", "caption"))
    return _UNIFORM if per in ("caption", "image", "file") else per


def _line(ax: Any, cells: Sequence[Mapping[str, Any]], key: str, k: int, n: int) -> Any:
    """One method's line; its points are moved a little aside, so that bars do not cover each other."""
    rates = [row["rate"] if row.get("rate") is not None else row.get("mismatched", 0.0) for row in cells]
    points = pd.Series([row[key] for row in cells]).groupby(np.round(rates, 3)).agg(["mean", "std"])
    colour, second = _COLOURS[k % len(_COLOURS)], k // len(_COLOURS) % 2 == 1
    return ax.errorbar(
        points.index + 0.006 * (k - (n - 1) / 2),
        points["mean"],
        yerr=points["std"].fillna(0),
        color=colour,
        marker=_MARKERS[k % len(_MARKERS)],
        markersize=5,
        markerfacecolor="white" if second else colour,
        linestyle="--" if second else "-",
        linewidth=1.4,
        elinewidth=0.9,
        capsize=2,
    )
