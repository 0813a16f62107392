"""A review: the pairs of a run with its plan, in the order in which to ask about them, and what was decided."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import ArrayLike
from scipy.special import expit, logit

from cleanpairs.audit.sample import AuditSample
from cleanpairs.audit.sheet import labels_table, read_labels
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.correspondence.calibration import UNDETERMINED, Estimate
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.display import visible
from cleanpairs.data.pairs import Pairs
from cleanpairs.explain import Explainer
from cleanpairs.repair.actions import ACTIONS, REMATCHED, REPAIRED
from cleanpairs.repair.editing import JUDGED, followed, write_csv
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.review.log import CHOICES, Decision, DecisionLog, is_text

EVERY = 25  # decisions after which it estimates anew, and asks in another order
AT_RANDOM = 10  # one in so many is asked at random
DONORS, LENDERS = 5, 50_000  # of those that are flagged, and then of the others
SLACK = 1.5  # times the goal: where the upper end of the interval has to be
NEARLY = 0.9  # of the pairs around the threshold, that an audit takes for all of them
DIGITS = 4  # of an edge between strata
LONGEST = 10_000  # characters of a caption that somebody types
SHORT, LONG = 140, 2_000  # characters shown in the list, and of the pair itself
REASON = "decided in a review"
KEEP, QUARANTINE = ACTIONS.index("keep"), ACTIONS.index("quarantine")
PLANS = [ACTIONS.index(name) for name in REPAIRED]
EDGE = 0.002  # no score is surer
PRIOR = (0.7, 0.5, 0.7)  # deviations of a, log b and log c where the score is a probability
WIDE = (2.0, 1.0, 1.0)
DRAWS = 400
BINS = 256


class Review:
    """What the page shows and does.

    - ``plan`` of N ``pairs``: what it says holds where nobody decides
    - ``correspondence`` (N,) float: NaN where quarantined; ``probability``: it is a calibrated one
    - ``explainer``: gives evidence and, where images and captions lie in one space, the captions that fit best
    - ``goal``: share of mismatched pairs to get below
    """

    def __init__(
        self, pairs: Pairs, plan: RepairPlan, correspondence: np.ndarray, log: DecisionLog, *,
        explainer: Explainer | None = None, probability: bool = False, goal: float = 0.02, random_state: int = 0,
    ) -> None:  # fmt: skip
        self.pairs, self.plan, self.log, self.explainer, self.goal = pairs, plan.check_for(pairs), log, explainer, goal
        self._seed = random_state
        table = self.plan.table
        self.y = np.asarray(correspondence, np.float64)
        codes = pc.index_in(table["action"], pa.array(ACTIONS)).to_numpy(zero_copy_only=False)
        self.planned = np.asarray(codes, np.int64)
        self.confidence = table["confidence"].fill_null(0.5).to_numpy(zero_copy_only=False).astype(np.float64)
        self.known = np.isfinite(self.y) & (self.planned != QUARANTINE)
        self.flagged = self.known & (self.y < plan.threshold)
        self._probability = probability
        words = (f"{c or ''}\n{k}".lower() for c, k in zip(pairs.captions, pairs.keys, strict=True))
        self._words = pa.array(words, pa.large_string())
        _, self._text, count = np.unique(pairs.text_group, return_inverse=True, return_counts=True)
        self._by_text = np.lexsort((self._text, -count[self._text]))  # in order of pairs, where texts are equal
        self.action, self.decided = self.planned.copy(), np.zeros(len(pairs), bool)
        self._asked: dict[int, Decision] = {}
        self._round = -1
        self._hold(list(log.decided()))

    def refresh(self) -> None:
        """Take in what other pages have decided."""
        self._hold(self.log.refresh())

    def decide(
        self, pairs: Sequence[int], action: str, *, donor: int | None = None, caption: str | None = None,
        page: str = "", sort: str = "",
    ) -> Decision:  # fmt: skip
        """Write a decision about some pairs; of a single one it is a label, where its words did not matter in the order
        ``sort`` in which it was come to. Raises ConfigError: it cannot be; OutputError: it could not be written.
        """
        ids, donor = [int(i) for i in pairs], donor if action in REMATCHED else None
        caption = " ".join((caption or "").split()) if action == "recaption" else None
        if not ids or not all(map(self._known, ids)):
            raise ConfigError("a decision is about pairs that there are, and that are not quarantined")
        if action not in CHOICES:
            raise ConfigError(f"there is no decision {action!r}")
        if action in REMATCHED and (donor is None or not self._known(donor) or donor in ids):
            raise ConfigError("a part is taken from another pair, which is not quarantined")
        if caption is not None and not 0 < len(caption) <= LONGEST:
            raise ConfigError(f"a caption has 1 to {LONGEST:,} characters")
        if caption is not None and not is_text(caption):
            raise ConfigError("the caption holds half of a character (a lone surrogate): type it anew")
        label = len(ids) == 1 and sort in ("asked", "score", "-score", "pair")
        drawn = label and sort == "asked" and ids[0] in self._chance
        made = self.log.decide(ids, action, donor=donor, caption=caption, page=page, asked=label, drawn=drawn)
        self._hold(ids)
        return made

    def _known(self, i: int) -> bool:
        return 0 <= i < len(self.pairs) and bool(self.known[i])

    def decide_alike(self, found: Sequence[int] | np.ndarray, action: str, page: str = "") -> Decision | None:
        """One decision, keep or drop, about those of the pairs that nobody has decided yet; None: there is none."""
        ids = np.asarray(found, np.int64)
        ids = ids[self.known[ids] & ~self.decided[ids]]
        if action not in ("keep", "drop"):
            raise ConfigError(f"many pairs are kept or dropped at once, and not {action!r}")
        return self.decide(ids.tolist(), action, page=page) if len(ids) else None

    def undo(self, page: str = "", opened: int = 0) -> Decision | None:
        """Take back this page's last decision; see :meth:`DecisionLog.undo`."""
        made = self.log.undo(page, opened)
        if made is not None:
            self._hold(made.pairs)
        return made

    def alike(self, pair: int) -> np.ndarray:
        """The pairs (k,) with the caption of this one."""
        return np.flatnonzero(self._text == self._text[pair])

    def listing(self, show: str = "undecided", sort: str = "asked", query: str = "") -> np.ndarray:
        """The pairs (k,) that are shown, in order; ``query``: words that caption or key hold. Raises KeyError: there is
        no such ``show`` or ``sort``.
        """
        chosen = self.known & {
            "undecided": ~self.decided, "flagged": self.flagged, "repaired": np.isin(self.planned, PLANS),
            "kept": self.planned == KEEP, "decided": self.decided, "all": self.known,
        }[show]  # fmt: skip
        for word in query.lower().split():
            chosen = chosen & pc.match_substring(self._words, word).to_numpy(zero_copy_only=False)
        ids = {
            "asked": lambda: self._order, "caption": lambda: self._by_text, "pair": lambda: np.arange(len(chosen)),
            "score": lambda: np.argsort(self.y, kind="stable"), "-score": lambda: np.argsort(-self.y, kind="stable"),
        }[sort]()  # fmt: skip
        return np.asarray(ids[chosen[ids]])

    def rows(self, ids: np.ndarray) -> list[dict[str, Any]]:
        """Short descriptions of pairs (k,), for the list."""
        return [
            {
                "pair": i, "key": visible(self.pairs.keys[i], 80), "caption": visible(self.pairs.captions[i], SHORT),
                "score": round(float(self.y[i]), 3), "plan": ACTIONS[self.planned[i]],
                "action": ACTIONS[self.action[i]], "decided": bool(self.decided[i]),
            }
            for i in ids.tolist()
        ]  # fmt: skip

    def pair(self, i: int) -> dict[str, Any]:
        """All of one pair: evidence, what is planned, other captions that it could have."""
        if not self._known(i):
            raise ConfigError(f"there is no pair {i} to be reviewed")
        made, row = self.log.of(i), self.plan.table.slice(i, 1).to_pylist()[0]
        found: dict[str, Any] = self.rows(np.array([i]))[0] | {
            "caption": visible(self.pairs.captions[i], LONG), "raw": (self.pairs.captions[i] or "")[:LONGEST],
            "reason": row["reason"], "matched": round(float(self.matched.probability[i]), 3), "flagged":
            bool(self.flagged[i]), "alike": int((self.known & ~self.decided)[self.alike(i)].sum()),
            "decision": None if made is None else {"action": made.action, "donor": made.donor, "caption": made.caption},
        }  # fmt: skip
        found["options"] = self.options(i)
        if self.explainer is not None:
            e = self.explainer.explain([i])[0]
            found |= {"why": e.why, "unsupported": e.unsupported, "expected": e.expected} | {
                name: [{**asdict(n), "caption": visible(n.caption)} for n in getattr(e, name)]
                for name in ("similar_images", "similar_captions")
            }
        return found

    def options(self, i: int) -> list[dict[str, Any]]:
        """What pair i could become: the plan's repair, if it has one, and the captions of other pairs that fit best."""
        row = self.plan.table.slice(i, 1).to_pylist()[0]
        options: list[dict[str, Any]] = []
        if row["action"] in REPAIRED:
            planned = {"action": row["action"], "donor": row["donor_pair_id"], "raw": row["caption"], "planned": True}
            options.append(planned | {"caption": visible(row["caption"], LONG)})
        if self.explainer is None:
            return options
        lenders, texts = self._lenders
        asked = self.explainer.vectors(np.array([i]))[0]
        if asked.shape[1] != texts.shape[1]:  # two spaces
            return options
        group = self.pairs.pair_image_group
        has = set(self._text[group == group[i]].tolist())  # captions of this image in the data
        fit = texts @ asked[0]
        near = np.argpartition(-fit, min(DONORS + len(has), len(fit) - 1))[: DONORS + len(has)]
        near = lenders[near[np.argsort(-fit[near], kind="stable")]]
        captions = {option["caption"] for option in options} | {visible(self.pairs.captions[i], LONG)}
        for j in near[~np.isin(self._text[near], list(has))][:DONORS].tolist():
            caption = visible(self.pairs.captions[j], LONG)
            if caption not in captions:
                options.append({"action": "rematch_text", "donor": j, "caption": caption})
        return options

    @cached_property
    def _lenders(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each text one pair, a flagged one where there is one; and their vectors (k, d)."""
        assert self.explainer is not None
        ids = np.flatnonzero(self.known)
        ids = ids[np.argsort(~self.flagged[ids], kind="stable")]
        ids = ids[np.sort(np.unique(self._text[ids], return_index=True)[1])][:LENDERS]
        return ids, np.asarray(self.explainer.vectors(ids)[1], np.float32)

    def progress(self) -> dict[str, Any]:
        """What is done, what was estimated last, and what is still to do."""
        left = self.known & ~self.decided
        return {
            "decided": int(self.decided.sum()), "pairs": int(self.known.sum()), "asked": len(self._asked),
            "flagged": [int((left & self.flagged).sum()), int(self.flagged.sum())],
            "repaired": [int((left & np.isin(self.planned, PLANS)).sum()), int(np.isin(self.planned, PLANS).sum())],
            "again": EVERY - len(self._asked) % EVERY, "round": self._round, "goal": self.goal,
            "precision": _shown(self.precision), "wrong": _shown(self.wrong), "rest": self.rest,
            "damaged": self.log.damaged,
        }  # fmt: skip

    def _hold(self, pairs: Sequence[int]) -> None:
        for i in set(pairs):
            made = self.log.of(i)
            self.action[i], self.decided[i] = self.planned[i], made is not None
            self._asked.pop(i, None)
            if made is not None:
                self.action[i] = ACTIONS.index(made.action)
                if made.asked:
                    self._asked[i] = made
        done = pairs and not (self.known & ~self.decided).any()
        if len(self._asked) // EVERY != self._round or len(pairs) >= EVERY or done:
            self._estimate()

    def _estimate(self) -> None:
        """Learn from the answers; share of mismatched pairs among the flagged and the written ones; what to ask."""
        self._round = len(self._asked) // EVERY
        at = np.array(sorted(self._asked), np.int64)
        right = np.array([self._asked[i].action == "keep" for i in at.tolist()], bool)
        y = np.where(self.known, self.y, np.nan)
        self.matched = Matched(y, self.plan.threshold, self._probability, (at, right))
        left, repaired = self.known & ~self.decided, np.isin(self.action, PLANS)
        done = self.flagged & self.decided
        self.precision: Estimate = self.matched.mismatched(
            np.flatnonzero(self.flagged & left), int(done.sum()), int((done & (self.action != KEEP)).sum())
        )
        p = np.nan_to_num(self.matched.probability)
        error = np.where(repaired, 1 - self.confidence, np.where(self.action == KEEP, 1 - p, p))
        error[~left] = 0
        written, kept = self.known & (repaired | (self.action == KEEP)), left & (self.action == KEEP)
        unsure = error[left & repaired]
        spread = float((unsure * (1 - unsure)).sum() + (unsure.sum() / 2) ** 2)  # their confidence may be off, too
        others = int(written.sum() - kept.sum())
        self.wrong: Estimate = self.matched.mismatched(np.flatnonzero(kept), others, float(unsure.sum()), spread)
        here = np.flatnonzero(written & left)
        here = here[np.argsort(-error[here], kind="stable")]
        mended = np.append(0, np.cumsum(error[here]))
        after = (mended[-1] - mended) / np.maximum(written.sum() - mended, 1)
        safe = self.goal * min(1.0, SLACK * self.wrong.value / self.wrong.high) if self.wrong.high > 0 else self.goal
        needed = {share: int(np.argmax(after <= share)) for share in (self.goal, safe)}
        first = here[: needed[safe]]
        self.rest = round((needed[self.goal] or needed[safe]) * AT_RANDOM / (AT_RANDOM - 1))
        left[first] = False
        then = np.flatnonzero(left)
        doubtful = np.concatenate([first, then[np.argsort(-error[then], kind="stable")]])
        rng = np.random.default_rng([self._seed, self._round])
        chance = rng.permutation(doubtful)[: len(doubtful) // AT_RANDOM]
        place = np.concatenate([np.arange(len(doubtful)), AT_RANDOM * np.arange(1, len(chance) + 1) - 1.5])
        order = np.argsort(place, kind="stable")
        asked, first_at = np.unique(np.concatenate([doubtful, chance])[order], return_index=True)
        self._chance = set(asked[order[first_at] >= len(doubtful)].tolist())
        rest = np.flatnonzero(~self.known | self.decided)
        self._order = np.concatenate([asked[np.argsort(first_at)], rest[np.argsort(self.y[rest], kind="stable")]])

    def edited(self) -> RepairPlan:
        """The plan with what was decided in it."""
        table, held = self.plan.table, self.log.decided()
        at = np.array(sorted(held), np.int64)
        if not len(at):
            return self.plan
        rows = []
        for row in table.take(pa.array(at)).to_pylist():
            made = held[row["pair_id"]]
            if (row["action"], row["donor_pair_id"]) != (made.action, made.donor):
                row |= dict.fromkeys(JUDGED)
            row |= {"action": made.action, "donor_pair_id": made.donor, "donor_key": None, "caption": made.caption}
            rows.append(row | {"reason": REASON})
        others = table.filter(pa.array(~np.isin(np.arange(len(table)), at)))
        edited = pa.concat_tables([others, pa.Table.from_pylist(rows, table.schema)]).sort_by("pair_id")
        return replace(self.plan, table=followed(edited))

    def labels(self) -> AuditSample | None:
        """The answers as labels of an audit, or None: around the threshold, where nearly all were asked, all of them;
        elsewhere those drawn at random alone: where the doubtful ones come first, the others are not like them.
        """
        at, cut = np.array(sorted(self._asked), np.int64), self.plan.threshold
        ids = np.flatnonzero(self.known)
        ids = ids[np.argsort(self.y[ids], kind="stable")]
        y, asked = self.y[ids], np.isin(ids, at)
        first = int(np.searchsorted(y, cut))
        low, high = first - _front(asked[:first][::-1]), first + _front(asked[first:])
        ends = [*y[low : low + 1], cut, *y[high : high + 1]]  # as a CSV shows them
        ends = [cut, *np.floor(np.array(ends) * 10**DIGITS) / 10**DIGITS]
        lowest, highest = min(ends), max(ends) if high < len(y) else 1.0
        drawn = np.array([self._asked[i].drawn for i in at.tolist()], bool)
        at = at[drawn | ((self.y[at] >= lowest) & (self.y[at] < highest)) if low < high else drawn]
        if not len(at):
            return None
        edges = np.unique([0.0, lowest, cut, highest, 1.0])
        matched = np.array([float(self._asked[i].action == "keep") for i in at.tolist()])
        return AuditSample.of(at, edges, np.where(self.known, self.y, np.nan), matched)

    def write(self, folder: str | Path) -> dict[str, Any]:
        """Write ``plan.parquet`` and ``labels.csv``, for `export --plan` and `audit --labels`; what was before goes."""
        folder = Path(folder)
        plan, labels = folder / "plan.parquet", folder / "labels.csv"
        edited = self.edited()
        edited.save(plan, overwrite=True)
        sample = self.labels()
        if sample is not None:
            asked = {i for made in self.log.decisions if made.asked for i in made.pairs}
            with suppress(DataError):  # a label by hand that no decision stands for is kept
                before = read_labels(labels, keys=self.pairs.keys, correspondence=self.y)
                if asked >= set(before.pair_id[before.labelled].tolist()):
                    labels.unlink()
            with staged_file(labels, overwrite=True) as staged:
                write_csv(labels_table(sample, self.pairs, [None] * len(sample)), staged)
        counts = edited.summary()
        return {
            "plan": str(plan), "labels": None if sample is None else str(labels), "decided": int(self.decided.sum()),
            "kept": counts.kept, "repaired": counts.repaired, "dropped": counts.dropped,
        }  # fmt: skip


def _front(asked: np.ndarray) -> int:
    """How many of the first (k,) bool nearly all are."""
    share = np.cumsum(asked) / np.arange(1, len(asked) + 1)
    ends = np.flatnonzero(asked & (share >= NEARLY))
    return int(ends[-1]) + 1 if len(ends) else 0


def _shown(share: Estimate) -> list[float] | None:
    return None if np.isnan(share.value) else [share.value, share.low, share.high]


class Matched:
    r"""P(matched) of N pairs after some ``labels``: pairs (k,) that were asked about, and whether they are matched.

    logit P(matched | x) = a + b max(x, 0) + c min(x, 0), x the logit of the correspondence (N,) where that is a
    ``probability``, else of its rank less the threshold's; a, log b and log c have normal priors around 0, narrower
    where it is, but for c: right pairs that look like any mismatched one are what such probabilities know least about.
    So a higher score is never a worse one. The posterior is approximated by a normal one (Laplace), and shares by draws
    of it and the luck of so many pairs.

    Source: D. MacKay, The evidence framework applied to classification networks, Neural Computation 4, 1992.
    """

    def __init__(
        self, correspondence: ArrayLike, threshold: float, probability: bool, labels: tuple[np.ndarray, np.ndarray]
    ) -> None:
        y = np.asarray(correspondence, np.float64)
        known, scores = np.isfinite(y), [y, np.array(0.5)]
        if not probability:  # ranks, so that the threshold is where neither is likelier
            order = np.sort(y[known])
            scores = [(np.searchsorted(order, v) + 0.5) / (len(order) + 1) for v in (y, np.array(threshold))]
        odds, middle = (logit(np.clip(v, EDGE, 1 - EDGE)) for v in scores)
        x = np.where(known, odds - middle, 0.0)
        pairs, matched = labels
        scale = np.array(PRIOR if probability else WIDE)
        X, t = _features(x[pairs]), np.asarray(matched, np.float64)
        found = np.zeros(3)  # a, log b, log c
        for _ in range(100):
            theta = _weights(found)
            p, J = expit(X @ theta), X * np.array([1.0, theta[1], theta[2]])
            slope = J.T @ (t - p) - found / scale**2
            curve = (J.T * (p * (1 - p))) @ J + np.diag(1 / scale**2)
            step = np.linalg.solve(curve, slope)
            found = found + step / max(1.0, float(np.abs(step).max()))
            if np.abs(step).max() < 1e-8:
                break
        self.theta = _weights(found)
        self._draws = _weights(np.random.default_rng(0).multivariate_normal(found, np.linalg.inv(curve), DRAWS))
        edges = np.unique(np.quantile(x[known], np.linspace(0, 1, BINS + 1))) if known.any() else np.zeros(1)
        self._bin = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 1)
        size = np.maximum(np.bincount(self._bin[known], minlength=len(edges)), 1)
        self._x = np.bincount(self._bin[known], weights=x[known], minlength=len(edges)) / size
        self.probability = np.where(known, expit(_features(x) @ self.theta), np.nan)

    def mismatched(self, among: np.ndarray, others: int = 0, wrong: float = 0, spread: float = 0) -> Estimate:
        """Share of mismatched pairs among ``among`` (k,), not yet decided, and ``others``; of those ``wrong`` are, a
        number with the variance ``spread``.
        """
        total = len(among) + others
        if not total:
            return UNDETERMINED
        count = np.bincount(self._bin[among], minlength=len(self._x))
        p = 1 - expit(self._draws @ _features(self._x).T)  # (B, bins)
        luck = np.random.default_rng(1).normal(size=DRAWS)
        found = p @ count + luck * np.sqrt((p * (1 - p)) @ count + spread)
        value = float((1 - self.probability[among]).sum()) + wrong
        low, high = np.quantile(np.clip(found + wrong, 0 if spread else wrong, len(among) + wrong), [0.025, 0.975])
        return Estimate(value / total, min(float(low), value) / total, max(float(high), value) / total)


def _weights(found: np.ndarray) -> np.ndarray:
    """a, b and c (..., 3) of a and the logarithms of the others."""
    return np.concatenate([found[..., :1], np.exp(found[..., 1:])], axis=-1)


def _features(x: np.ndarray) -> np.ndarray:
    return np.stack([np.ones_like(x), np.maximum(x, 0), np.minimum(x, 0)], axis=1)
