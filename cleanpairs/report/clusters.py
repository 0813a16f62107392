"""Groups of flagged pairs, by the words of their captions and by the look of their images, each with a name.

The look is told in words, too: those that the captions of similar trusted images agree on, and the caption lacks, as a
pair's sentence has them (:mod:`cleanpairs.explain`). Both are weighted by tf-idf, reduced by a truncated SVD, and
divided by k-means into as many groups as have the best silhouette. A name takes no word but those that some sentence
names: "of" and "the" say nothing about an image.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from cleanpairs.data.display import visible
from cleanpairs.explain import caption_words, named_words
from cleanpairs.report.gallery import Cards

LEAST, MOST = 30, 8  # flagged pairs; groups
SAMPLE, COMPARED = 20_000, 2000  # flagged pairs that are divided, of more; those that silhouettes are of
SHOWN, NAMED = 3, 3  # cards, and words, of a group
SHARE = 0.1  # of a group's pairs that have a word of its name
LOOK = "≈"  # before a word about the look


def clusters(shown: Cards, why: Sequence[str | None]) -> list[dict[str, Any]]:
    """The groups, largest first, with the pairs next to the middle of each; none of fewer than 30 flagged pairs.

    ``why`` (N,): the pairs' sentences. The same pairs are divided the same way.
    """
    pairs, outcome = shown.pairs, shown.outcome
    ids = np.flatnonzero(outcome.correspondence < outcome.threshold)
    flagged = len(ids)
    if flagged < LEAST:
        return []
    if flagged > SAMPLE:
        ids = np.sort(np.random.default_rng(0).choice(ids, SAMPLE, replace=False))
    said = [named_words(why[i] or "") for i in ids.tolist()]
    telling = {word for agreed, own in said for word in (*own, *(LOOK + word for word in agreed))}
    looks = [[LOOK + word for word in agreed] for agreed, _ in said]
    words = [[*caption_words(pairs.captions[i] or ""), *look] for i, look in zip(ids.tolist(), looks, strict=True)]
    divided = _divided(words)
    if divided is None:
        return []
    of, apart, has, names = divided
    found = []
    note = "next to the middle of the group" + (f", of a sample of {SAMPLE:,}" if flagged > SAMPLE else "")
    for c in np.argsort(-np.bincount(of), kind="stable").tolist():
        rows = np.flatnonzero(of == c)
        share, of_all = (np.asarray(some.mean(axis=0)).ravel() for some in (has[rows], has))
        total = round(len(rows) * flagged / len(ids))
        title = f"{total:,} pairs: {visible(_name(share, of_all, names, telling))}"
        middle = rows[np.argsort(apart[rows], kind="stable")[:SHOWN]]
        found.append(shown.gallery(title, note, total, ids[middle]))
    return found


def _divided(words: Sequence[Sequence[str]]) -> tuple[np.ndarray, np.ndarray, Any, np.ndarray] | None:
    """The group (n,) of each pair, its distance (n,) from the middle of that, which words it has (n, V), and the words;
    None where there are too few words to go by.
    """
    from sklearn.cluster import KMeans
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import CountVectorizer, TfidfTransformer
    from sklearn.metrics import silhouette_score
    from sklearn.preprocessing import normalize

    counts = CountVectorizer(binary=True, min_df=2, max_df=0.9, analyzer=list)
    try:
        has = counts.fit_transform(words)
    except ValueError:  # no word occurs twice
        return None
    if has.shape[1] < MOST:
        return None
    reduced = TruncatedSVD(min(50, has.shape[1] - 1), random_state=0)
    vectors = normalize(reduced.fit_transform(TfidfTransformer().fit_transform(has)))
    few = np.random.default_rng(0).permutation(len(vectors))[:COMPARED]
    best, chosen = -np.inf, None
    for k in range(2, min(MOST, len(np.unique(vectors, axis=0))) + 1):
        model = KMeans(k, n_init=3, random_state=0).fit(vectors)
        of = model.labels_
        if len(np.unique(of[few])) == k and (found := silhouette_score(vectors[few], of[few])) > best:
            best, chosen = found, model
    if chosen is None:
        return None
    return chosen.labels_, chosen.transform(vectors).min(axis=1), has, counts.get_feature_names_out()


def _name(share: np.ndarray, of_all: np.ndarray, names: np.ndarray, telling: Collection[str]) -> str:
    """The words that a group has more often than all, about the captions and about the look: those of ``telling``, if
    there are any.
    """
    gain = np.where(share >= SHARE, share * np.log(np.maximum(share, 1e-9) / np.maximum(of_all, 1e-9)), 0)
    words = [str(names[i]) for i in np.argsort(-gain, kind="stable") if gain[i] > 0]
    words = [word for word in words if not telling or word in telling]
    said = [w for w in words if not w.startswith(LOOK)][:NAMED]
    look = [w.removeprefix(LOOK) for w in words if w.startswith(LOOK)][:NAMED]
    parts = ["captions say " + ", ".join(said)] if said else []
    parts += ["images like those of " + ", ".join(look)] if look else []
    return "; ".join(parts) or "various words"
