"""One self-contained HTML page about a run, and the plots of a fit."""

from cleanpairs.report.page import write_report
from cleanpairs.report.plots import plot_pairs, plot_scores, plot_training

__all__ = ["plot_pairs", "plot_scores", "plot_training", "write_report"]
