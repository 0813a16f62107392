"""Audits: a sample for a person to label, and what the labels say about the whole corpus."""

from cleanpairs.audit.estimate import Estimate, ThresholdEstimate
from cleanpairs.audit.evaluation import AuditResult, ExpectedQuality, evaluate_audit, expected_quality
from cleanpairs.audit.fragment import SheetFragment, sheet_fragment
from cleanpairs.audit.labels import read_labels
from cleanpairs.audit.sample import AuditSample, draw_sample
from cleanpairs.audit.sheet import AuditForms, write_forms

__all__ = [
    "AuditForms", "AuditResult", "AuditSample", "Estimate", "ExpectedQuality", "SheetFragment", "ThresholdEstimate",
    "draw_sample", "evaluate_audit", "expected_quality", "read_labels", "sheet_fragment", "write_forms",
]  # fmt: skip
