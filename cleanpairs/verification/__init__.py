"""Checks that an export, a run, a model or a Parquet file is as it was written."""

from cleanpairs.verification.findings import Problem, Verification
from cleanpairs.verification.verifying import kind_of, verify_path

__all__ = ["Problem", "Verification", "kind_of", "verify_path"]
