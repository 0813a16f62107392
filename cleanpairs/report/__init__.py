"""One self-contained HTML page about a run, the plots of a fit, and the picture of repairs that README shows."""

from cleanpairs.report.before_after import before_after_figure
from cleanpairs.report.page import ReportFacts, write_report
from cleanpairs.report.plots import plot_pairs, plot_scores, plot_training

__all__ = ["ReportFacts", "before_after_figure", "plot_pairs", "plot_scores", "plot_training", "write_report"]
