"""One loss formulation per file: pure tensors in, one value per pair out."""
