"""The cells of a benchmark as a table and a plot: mean and spread over seeds of each method and noise."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from cleanpairs.core import METHODS

# Of the figures of a cell those that the table shows: heading, decimals.
SHOWN = {
    "mismatched": ("mismatched: input", 3),
    "wrong_kept": ("mismatched: kept", 3),
    "wrong_out": ("mismatched: kept and repaired", 3),
    "rsum": ("rSum", 1),
    "auroc": ("AUROC", 3),
    "ap": ("AP", 3),
    "f1": ("F1", 3),
    "repair_precision": ("repairs: right", 3),
    "corrupted_restored": ("repairs: restored", 3),
    "noise_rate_estimate": ("estimated rate", 3),
    "seconds": ("seconds", 0),
}
LEGEND = (
    "± is the sample standard deviation over seeds. mismatched: share of mismatched pairs in the input, among the kept "
    "pairs, and among the kept and repaired pairs by default; repairs: share of the method's own repairs, probable or "
    "not, that are right, and share of the mismatched pairs that get a right caption by them"
)


def summarise(rows: Sequence[Mapping[str, Any]]) -> pd.DataFrame:
    """One row a noise and a method: ``seeds`` that ran, the mean of every figure, and as ``NAME_std`` its deviation."""
    ran = pd.DataFrame([row for row in rows if row["status"] == "ok"])
    if ran.empty:
        return pd.DataFrame(columns=["noise", "method", "seeds"])
    order = {name: place for place, name in enumerate(METHODS)}
    by = ran.assign(order=ran["method"].map(order)).groupby(["rate", "noise", "order", "method"])
    figures = [name for name in ran.select_dtypes("number") if name not in ("rate", "seed", "limit")]
    summary = pd.concat([by.size().to_frame("seeds"), by[figures].mean(), by[figures].std().add_suffix("_std")], axis=1)
    return summary.reset_index().drop(columns=["rate", "order"])


def problems(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return why cells have no figures, a sentence for each method and noise."""
    failed = [row for row in rows if row["status"] != "ok"]
    return list(dict.fromkeys(f"{row['method']} at {row['noise']}: {row['error']}" for row in failed))


def _formatted(summary: pd.DataFrame) -> pd.DataFrame:
    """Return the table as text, headings and all."""

    def cell(row: Mapping[Any, Any], name: str, digits: int) -> str:
        mean, std = row[name], row[f"{name}_std"]
        text = "-" if pd.isna(mean) else f"{mean:.{digits}f}"
        return text if pd.isna(std) else f"{text} ± {std:.{digits}f}"

    lines = []
    for row in summary.to_dict("records"):
        figures = {title: cell(row, name, digits) for name, (title, digits) in SHOWN.items() if name in summary}
        lines.append({"noise": row["noise"], "method": row["method"], "seeds": str(row["seeds"]), **figures})
    return pd.DataFrame(lines)


def to_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the table aligned for a terminal, and the problems below it."""
    table = _formatted(summarise(rows))
    blocks = ["" if table.empty else table.to_string(index=False), "\n".join(problems(rows))]
    return "\n\n".join(block for block in blocks if block)


def to_markdown(rows: Sequence[Mapping[str, Any]], heading: str, notes: Sequence[str] = ()) -> str:
    """Return the table in Markdown. Problems and notes below it."""

    def escaped(text: str) -> str:
        return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")

    table = _formatted(summarise(rows))
    lines = [list(table.columns), ["---"] * len(table.columns), *table.to_numpy().tolist()] if len(table) else []
    text = [f"| {' | '.join(map(escaped, line))} |" for line in lines]
    remarks = [f"- {escaped(remark)}" for remark in (*problems(rows), *notes, LEGEND)]
    return "\n".join([f"# {heading}", "", *text, "", *remarks]) + "\n"


def plot(rows: Sequence[Mapping[str, Any]], path: str | Path, *, title: str = "") -> None:
    """rSum and AUROC by the share of mismatched pairs: means over seeds and their deviations, a row a kind of noise."""
    import matplotlib as mpl
    from cycler import cycler
    from matplotlib.figure import Figure
    from matplotlib.style import library

    ran = pd.DataFrame([row for row in rows if row["status"] == "ok"])
    labels = {"rsum": "rSum (test)", "auroc": "AUROC of wrong pairs"}
    keys = [key for key in labels if key in ran]
    kinds = list(dict.fromkeys(ran["per"])) if len(ran) else []
    colours = library["tableau-colorblind10"]["axes.prop_cycle"]
    with mpl.rc_context({"axes.prop_cycle": cycler(linestyle=["-", "--"]) * colours, "font.family": "DejaVu Sans"}):
        figure = Figure(figsize=(4.2 * max(len(keys), 1) + 1.6, 3.5 * max(len(kinds), 1)), layout="constrained")
        axes = figure.subplots(max(len(kinds), 1), max(len(keys), 1), squeeze=False)
        for line, kind in zip(axes, kinds, strict=False):
            for ax, key in zip(line, keys, strict=False):
                for method, cells in ran[ran["per"] == kind].groupby("method", sort=False):
                    points = cells.groupby("rate")[key].agg(["mean", "std"])
                    style: Any = {"yerr": points["std"].fillna(0), "marker": "o", "capsize": 2, "label": method}
                    ax.errorbar(points.index, points["mean"], **style)
                ax.set(xlabel=f"noise rate, {kind}", ylabel=labels[key])
        if keys:
            figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
        figure.suptitle(title or "nothing has been measured yet", fontsize=10)
        figure.savefig(path, format="png", dpi=150, metadata={"Software": None})
