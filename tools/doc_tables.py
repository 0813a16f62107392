"""Write the tables of choosing.md and methods/auto.md out of benchmarks/RESULTS.md: python tools/doc_tables.py.

tests/docs/test_docs.py fails when a page, or README's table, and the results have come apart.
"""

from __future__ import annotations

import re
from pathlib import Path

from cleanpairs.core.registry import METHODS

REPO = Path(__file__).resolve().parents[1]
RESULTS = REPO / "benchmarks" / "RESULTS.md"
SECTION = "Every method, photographs"
ROWS = "Every method in one table, on the clip art that ships"
CORPORA = {"photos1": "photographs", "titles2000": "product titles", "clipart": "clip art that ships"}
PAPERS = ("crcl", "repair", "pc2", "l2rm")

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


def compared(results: str, corpus: str, noise: str) -> dict[str, list[str]]:
    """Method -> AUROC and rSum with their spreads, of benchmarks/rows.py; `best`: of the four papers', named."""
    name = f"{corpus}_train, mlp, noise {noise}, 3 seeds"
    (rows,) = (found for found in tables(results, ROWS) if name in found[0])
    out = {row[name]: [row["AUROC"].strip("*"), row["test rSum"].strip("*")] for row in rows}
    papers = [m for m in PAPERS if m in out]
    best = [max(papers, key=lambda m: float(mean(out[m][k]))) for k in (0, 1)]
    return {**out, "best": [f"{mean(out[method][k])} ({method})" for k, method in enumerate(best)]}


def of_readme(results: str) -> list[str]:
    """The figures at 40 % of README's rows: untrained evidence, InfoNCE, the best of the four, `auto`."""
    lines = []
    for corpus in ("photos5", "photos1", "titles2000", "clipart", "stamps", "emoji"):
        rows = compared(results, corpus, "0.4")
        label, recall = (re.sub(r"\((\w+)\)", lambda m: f"({m[1].upper()})", figure) for figure in rows["best"])
        evidence = [rows["evidence alone"][0], rows["ridge alone"][1]]
        cells = [short(*evidence), short(*rows["infonce"]), short(label, recall), short(*rows["auto"])]
        lines.append(f" | {' | '.join(cells)} |")
    return lines


def short(auroc: str, rsum: str) -> str:
    """`.970 (CRCL); 313 (REPAIR)`, without spreads and leading zeros."""
    names = [f" {figure[figure.index('(') :]}" if "(" in figure else "" for figure in (auroc, rsum)]
    return f"{mean(auroc)[1:]}{names[0]}; {float(mean(rsum)):.0f}{names[1]}"


def of_rows(results: str) -> str:
    """`auto` beside the best of the four papers' methods, the evidence and InfoNCE, by corpus and noise."""
    out = []
    for corpus, shown in CORPORA.items():
        for noise in ("0.2", "0.4", "0.6", "0.8"):
            rows = compared(results, corpus, noise)
            (auroc, rsum), (label, recall) = rows["auto"], rows["best"]
            evidence = f"{mean(rows['evidence alone'][0])}; {mean(rows['ridge alone'][1])}"
            out.append([shown, noise, auroc, label, evidence, rsum, recall, mean(rows["infonce"][1])])
    names = ["AUROC", "best of the four", "evidence; rSum", "test rSum", "best of the four", "InfoNCE"]
    return table(["corpus", "noise", *names], out)


PAGES = {
    REPO / "docs" / "choosing.md": {"methods": of_methods, "thresholds": of_thresholds},
    REPO / "docs" / "methods" / "auto.md": {"rows": of_rows},
}


def filled(page: Path, results: str) -> str:
    """The page with its tables made anew."""
    text = page.read_text(encoding="utf-8")
    for name, made in PAGES[page].items():
        begin, end = f"<!-- {name}: tools/doc_tables.py -->\n", f"<!-- end of {name} -->\n"
        head, rest = text.split(begin)
        text = head + begin + "\n" + made(results) + "\n" + end + rest.split(end)[1]
    return text


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(filled(page, RESULTS.read_text(encoding="utf-8")), encoding="utf-8")
