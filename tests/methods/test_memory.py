"""The memory of feature pairs: first in, first out, around the end of the ring."""

import numpy as np
import torch

from cleanpairs.methods.splitting import FeatureMemory


def features(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What pair r looks like: images (n, 2) and texts (n, 3) that are known by r."""
    return np.stack([rows, -rows], axis=1).astype(np.float32), np.stack([rows + 0.5] * 3, axis=1).astype(np.float32)


def push(memory: FeatureMemory, *rows: int) -> None:
    r = np.array(rows, dtype=np.int64)
    images, texts = features(r)
    memory.push(torch.from_numpy(images), torch.from_numpy(texts), r)


def test_what_is_remembered_lies_on_the_device() -> None:
    """No second device is needed: ``meta`` has shapes and no values. A state that goes on comes from the CPU."""
    memory, known = FeatureMemory(3, "meta"), FeatureMemory(3)
    push(known, 9)
    memory.load_state(known.state())
    for held in (memory, known):
        push(held, 7, 8, 0, 1, 2)  # more than there is room for
        push(held, 3, 4)
    assert memory.entries().images.device.type == memory.entries().texts.device.type == "meta"
    assert memory.entries().rows.tolist() == known.entries().rows.tolist() == [2, 3, 4]
    for found, expected in zip(known.entries()[:2], features(np.array([2, 3, 4])), strict=True):
        np.testing.assert_array_equal(found, expected)
