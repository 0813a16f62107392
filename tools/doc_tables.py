"""Fill the tables of README, the docs and RESULTS from the CSV files in benchmarks/results: python tools/doc_tables.py.

A table stands between ``<!-- table NAME ... -->`` and ``<!-- end -->``. NAME is a function below, or a CSV file::

    <!-- table captions: corpus · text · AUROC where images=1,600 -->

shows the columns ``corpus``, ``text`` and ``AUROC`` of the rows of captions.csv whose ``images`` is ``1,600``.
``noise=0.4|0.8`` takes the rows of either value. Without columns all are shown. The first line of a CSV file is the
command that printed it.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
PAGES = [REPO / "README.md", REPO / "benchmarks" / "RESULTS.md", *sorted((REPO / "docs").rglob("*.md"))]
MARKED = re.compile(r"<!-- table (.+?) -->\n.*?<!-- end -->", re.DOTALL)
PAPERS = ("crcl", "repair", "pc2", "l2rm")
Rows = list[dict[str, str]]


def read(name: str) -> Rows:
    """The rows of a CSV file of benchmarks/results."""
    lines = (REPO / "benchmarks" / "results" / f"{name}.csv").read_text(encoding="utf-8").splitlines()
    if not lines[0].startswith("# "):
        raise ValueError(f"the first line of {name}.csv must be the command that printed it")
    rows = csv.DictReader(lines[1:])
    if len(set(rows.fieldnames or ())) < len(rows.fieldnames or ()):
        raise ValueError(f"two columns of {name}.csv have one name")
    return list(rows)


def mean(figure: str) -> str:
    """A figure without its spread."""
    return figure.split(" ")[0]


def table(rows: Rows) -> str:
    """A table in Markdown."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def selected(of: str) -> str:
    """The columns and rows of a CSV file that a marker asks for."""
    name, _, rest = of.partition(":")
    columns, _, conditions = rest.partition(" where ")
    wanted = dict(pair.strip().split("=") for pair in conditions.split("·") if pair.strip())
    rows = [row for row in read(name.strip()) if all(row[key] in value.split("|") for key, value in wanted.items())]
    names = [column.strip() for column in columns.split("·") if column.strip()] or list(rows[0])
    return table([{column: row[column] for column in names} for row in rows])


def models(corpus: str, noise: str) -> dict[str, dict[str, str]]:
    """The rows of one corpus at one rate, by model; ``best`` is the best of the four papers in each figure."""
    wanted = {"corpus": corpus, "backbone": "mlp", "noise": noise}
    found = {row["model"]: row for row in read("rows") if wanted.items() <= row.items()}
    best = {}
    for figure in ("AUROC", "rSum"):
        method = max((m for m in PAPERS if m in found), key=lambda m: float(mean(found[m][figure])))
        best[figure] = f"{mean(found[method][figure])} ({method.upper()})"
    return {**found, "best": best}


def summary() -> str:
    """AUROC of every corpus at 40 %."""
    rows = []
    for corpus in dict.fromkeys(row["corpus"] for row in read("rows")):
        found = models(corpus, "0.4")
        rows.append(
            {
                "corpus": corpus,
                "untrained evidence": mean(found["evidence alone"]["AUROC"]),
                "InfoNCE": mean(found["infonce"]["AUROC"]) if "infonce" in found else "-",
                "best of the four papers": found["best"]["AUROC"],
                "`auto`": mean(found["auto"]["AUROC"]),
            }
        )
    return table(rows)


def retrieval() -> str:
    """Recall of every corpus at 40 %; the regression is what the untrained evidence retrieves with."""
    rows = []
    for corpus in dict.fromkeys(row["corpus"] for row in read("rows")):
        found = models(corpus, "0.4")
        cells = {"regression alone": "ridge alone", "InfoNCE": "infonce", "best of the four papers": "best"}
        rows.append(
            {"corpus": corpus}
            | {name: found[model]["rSum"] if model in found else "-" for name, model in cells.items()}
            | {"two CRCLs and the regression": found["2 x crcl + evidence"]["rSum"], "`auto`": found["auto"]["rSum"]}
        )
    return table(rows)


def rates() -> str:
    """AUROC of `auto`, the untrained evidence and the best of the four papers, by corpus and noise."""
    rows = []
    for corpus in ("photographs, 1 caption", "titles", "clip art"):
        for noise in ("0.2", "0.4", "0.6", "0.8"):
            found = models(corpus, noise)
            rows.append(
                {
                    "corpus": corpus,
                    "noise": noise,
                    "untrained evidence": mean(found["evidence alone"]["AUROC"]),
                    "best of the four papers": found["best"]["AUROC"],
                    "two CRCLs and the evidence": mean(found["2 x crcl + evidence"]["AUROC"]),
                    "`auto`": found["auto"]["AUROC"],
                }
            )
    return table(rows)


def methods() -> str:
    """Every method on photographs at 40 %, the best label first."""
    rows = [row for row in read("methods_photographs") if row["noise"] == "0.4"]
    rows.sort(key=lambda row: (-float(mean(row["AUROC"])), row["method"]))
    shown = {"AUROC": "AUROC", "F1": "F1", "mismatched among the kept": "mismatched: kept", "rSum": "rSum"}
    return table(
        [{"method": row["method"]} | {name: mean(row[column]) for name, column in shown.items()} for row in rows]
    )


def thresholds() -> str:
    """What the default thresholds of CRCL and `auto` do to photographs."""
    rows = [row for row in read("methods_photographs") if row["method"] in ("auto", "crcl")]
    names = ("flagged", "precision", "recall", "F1", "estimated rate")
    return table([{k: row[k] for k in ("method", "noise")} | {k: mean(row[k]) for k in names} for row in rows])


def similar() -> str:
    """What `auto`, its setting for similar pairs, and CRCL leave of near mismatches in titles."""
    rows = []
    found = [row for row in read("similar_pairs") if row["corpus"] == "titles"]
    for kind, mismatched in dict.fromkeys((row["kind"], row["mismatched"]) for row in found):
        of = {row["model"]: row for row in found if (row["kind"], row["mismatched"]) == (kind, mismatched)}
        auto = of["auto"]
        rows.append(
            {"kind": kind, "mismatched": mismatched}
            | {"estimated rate [interval]": f"{auto['rate']} [{auto['low']}, {auto['high']}]"}
            | {"upper bound": auto["bound"], "mismatched among the kept: `auto`": auto["kept"]}
            | {"`mismatches=similar`": of["auto, similar"]["kept"], "CRCL": of["crcl"]["kept"]}
        )
    return table(rows)


def protocols() -> str:
    """AUROC of `auto` on near mismatches, compared with the best other method."""
    rows = []
    found = [row for row in read("noise_protocols") if row["kind"] != "copied"]
    for cell in dict.fromkeys((row["corpus"], row["kind"], mean(row["mismatched"])) for row in found):
        of = {row["method"]: row for row in found if (row["corpus"], row["kind"], mean(row["mismatched"])) == cell}
        auto, shown = of.pop("auto"), dict(zip(("corpus", "kind", "mismatched"), cell, strict=True))
        for figure, head in (("AUROC", ""), ("test AUROC", "test split: ")):
            best = max(of, key=lambda name: mean(of[name][figure]))
            shown |= {f"{head}best other method": f"{mean(of[best][figure])} ({best})", f"{head}`auto`": auto[figure]}
        rows.append(shown)
    return table(rows)


MADE = {f.__name__: f for f in (summary, retrieval, rates, methods, thresholds, similar, protocols)}


def filled(text: str) -> str:
    """A page with its tables made anew."""

    def made(match: re.Match[str]) -> str:
        body = MADE[match[1]]() if match[1] in MADE else selected(match[1])
        return f"<!-- table {match[1]} -->\n\n{body}\n\n<!-- end -->"

    return MARKED.sub(made, text)


if __name__ == "__main__":
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        if filled(text) != text:
            page.write_text(filled(text), encoding="utf-8")
