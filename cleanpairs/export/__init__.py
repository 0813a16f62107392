"""The cleaned data set: a repair plan carried out on the input, with a ledger in which the counts add up."""

from cleanpairs.export.writing import ExportSummary, export_pairs

__all__ = ["ExportSummary", "export_pairs"]
