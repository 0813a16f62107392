"""Captions that many pairs have in nearly the same words."""

import numpy as np
import pyarrow as pa

from cleanpairs.repair.copies import near_copies


def test_nearly_equal_captions_are_counted() -> None:
    rng = np.random.default_rng(0)
    captions = [" ".join(f"w{i}" for i in rng.geometric(0.2, rng.integers(0, 9))) for _ in range(400)]
    chosen, words = np.arange(0, 400, 3), [set(caption.split()) for caption in captions]
    alike = [[len(a & b) >= 0.7 * len(a | b) for b in words if a and b] for a in (words[i] for i in chosen)]
    expected = [max(sum(row) - 1, 0) for row in alike]
    batches = [pa.record_batch({"caption": captions[:151]}), pa.record_batch({"caption": captions[151:]})]
    assert near_copies(lambda: batches, chosen).tolist() == expected and sum(expected) > 100
