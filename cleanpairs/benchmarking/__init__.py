"""Methods against noise: known noise in clean pairs, one fit for each method, rate and seed, judged by the truth."""

from cleanpairs.benchmarking.bench import Bench, BenchResult, run_bench
from cleanpairs.benchmarking.table import summarise, to_markdown, to_text

__all__ = ["Bench", "BenchResult", "run_bench", "summarise", "to_markdown", "to_text"]
