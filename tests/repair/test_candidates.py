"""The pairs of image and text that candidate edges make."""

from __future__ import annotations

import numpy as np
import pytest

from cleanpairs.repair.candidates import Edges, Members, pair_edges


@pytest.mark.parametrize("E", [0, 1, 2, 4000])
def test_pairs_of_edges_are_numbered_as_unique_does(E: int) -> None:
    rng = np.random.default_rng(E)
    n = 60
    edges = Edges(
        row=rng.integers(0, 30, E).astype(np.int32),
        is_image=rng.random(E) < 0.5,
        trusted=rng.random(E) < 0.4,
        donor_group=rng.integers(0, 50, E).astype(np.int32),
        similarity=rng.normal(size=E).astype(np.float32),
        mismatched=np.arange(30, dtype=np.int32),
        shown=rng.integers(0, n, 50).astype(np.int32),
        image_group=np.unique(rng.integers(0, 25, n), return_inverse=True)[1],
        text_group=np.unique(rng.integers(0, 25, n), return_inverse=True)[1],
        members=Members(np.zeros(0, np.int64), np.zeros(1, np.int64)),
    )
    asked: list[int] = []

    def scorer(image: np.ndarray, text: np.ndarray, cosine: np.ndarray | None) -> np.ndarray:
        asked.append(len(image))
        assert cosine is not None and cosine.shape == image.shape
        return (edges.image_group[image] * 100 + edges.text_group[text]).astype(np.float32)

    found = pair_edges(edges, scorer)
    image, text = edges.shown_by(slice(None))
    key = edges.image_group[image] * 100 + edges.text_group[text]
    values, number = np.unique(key, return_inverse=True)
    np.testing.assert_array_equal(found.number, number)
    assert found.count == len(values) == sum(asked)
    np.testing.assert_array_equal(found.score, key)
    lead = [np.flatnonzero((number == f) & ~edges.trusted)[0] for f in np.unique(number[~edges.trusted])]
    np.testing.assert_array_equal(found.lead, lead)
