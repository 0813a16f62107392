"""Audits: a sample for a person to label, and what the labels say about the whole corpus."""

from cleanpairs.audit.evaluation import AuditResult, ExpectedQuality, evaluate_audit, expected_quality
from cleanpairs.audit.sample import AuditSample, draw_sample
from cleanpairs.audit.sheet import read_labels, write_forms

__all__ = [
    "AuditResult", "AuditSample", "ExpectedQuality", "draw_sample", "evaluate_audit", "expected_quality", "read_labels",
    "write_forms",
]  # fmt: skip
