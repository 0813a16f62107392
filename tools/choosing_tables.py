"""Write the tables of docs/choosing.md out of benchmarks/RESULTS.md: python tools/choosing_tables.py.

tests/docs/test_docs.py fails when the page and the results have come apart.
"""

from __future__ import annotations

import re
from pathlib import Path

from cleanpairs.core.registry import METHODS

REPO = Path(__file__).resolve().parents[1]
PAGE = REPO / "docs" / "choosing.md"
RESULTS = REPO / "benchmarks" / "RESULTS.md"
SECTION = "Every method, photographs"

Rows = list[dict[str, str]]


def tables(text: str, heading: str) -> list[Rows]:
    """The tables of one section, each a list of rows by column."""
    section = re.split(r"^## ", text.split(f"## {heading}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    found: list[Rows] = []
    for block in re.findall(r"(?:^\|.*\n)+", section, flags=re.MULTILINE):
        names, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines())
        found.append([dict(zip(names, row, strict=True)) for row in rows])
    return found


def mean(figure: str | None) -> str:
    """A figure without its spread; nothing for a dash."""
    return "" if figure in (None, "-") else str(figure).split(" ")[0]


def table(names: list[str], rows: list[list[str]]) -> str:
    """A table in Markdown."""
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(line)} |".replace("|  |", "| |").replace("|  |", "| |") for line in lines) + "\n"


def of_methods(results: str) -> str:
    """Every method at 40 %, the best label first."""
    rows, _, costs = (
        {row["method"]: row for row in found if row["noise"] == "0.4"} for found in tables(results, SECTION)[:3]
    )
    out = []
    for method in sorted(rows, key=lambda m: (-float(mean(rows[m]["AUROC"])), m)):
        figures = [mean(rows[method][name]) for name in ("AUROC", "F1", "kept", "rSum", "repair")]
        out.append([method, *figures, f"{seconds(method, costs) / seconds('crcl', costs):.1f}"])
    return table(["method", "AUROC", "F1", "mismatched, kept", "rSum", "repairs", "time of a fit"], out)


def seconds(method: str, costs: dict[str, dict[str, str]]) -> float:
    """CPU seconds of a fit, a pair: its epochs by the pairs a second, which are counted once an epoch."""
    model = METHODS.load(method)()
    first = model.label_epochs if method == "auto" else sum(getattr(model, "refine_epochs", ()))
    return (first + model.epochs) / float(mean(costs[method]["pairs/CPU s"]))


def of_thresholds(results: str) -> str:
    """What the default thresholds of CRCL and auto do to photographs."""
    detection, thresholds = tables(results, SECTION)[:2]
    rates = {(r["noise"], r["method"]): r["noise est."] for r in detection}
    out = []
    for row in sorted(thresholds, key=lambda r: (r["method"], r["noise"])):
        at = row["noise"], row["method"]
        if row["method"] in ("auto", "crcl"):
            figures = [mean(row[name]) for name in ("flagged", "precision", "recall", "F1")]
            out.append([row["method"], row["noise"], *figures, mean(rates[at])])
    return table(["method", "corrupted", "flagged", "precision", "recall", "F1", "noise rate, estimated"], out)


def filled(page: str, results: str) -> str:
    """The page with its tables made anew."""
    for name, content in (("methods", of_methods(results)), ("thresholds", of_thresholds(results))):
        begin, end = f"<!-- {name}: tools/choosing_tables.py -->\n", f"<!-- end of {name} -->\n"
        head, rest = page.split(begin)
        page = head + begin + "\n" + content + "\n" + end + rest.split(end)[1]
    return page


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), RESULTS.read_text(encoding="utf-8")), encoding="utf-8")
