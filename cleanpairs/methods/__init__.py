"""One paper a file: which objective, which correspondence estimator, which schedule."""
