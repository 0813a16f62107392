"""Why a pair is doubted: what similar images and captions of trusted pairs say, word by word; and a ranked list."""

from cleanpairs.explain.evidence import ISSUES, Explainer, Explanation, Neighbour, Neighbours, named_words
from cleanpairs.explain.words import caption_words

__all__ = ["ISSUES", "Explainer", "Explanation", "Neighbour", "Neighbours", "caption_words", "named_words"]
