"""Whether files are as they were written: an export, a run, a model, a Parquet file, and what is wrong, where."""

from cleanpairs.verification.findings import Problem, Verification
from cleanpairs.verification.verifying import kind_of, verify_path

__all__ = ["Problem", "Verification", "kind_of", "verify_path"]
