"""Soft correspondence of N pairs: (N,) in, (N,) out."""
