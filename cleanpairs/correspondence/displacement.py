"""Displaced rows: from some row on, each caption belongs a fixed number of rows away.

A join that skips a row, or pairs the files of two shards the wrong way round, displaces thousands of captions by one
rule. For each row i and each distance k the similarity of image i and caption i + k is compared with that of random
pairs. A distance whose gain over "in place" beats chance anywhere becomes a state of a hidden Markov model over the
rows, compared with "in place".

The emissions are log likelihood ratios: logistic regressions of these similarities against those of random pairs,
refitted to the path (Viterbi training, Juang and Rabiner 1990). Here an image or a caption that fits everything well
has its similarities lowered by that. A row of any state may also be mismatched, so a few bad rows do not end a block.

The gain is the largest sum of log likelihood ratios over any run of rows. By Wald's inequality it exceeds log(1 / a)
at one of m starts with probability at most m a, which gives the bound below.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from cleanpairs.core import current_progress, plural
from cleanpairs.core.limits import in_threads
from cleanpairs.ops.mapped import blocks
from cleanpairs.ops.normalised_similarity import cosines

Sample = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows (m,), and the vectors (m, d) of their images and captions


@dataclass(frozen=True)
class DisplacedBlock:
    """A run of displaced rows.

    Parameters
    ----------
    first, last : int
        Rows, from 0, both in the block.
    distance : int
        The caption of row i stands in row i + ``distance``.
    """

    first: int
    last: int
    distance: int

    def __str__(self) -> str:
        far = abs(self.distance)
        where = f"{plural(far, 'row')} {'down' if self.distance > 0 else 'up'}"
        return f"Rows {self.first:,} to {self.last:,}: the caption of each image stands {where}."


@dataclass(frozen=True)
class Displacement:
    """What :func:`find_displaced_rows` found in n rows.

    Attributes
    ----------
    distance : (n,) int64
        The caption of image i stands in row ``i + distance[i]``. 0 in place.
    probability : (n,) float64
        Probability that they belong together. 0 for rows in place.
    blocks : tuple of DisplacedBlock
        Runs of displaced rows, in order.
    """

    distance: np.ndarray = field(repr=False)
    probability: np.ndarray = field(repr=False)
    blocks: tuple[DisplacedBlock, ...]


def find_displaced_rows(
    images: Any, texts: Any, *, usable: np.ndarray | None = None, sample: Sample | None = None
) -> Displacement:
    """Find blocks of rows whose captions stand a fixed number of rows away.

    Parameters
    ----------
    images, texts : (n, d) float32
        Vectors of the image and the caption of each row, in one space. Or what gives those of rows that lie together.
    usable : (n,) bool, optional
        Rows that can be compared. Others count neither for nor against a distance.
    sample : (m,) int64, (m, d) and (m, d), optional
        Rows, rising, with their vectors, from which random pairs are drawn. None: at most 8,192 are drawn.

    Returns
    -------
    Displacement

    Notes
    -----
    Distances up to 64 are all tried. Larger ones are tried where enough rows have their nearest caption there. In rows
    of random order the chance of a block is below 0.1 %. Time is linear in rows times distances. Blocks are drawn among
    the rows of the sample, and near those that fit better at a distance than in place. In half of a block's rows or
    more the displaced caption fits. At distances beyond 64, the caption in place fits better in a fifth of them at
    most. Nothing is searched in fewer than 20 rows.
    """
    n = len(images)
    nothing = Displacement(np.zeros(n, np.int64), np.zeros(n), ())
    usable = np.ones(n, bool) if usable is None else np.asarray(usable, bool)
    if usable.sum() < 20:
        return nothing
    compared, distance, fits = _Rows(images, texts, usable, sample), np.zeros(n, np.int64), np.zeros(n)
    if sample is None:
        compared.normalise(np.empty(0, np.int64), np.arange(n), distance, fits, most=256)
    states = compared.distances_that_beat_chance()
    if not len(states):
        return nothing
    doubted = compared.rows_in_doubt(states)
    for _ in range(2):  # the second time, a pair that fits is no rival of others
        compared.normalise(states, doubted, distance, fits)
        state, fits = _segmented(compared, states)
        distance = np.concatenate([[0], states])[state]
    for k in states[abs(states) > compared.reach].tolist():  # where the same images come back, both captions fit
        there = distance == k
        if fits[there & (compared.at(0) > compared.at(k))].sum() > fits[there].sum() / 5:
            distance[there] = 0
    blocks = []
    for a, b in pairwise([*np.flatnonzero(np.diff(distance, prepend=0)).tolist(), n]):
        # Fewer fit where captions are exchanged among neighbours.
        if distance[a] and fits[a:b].sum() >= usable[a:b].sum() / 2:
            blocks.append(DisplacedBlock(a, b - 1, int(distance[a])))
        else:
            distance[a:b] = 0
    return Displacement(distance, np.where(distance, fits, 0.0), tuple(blocks))


class _Rows:
    """Similarities of images and captions at a distance, in units of those of random pairs."""

    reach = 64  # distances that are all tried

    def __init__(self, images: Any, texts: Any, usable: np.ndarray, sample: Sample | None) -> None:
        self.sides, self.usable, self.n = (images, texts), usable, len(images)
        rows, rng = np.flatnonzero(usable), np.random.default_rng(0)
        if sample is None:
            some = rows if len(rows) <= 8192 else np.sort(rng.choice(rows, 8192, replace=False))
            vectors = [np.asarray(x[some], np.float32) for x in self.sides]
        else:
            some = sample[0][usable[sample[0]]]
            vectors = [x[usable[sample[0]]] for x in sample[1:]]
        # Centred, so that a caption that fits everything fits nothing well.
        self.means = [x.mean(axis=0) for x in vectors]
        self._some, self._vectors = some, [self._centred(side, x) for side, x in enumerate(vectors)]
        i, j = rng.choice(len(some), (2, 20_000))
        far = np.abs(some[i] - some[j]) > min(self.reach, len(rows) // 4)
        self._random, self._rng, self._level = (i[far], j[far]), rng, np.zeros((2, self.n), np.float32)
        self._known: dict[int, np.ndarray] = {}  # distance -> similarity
        self._draw_null()

    def _draw_null(self) -> None:
        """Take the similarities of random pairs, and the quantiles that they give to others, on a normal scale."""
        from scipy.special import ndtri

        i, j = self._random
        similarity = cosines(self._vectors[0][i], self._vectors[1][j])
        self.null = np.sort(similarity - self._level[0, self._some[i]] - self._level[1, self._some[j]])
        self._grid = np.linspace(self.null[0], self.null[-1], 2**14, dtype=np.float32)
        below = np.searchsorted(self.null, self._grid, side="right")
        self._normal = ndtri((below + 0.5) / (len(self.null) + 1)).astype(np.float32)

    def rows_in_doubt(self, states: np.ndarray, beside: int = 8, least: float = 4.0) -> np.ndarray:
        """Rows, rising, that may lie in a block or claim its captions, and those of the sample.

        That is, rows in and ``beside`` a run whose evidence for a distance exceeds that for "in place" by ``least``.
        """
        doubted, at_place = np.zeros(self.n, bool), self.evidence(self.at(0))
        doubted[self._some] = True
        for k in states.tolist():
            near = np.flatnonzero(_largest_sums(self.evidence(self.at(k)) - at_place) > least)
            for shift in (*range(-beside, beside + 1), *(0, *states.tolist())):
                doubted[near[(near + shift >= 0) & (near + shift < self.n)] + shift] = True
        return np.flatnonzero(doubted)

    def normalise(
        self, states: np.ndarray, rows: np.ndarray, distance: np.ndarray, fits: np.ndarray, most: int = 1024
    ) -> None:
        """From now on take off each similarity what image and caption have with random captions and images.

        That is half of each log-sum-exp over ``most`` of them, other than those at the distances that are looked at.
        Beyond 131,072 rows they are fewer, at least 256, so that the time is bounded.
        One counts less the more surely it has its own: image i and caption i + ``distance`` (n,) with probability
        ``fits`` (n,). The temperature is 0.3 standard deviations of random pairs. NaN for other rows than ``rows``.
        """
        most = min(most, max(256, 2**27 // max(len(rows), 1)))
        tau, count = 0.3 * max(float(self.null.std()), 1e-12), len(self._some)
        level = np.full((2, self.n), np.nan, np.float32)
        caption = np.clip(np.arange(self.n) + distance, 0, self.n - 1)
        taken = np.bincount(caption, fits, self.n), fits  # captions, images

        def level_of(side: int) -> None:
            rivals = np.sort(self._rng.choice(count, min(most, count), replace=False))
            among, place = self._vectors[1 - side][rivals], np.full(self.n, -1)
            place[self._some[rivals]] = np.arange(len(rivals))
            free = np.log(1.001 - taken[side][self._some[rivals]]).astype(np.float32)
            sign = 1 - 2 * side

            def compare(block: slice) -> None:
                some = rows[block]
                S = self._unit(side, some) @ among.T / tau + free
                for k in (0, *states.tolist()):
                    other = some + sign * k
                    at = np.where((other >= 0) & (other < self.n), place[np.clip(other, 0, self.n - 1)], -1)
                    S[np.flatnonzero(at >= 0), at[at >= 0]] = -np.inf
                top = S.max(axis=1, initial=-1e6)
                level[side, some] = tau / 2 * (top + np.log(np.exp(S - top[:, None]).mean(axis=1) + 1e-12))

            in_threads(compare, blocks(len(rows), 1024))

        level_of(0)
        level_of(1)
        self._level = level
        self._draw_null()

    def _unit(self, side: int, rows: np.ndarray) -> np.ndarray:
        return self._centred(side, np.asarray(self.sides[side][rows], np.float32))

    def _centred(self, side: int, x: np.ndarray) -> np.ndarray:
        x = np.subtract(x, self.means[side], out=x)
        return np.divide(x, np.maximum(np.sqrt(np.einsum("nd,nd->n", x, x)), 1e-12)[:, None], out=x)

    def evidence(self, similarity: np.ndarray, *, local: bool = False) -> np.ndarray:
        """Log likelihood ratio of "belongs together" by the quantile among random pairs.

        A pair that belongs together is taken to lie 1.5 standard deviations above random ones, on a normal scale.
        Untrained and overfitted spaces alike exceed that, so the ratio errs towards no displacement.
        With ``local``, it must also lie so far above the other captions near the row (axis 1). In a sorted file these
        are of the same kind.
        """
        low, high = self._grid[[0, -1]]
        place = np.nan_to_num((similarity - low) * ((len(self._grid) - 1) / max(high - low, 1e-12)))
        z = self._normal[np.clip(place, 0, len(self._grid) - 1).astype(np.int32)]
        if local:
            known = np.isfinite(similarity)
            count = np.maximum(known.sum(axis=1, keepdims=True), 1)
            s = np.where(known, similarity, 0)
            mean = s.sum(axis=1, keepdims=True) / count
            deviation = np.sqrt(np.where(known, (s - mean) ** 2, 0).sum(axis=1, keepdims=True) / count)
            z = np.minimum(z, (s - mean) / np.maximum(deviation, 1e-12))
        return np.clip(1.5 * z - 1.125, -5, 6)

    def at(self, distance: int) -> np.ndarray:
        """Similarity (n,) of image i and caption i + distance. NaN where there is none, or one is unusable, or image
        i + distance beyond the reach is the same.
        """
        if distance not in self._known:
            found = np.full(self.n, np.nan, np.float32)

            def compare(block: slice) -> None:
                i = np.arange(max(block.start, -distance), min(block.stop, self.n - max(distance, 0)))
                if len(i):
                    image, caption = self._unit(0, i), self._unit(1, i + distance)
                    found[i] = np.einsum("nd,nd->n", image, caption)
                    if abs(distance) > self.reach:  # the same image comes back: both captions fit it
                        found[i[(abs(image - self._unit(0, i + distance)) <= 1e-4).all(axis=1)]] = np.nan

            in_threads(compare, blocks(self.n, 1024))
            self._known[distance] = found
        partner = np.clip(np.arange(self.n) + distance, 0, self.n - 1)
        found = self._known[distance] - self._level[0] - self._level[1, partner]
        found[~(self.usable & self.usable[partner])] = np.nan
        return found

    def _weights(self) -> np.ndarray:
        """Weight (n,) of each row's evidence: rows in a run of one image or one caption count once together."""
        first = np.ones(self.n, bool)

        def compare(block: slice) -> None:
            rows = np.arange(max(block.start - 1, 0), block.stop)
            for side in (0, 1):
                first[rows[1:]] &= (abs(np.diff(self._unit(side, rows), axis=0)) > 1e-4).any(axis=1)

        in_threads(compare, blocks(self.n, 1024))
        run = np.cumsum(first) - 1
        return np.asarray(1 / np.bincount(run)[run])

    def _bands(self, block: slice, part: int = 128) -> Iterator[tuple[slice, np.ndarray]]:
        """Parts of a block of rows, with their (b, 2 reach + 1) similarities at distances -reach to reach."""
        reach, first = self.reach, block.start
        rows = np.arange(first - reach, block.stop + reach)
        inside = np.clip(rows, 0, self.n - 1)
        images, texts = self._unit(0, np.arange(first, block.stop)), self._unit(1, inside)
        images[~self.usable[block]] = np.nan
        texts[(rows != inside) | ~self.usable[inside]] = np.nan
        for some in blocks(len(images), part):
            there = slice(some.start, some.stop + 2 * reach)
            S = images[some] @ texts[there].T  # (b, b + 2 reach)
            within = slice(first + some.start, first + some.stop)
            S -= self._level[0, within, None]
            S -= self._level[1, inside[there]]
            step, one = S.strides
            yield within, np.lib.stride_tricks.as_strided(S, (len(S), 2 * reach + 1), (step + one, one))

    def distances_that_beat_chance(self, false_alarm: float = 0.1, most: int = 64) -> np.ndarray:
        """Distances, rising, whose evidence over some run of rows exceeds that for "in place" by a bound.

        The bound would allow a ``false_alarm`` if no runs overlapped. They do, so it happens a hundred times less
        often. The part of distance k falls by 1 / k^2, since short distances are likelier. No row gives more than a
        fifth of the bound: a few captions that stand there by chance make no block. As many rows count as in place as
        there are pairs that fit better than random ones.
        """
        reach = self.reach
        far = np.maximum(abs(np.arange(-reach, reach + 1)), 1)
        bound = np.log(self.n / false_alarm * np.pi**2 / 3 * far**2)
        weights, in_place, parts = self._weights(), np.empty(self.n), list(blocks(self.n, 1024))
        s = cosines(*self._vectors) - self._level[:, self._some].sum(axis=0)
        least = np.quantile(s, np.clip(2 * np.mean(s < np.median(self.null)), 0, 1))
        # Of each part: the sum, the lowest and the highest sum from its start on, and the largest of a run within it.
        sums_of_parts = np.zeros((len(parts), 4, 2 * reach + 1))

        def add_up(block: slice) -> None:
            total, lowest, highest, gain = sums_of_parts[block.start // 1024]
            for rows, S in self._bands(block):
                missing, own = np.isnan(S), S[:, [reach]]
                E = np.minimum(np.where(missing, 0, self.evidence(S, local=True)), bound / 5)
                in_place[rows] = E[:, reach]
                own_evidence = np.where(own >= least, np.maximum(E[:, [reach]], 0), 0)
                sums = total + np.cumsum(np.where(missing, 0, E - own_evidence) * weights[rows, None], axis=0)
                low = np.minimum(np.minimum.accumulate(sums, axis=0), lowest)
                gain[:] = np.maximum(gain, (sums - low).max(axis=0))
                total[:], lowest[:], highest[:] = sums[-1], low[-1], np.maximum(highest, sums.max(axis=0))

        for some in blocks(len(parts), 32):
            in_threads(add_up, parts[some])
            current_progress().advance("displaced rows", "rows", parts[some][-1].stop, self.n)
        before, lowest, gain = np.zeros((3, 2 * reach + 1))
        for total, low, high, inside in sums_of_parts:  # a run may go on in the next part
            gain = np.maximum(gain, np.maximum(inside, before + high - lowest))
            before, lowest = before + total, np.minimum(lowest, before + low)
        gain[reach] = 0
        found = {int(k) - reach: gain[k] for k in np.flatnonzero(gain > bound)}
        for k in self._far_distances(in_place, list(found)):
            E = self.evidence(self.at(k))
            best = _largest_sums(np.where(np.isfinite(E), E - np.maximum(in_place, 0), 0) * weights).max()
            if best > bound[0]:
                found[k] = best
        return np.sort(sorted(found, key=lambda k: -found[k])[:most]).astype(np.int64)

    def _far_distances(self, in_place: np.ndarray, near: Sequence[int], queries: int = 1024) -> list[int]:
        """Distances beyond ``reach`` at which more nearest captions stand than chance explains.

        The queries are rows of the sample without evidence (n,) to be in place. Those come first where 16 rows
        on either side have no evidence for any distance: in place, or one of those ``near``.
        """
        from scipy.special import pdtrc

        queried, margin = np.flatnonzero(in_place[self._some] < 0), 16
        if not len(queried):
            return []
        ends = np.clip(self._some[queried, None] + [-margin, margin + 1], 0, self.n)
        away = np.ones(len(queried), bool)
        for evidence in (in_place, *(self.evidence(self.at(k)) for k in near)):
            away &= np.concatenate([[0], np.cumsum(evidence)])[ends] @ [-1, 1] < 0
        first = _evenly(queried[away], queries)
        queried = np.sort(np.concatenate([first, _evenly(queried[~away], queries - len(first))]))
        rows, query = self._some[queried], self._vectors[0][queried]
        parts = list(blocks(self.n, 2048))
        best, nearest = np.empty((len(parts), len(rows)), np.float32), np.empty((len(parts), len(rows)), np.int64)

        def search(block: slice) -> None:
            S = query @ self._unit(1, np.arange(block.start, block.stop)).T
            S[:, ~self.usable[block]] = -np.inf
            part, at = block.start // 2048, S.argmax(axis=1)
            best[part], nearest[part] = S[np.arange(len(rows)), at], block.start + at

        in_threads(search, parts)
        nearest = nearest[best.argmax(axis=0), np.arange(len(rows))]
        distance, count = np.unique(nearest - rows, return_counts=True)
        chance = pdtrc(count - 1, len(rows) / self.n) * 2 * self.n  # of so many or more, at any distance
        return [int(k) for k, p in zip(distance, chance, strict=True) if p < 1e-3 and abs(k) > self.reach][:32]


def _segmented(rows: _Rows, states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The state (n,) of each row, 0 for in place, and the probability (n,) that its pair in that state is right."""
    # Share of the rows in a block that look as if in place, since a model may know wrong pairs by heart. And of those
    # that are.
    astray = 0.01, 0.001
    S = np.column_stack([rows.at(0), *(rows.at(int(k)) for k in states)])  # (n, 1 + states)
    E = np.where(np.isnan(S), 0, rows.evidence(S))
    E[:, 1:][np.isnan(S[:, 1:])] = -3  # a block does not lead out of the file
    n, at = len(S), np.arange(len(S))
    share = np.array([0.5, 0.8])  # of matched rows in place, and in a block
    known, middle = np.isfinite(S), np.median(rows.null)
    state = np.zeros(n, np.int64)
    for _ in range(4):
        mixed = np.logaddexp(np.log(share[[0] + [1] * len(states)]) + E, np.log1p(-share[[0] + [1] * len(states)]))
        mixed[:, 1:] = np.logaddexp(mixed[:, 1:], np.log(astray[0]) + E[:, :1])
        state = _viterbi(mixed)
        for side, of in enumerate((state == 0, state > 0)):
            of = of & known[at, state]
            if not of.any():
                continue
            s, e = S[of, state[of]], E[of, state[of]]
            weight = 1 / (1 + np.exp(-(e + np.log(share[side] / (1 - share[side])))))
            # Half of the pairs that do not belong together lie below the median of random ones.
            share[side] = np.clip(1 - 2 * np.mean(s < middle), 0.05 if side == 0 else 0.3, 0.98)
            columns = [0] if side == 0 else list(range(1, 1 + len(states)))
            fitted = _log_ratio(s, weight, rows.null, S[:, columns])
            E[:, columns] = np.where(known[:, columns], fitted, E[:, columns])
    inside, there = state > 0, known[at, state]
    others = 1 - share[inside * 1] + np.where(inside, astray[1] * np.exp(E[:, 0]), 0)
    odds = np.where(there, share[inside * 1] * np.exp(E[at, state]) / others, 0.0)
    caption = np.clip(at + np.concatenate([[0], states])[state], 0, n - 1)  # which one image has, where two ask for it
    return state, odds / (1 + np.bincount(caption, odds, n)[caption])


def _log_ratio(matched: np.ndarray, weight: np.ndarray, null: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Log density ratio of weighted ``matched`` and ``null`` similarities: a logistic regression, even in both.

    It is a parabola, of which only the side that rises counts: what fits worse is no better evidence.
    """
    from sklearn.linear_model import LogisticRegression

    def features(s: np.ndarray) -> np.ndarray:
        z = (np.nan_to_num(s) - null.mean()) / max(null.std(), 1e-12)
        return np.stack([z, 0.1 * z**2], axis=-1)

    weights = np.concatenate([weight / weight.sum(), np.full(len(null), 1 / len(null))]) * len(matched)
    model = LogisticRegression(C=10.0).fit(
        features(np.concatenate([matched, null])), np.repeat([1, 0], [len(matched), len(null)]), weights
    )
    slope, bend = model.coef_[0]
    at = (np.maximum if bend > 0 else np.minimum)(at, null.mean() - 5 * null.std() * slope / bend)  # the vertex
    return np.clip(model.decision_function(features(at.ravel())).reshape(at.shape), -6, 6)


def _evenly(rows: np.ndarray, most: int) -> np.ndarray:
    """At most so many of the rows, at even distances."""
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)]


def _largest_sums(x: np.ndarray) -> np.ndarray:
    """The largest sum (n,) over a run of rows in which each row lies."""
    total = np.concatenate([[0], np.cumsum(x)])
    return np.asarray(np.maximum.accumulate(total[::-1])[::-1][1:] - np.minimum.accumulate(total)[:-1])


def _viterbi(emission: np.ndarray, change: float = 1e-4, end: float = 1e-3, *, most: int = 8) -> np.ndarray:
    """The likeliest states (n,): a row changes its state with probability ``change``, and ends a block with ``end``.

    A block is worth more than its end costs. Rows that lie in no such run are in place, and only their first and last
    ones are looked at. With more than ``most`` states these are not cut into chunks.
    """
    inside = _largest_sums(emission[:, 1:].max(axis=1) - emission[:, 0]) > -np.log(end) - 1
    rows = np.flatnonzero(np.convolve(inside, [1, 1, 1], "same"))
    emission = np.where(inside[rows, None] | (np.arange(emission.shape[1]) == 0), emission[rows], -np.inf)
    states = np.zeros(len(inside), np.int64)
    n, k = emission.shape
    if not n:
        return states
    move = np.full((k, k), np.log(change / k))
    move[1:, 0] = np.log(end)
    np.fill_diagonal(move, np.log1p(-end))
    # Chunks go on together, from the scores at their starts. These follow from each chunk's scores, state by state.
    chunks = 1 if k > most else int(np.sqrt(n))
    length = -(-n // chunks)
    parts = np.concatenate([emission, np.zeros((chunks * length - n, k))]).reshape(chunks, length, k).transpose(1, 2, 0)

    def through(score: np.ndarray, emission: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The scores (k, b) after the rows (m, k, chunks), tiled to b columns, and the state (m, k, b) before each."""
        back = np.empty((len(emission), *score.shape), np.int16)
        for i, row in enumerate(emission):
            ways = score[:, None] + move[:, :, None]
            back[i] = ways.argmax(axis=0)
            score = ways.max(axis=0) + np.tile(row, score.shape[1] // chunks)
        return score, back

    starts = np.full((k, chunks), -np.inf)
    starts[0, 0] = 0  # before the first row all is in place
    if chunks > 1:
        alone = np.repeat(np.where(np.eye(k), 0, -np.inf), chunks, axis=1)
        gain = through(alone, parts)[0].reshape(k, k, chunks)  # to, from
        for c in range(1, chunks):
            starts[:, c] = (starts[:, c - 1] + gain[:, :, c - 1]).max(axis=1)
    score, back = through(starts, parts)
    before, path = back.transpose(2, 0, 1).ravel().tolist(), [int(score[:, -1].argmax())]
    for i in range(chunks * length - 1, 0, -1):
        path.append(before[i * k + path[-1]])
    states[rows] = path[: -n - 1 : -1]
    return states
