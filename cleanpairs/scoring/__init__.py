"""Embeddings of a corpus, and one matching probability per pair out of them.

Training labels use random groups of the corpus itself. Scores of any data use the groups of a :class:`Bank` of trusted
pairs, which is kept with the model. So a pair has the same score whatever else is scored.
"""

from cleanpairs.scoring.bank import Bank, trusted_rows
from cleanpairs.scoring.embeddings import Embeddings, Encoded, as_input, embed_images, embed_texts, in_groups, matrix

__all__ = [
    "Bank", "Embeddings", "Encoded", "as_input", "embed_images", "embed_texts", "in_groups", "matrix", "trusted_rows",
]  # fmt: skip
