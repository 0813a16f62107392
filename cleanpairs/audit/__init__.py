"""Audits: a sample for a person to label, and what the labels say about the whole corpus."""

from cleanpairs.audit.answers import Answered, next_questions
from cleanpairs.audit.evaluation import AuditResult, ExpectedQuality, evaluate_audit, expected_quality
from cleanpairs.audit.judge import Opinions, second_opinions
from cleanpairs.audit.labels import read_answers, read_labels, update_labels, write_labels
from cleanpairs.audit.sample import AuditSample, draw_sample

__all__ = [
    "Answered", "AuditResult", "AuditSample", "ExpectedQuality", "Opinions", "draw_sample", "evaluate_audit",
    "expected_quality", "next_questions", "read_answers", "read_labels", "second_opinions",
    "update_labels", "write_labels",
]  # fmt: skip
