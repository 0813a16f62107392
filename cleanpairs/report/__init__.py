"""One self-contained HTML page about a run, and the picture of repairs that README shows."""

from cleanpairs.report.before_after import before_after_figure
from cleanpairs.report.page import write_report

__all__ = ["before_after_figure", "write_report"]
