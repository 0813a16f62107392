"""Groups of flagged pairs, by the words of their captions and by the look of their images, each with a name.

The look is told in words, too: those that the captions of similar trusted images agree on, and the caption lacks, as a
pair's sentence has them (:mod:`cleanpairs.explain`). Both are weighted by tf-idf, reduced by a truncated SVD, and
divided by k-means into as many groups as have the best silhouette.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.explain import agreed_words
from cleanpairs.report.gallery import Gallery, card_of, load_shown
from cleanpairs.report.outcome import Outcome
from cleanpairs.report.pictures import Pictures

LEAST, MOST = 30, 8  # flagged pairs; groups
SAMPLE, COMPARED = 20_000, 2000  # flagged pairs that are divided, of more; those that silhouettes are of
SHOWN, NAMED = 3, 3  # cards, and words, of a group
SHARE = 0.1  # of a group's pairs that have a word of its name
LOOK = "≈"  # before a word about the look


def clusters(pairs: Pairs, outcome: Outcome, pictures: Pictures, why: Sequence[str | None]) -> list[Gallery]:
    """The groups, largest first, with the pairs next to the middle of each; none of fewer than 30 flagged pairs.

    ``why`` (N,): the pairs' sentences. The same pairs are divided the same way.
    """
    ids = np.flatnonzero(outcome.correspondence < outcome.threshold)
    flagged = len(ids)
    if flagged < LEAST:
        return []
    if flagged > SAMPLE:
        ids = np.sort(np.random.default_rng(0).choice(ids, SAMPLE, replace=False))
    texts = [_text(pairs.captions[i], why[i]) for i in ids.tolist()]
    divided = _divided(texts)
    if divided is None:
        return []
    of, apart, has, names = divided
    found = []
    for c in np.argsort(-np.bincount(of), kind="stable").tolist():
        rows = np.flatnonzero(of == c)
        shown = ids[rows[np.argsort(apart[rows], kind="stable")[:SHOWN]]]
        load_shown(pictures, outcome, shown)
        note = "next to the middle of the group" + (f", of a sample of {SAMPLE:,}" if flagged > SAMPLE else "")
        title = visible(_name(np.asarray(has[rows].mean(axis=0)).ravel(), np.asarray(has.mean(axis=0)).ravel(), names))
        total = round(len(rows) * flagged / len(ids))
        cards = [card_of(pairs, outcome, i, pictures) for i in shown.tolist()]
        found.append(Gallery("neutral", f"{total:,} pairs: {title}", note, total, cards))
    return found


def _text(caption: str | None, why: str | None) -> str:
    return " ".join([caption or "", *(LOOK + word for word in agreed_words(why or ""))])


def _divided(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray] | None:
    """The group (n,) of each text, its distance (n,) from the middle of that, which words it has (n, V), and the words;
    None where there are too few words to go by.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
    from sklearn.metrics import silhouette_score
    from sklearn.preprocessing import normalize

    counts = CountVectorizer(binary=True, min_df=2, max_df=0.9, token_pattern=rf"(?u){LOOK}?\b[^\W\d]\w+\b")
    try:
        has = counts.fit_transform(texts)
    except ValueError:  # no word occurs twice
        return None
    if has.shape[1] < MOST:
        return None
    reduced = TruncatedSVD(min(50, has.shape[1] - 1), random_state=0).fit_transform(
        TfidfTransformer().fit_transform(has)
    )
    vectors = normalize(reduced)
    few = np.random.default_rng(0).permutation(len(vectors))[:COMPARED]
    best, chosen = -np.inf, None
    for k in range(2, MOST + 1):
        model = KMeans(k, n_init=3, random_state=0).fit(vectors)
        of = model.labels_
        if len(np.unique(of[few])) == k and (found := silhouette_score(vectors[few], of[few])) > best:
            best, chosen = found, model
    if chosen is None:
        return None
    return chosen.labels_, chosen.transform(vectors).min(axis=1), has, counts.get_feature_names_out()


def _name(share: np.ndarray, of_all: np.ndarray, names: np.ndarray) -> str:
    """The words that a group has more often than all, about the captions and about the look."""
    telling = np.where(share >= SHARE, share * np.log(np.maximum(share, 1e-9) / np.maximum(of_all, 1e-9)), 0)
    words = [str(names[i]) for i in np.argsort(-telling, kind="stable") if telling[i] > 0]
    said = [w for w in words if not w.startswith(LOOK)][:NAMED]
    look = [w.removeprefix(LOOK) for w in words if w.startswith(LOOK)][:NAMED]
    parts = ["captions say " + ", ".join(said)] if said else []
    parts += ["images like those of " + ", ".join(look)] if look else []
    return "; ".join(parts) or "various words"
