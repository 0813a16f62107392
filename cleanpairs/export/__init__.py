"""The cleaned data set: a repair plan carried out on the input, with a ledger that adds up and undoes it."""

from cleanpairs.export.diff import Change, ExportDiff, diff_export
from cleanpairs.export.pushing import CardFacts, Pushed, push_export
from cleanpairs.export.restore import RestoreSummary, restore_export
from cleanpairs.export.writing import ExportSummary, export_pairs

__all__ = [
    "CardFacts", "Change", "ExportDiff", "ExportSummary", "Pushed", "RestoreSummary", "diff_export", "export_pairs",
    "push_export", "restore_export",
]  # fmt: skip
