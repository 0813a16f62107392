"""BiCro: consistency with anchors against a double loop, its scale, and what it finds."""

import numpy as np
import pytest

from cleanpairs import BiCro
from cleanpairs.methods.bicro import consistency
from tests.helpers import unit
from tests.methods.conftest import begun, procedure_of


def rows(n: int, seed: int) -> np.ndarray:
    return unit(np.random.default_rng(seed).normal(size=(n, 6)))


def by_loop(z_image: np.ndarray, z_text: np.ndarray, a_image: np.ndarray, a_text: np.ndarray) -> list[float]:
    out = []
    for i in range(len(z_image)):
        total = 0.0
        for asked, answered, a_asked, a_answered in (
            (z_image[i], z_text[i], a_image, a_text),
            (z_text[i], z_image[i], a_text, a_image),
        ):
            best, near, far = np.inf, 0.0, 0.0
            for x, y in zip(a_asked, a_answered, strict=True):
                d, e = float(np.linalg.norm(asked - x)), float(np.linalg.norm(answered - y))
                if d < 1e-3 and e < 1e-3:
                    continue  # the pair itself
                if d < best:
                    best, near, far = d, d, e
            total += min(1.0, (near + 1e-3) / (far + 1e-3)) / 2
        out.append(total)
    return out


@pytest.mark.parametrize(("n", "m"), [(0, 1), (1, 2), (2, 1), (25, 2), (25, 12)])
def test_consistency_against_a_double_loop(n: int, m: int) -> None:
    images, texts = rows(n, 1), rows(n, 2)
    for anchors in ((rows(m, 3), rows(m, 4)), (images[:8], texts[:8])):  # a pair's own anchor is passed over
        got = consistency(images, texts, *anchors)
        np.testing.assert_allclose(got, by_loop(images, texts, *anchors), rtol=1e-3, atol=1e-3)
        assert got.shape == (n,) and ((got >= 0) & (got <= 1)).all()


def test_the_scale_puts_right_anchors_at_1_and_shuffled_ones_at_0() -> None:
    n = 200
    turn = np.linalg.qr(np.random.default_rng(0).normal(size=(6, 6)))[0]
    images = rows(n, 1)
    texts = unit(images @ turn + 0.15 * np.random.default_rng(2).normal(size=(n, 6)))
    texts[:40] = np.roll(texts[:40], 1, axis=0)
    w = np.where(np.arange(n) < 40, 0.1, 0.95).astype(np.float32)
    y = procedure_of(BiCro, n).estimate(images, texts, w, 3)
    assert y.shape == (n,) and y.dtype == np.float32 and y.min() >= 0 and y.max() <= 1
    assert np.median(y[40:]) > 0.9 and np.median(y[:40]) < 0.2  # a wrong pair is not as one put among the anchors
    assert (y[40:] == 1).mean() == pytest.approx(0.5, abs=0.02)  # the median anchor stands at 1
    c = np.array(by_loop(images, texts, images[40:], texts[40:]))
    inside = (y > 0) & (y < 1)
    slope = np.polyfit(c[inside], y[inside], 1)
    np.testing.assert_allclose(np.polyval(slope, c[inside]), y[inside], atol=0.01)  # and between the ends it is linear


@pytest.mark.parametrize("case", ["few anchors", "all alike", "no relation"])
def test_anchors_that_say_nothing_give_zeros(case: str) -> None:
    n = 3 if case == "few anchors" else 60
    images = np.repeat(rows(1, 1), n, axis=0) if case == "all alike" else rows(n, 1)
    texts = np.repeat(rows(1, 2), n, axis=0) if case == "all alike" else rows(n, 2)
    y = procedure_of(BiCro, n).estimate(images, texts, np.ones(n, dtype=np.float32), 3)
    assert y.shape == (n,) and np.isfinite(y).all()
    if case != "no relation":
        assert not y.any()


def test_clean_pairs_keep_1_and_the_value_joins_split_and_consistency() -> None:
    n = 40
    procedure, view = begun(BiCro, n)
    procedure.w = np.random.default_rng(1).random((2, n)).astype(np.float32)
    value = procedure.judge(view)
    each = []
    for k in (0, 1):
        encoded = view.encoded(k)
        y = procedure.estimate(encoded.images.vectors, encoded.texts.vectors, procedure.w[k], view.seed(11, k))
        assert (procedure.y[1 - k][procedure.w[k] > 0.5] == 1).all()
        np.testing.assert_array_equal(procedure.y[1 - k][procedure.w[k] <= 0.5], y[procedure.w[k] <= 0.5])
        each.append(procedure.w[k] * (1 + y) / 2)
    np.testing.assert_allclose(value, np.mean(each, axis=0), rtol=1e-5)
