"""Methods against noise: known noise in clean pairs, one fit for each method, rate and seed, judged by the truth."""

from cleanpairs.benchmarking.bench import Bench, BenchLog, BenchResult, run_bench
from cleanpairs.benchmarking.cell import run_cell
from cleanpairs.benchmarking.table import COLUMNS, LEGEND, Column, Summary, summarise, to_csv, to_markdown, to_text

__all__ = [
    "COLUMNS", "LEGEND", "Bench", "BenchLog", "BenchResult", "Column", "Summary", "run_bench", "run_cell",
    "summarise", "to_csv", "to_markdown", "to_text",
]  # fmt: skip
