"""One labelling session: its questions, what is known of each pair, and how the answers change the plan."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from functools import cached_property
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cleanpairs.audit import AuditSample, next_questions
from cleanpairs.core import ConfigError
from cleanpairs.correspondence.calibration import UNDETERMINED, Calibration, Estimate
from cleanpairs.data import Pairs, visible
from cleanpairs.explain import Explainer
from cleanpairs.repair.actions import KINDS, REMATCHED, REPAIRED
from cleanpairs.repair.editing import JUDGED, followed
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.review.log import CHOICES, Decision, DecisionLog, can_be_written


class Session:
    """Questions about the pairs of a run, and their answers.

    Parameters
    ----------
    pairs : Pairs
        N pairs.

    plan : RepairPlan
        What holds where nobody decides.

    correspondence : ndarray of float, shape (N,)
        NaN where quarantined.

    log : DecisionLog
        Every answer is written there before it counts.

    sample : AuditSample, optional
        Ask about its pairs only, in its order. Without a plan scores are hidden, and an answer is a label.

    explainer : Explainer, optional
        It gives evidence, and captions of other pairs that fit.

    calibration : Calibration, optional
        The run's. It gives the share of mismatched pairs among those that are kept.

    first : sequence of int
        Pairs that a review begins with.

    wanted : int
        Without a plan and a sample: ask about the pairs whose labels tell most, until there are so many labels.

    saved : float
        When the labels of the sample were written, in seconds since 1970. An answer that is later than that holds.
    """

    def __init__(
        self, pairs: Pairs, plan: RepairPlan | None, correspondence: np.ndarray, log: DecisionLog, *,
        sample: AuditSample | None = None, explainer: Explainer | None = None, calibration: Calibration | None = None,
        wanted: int = 0, first: Sequence[int] = (), saved: float = 0.0,
    ) -> None:  # fmt: skip
        self.pairs, self.log, self.sample, self.explainer, self.calibration = pairs, log, sample, explainer, calibration
        self.wanted, self.blind, self._next, self.first = wanted, plan is None, list[int](), list(first)
        self.y = np.asarray(correspondence, np.float64)
        self.known = np.isfinite(self.y)
        self.plan, self.planned = None, np.full(len(pairs), "keep", object)
        if plan is not None:
            self.plan = plan.check_for(pairs)
            self.planned = np.array(self.plan.table["action"].to_pylist(), object)
            self.known &= self.planned != "quarantine"
        if sample is not None:
            self.known = np.isin(np.arange(len(pairs)), sample.pair_id)
            self.take_labels(sample, saved)

    def take_labels(self, sample: AuditSample, saved: float) -> None:
        """Take the labels of a sample, which a spreadsheet may have, as answers. ``saved``: as of the class."""
        labels = dict(zip(sample.pair_id.tolist(), sample.matched.tolist(), strict=True))
        self.log.label({i: label == 1 for i, label in labels.items() if label in (0, 1) and self._is_new(i, saved)})

    def _is_new(self, pair: int, saved: float) -> bool:
        """Whether a label of the sample counts. An answer that was taken back is as late as the log's last line."""
        if not any(made.drawn for made in self.log.about(pair)):
            return True
        if (label := self.log.of(pair, drawn=True)) is None:
            last = self.log.path.stat().st_mtime
        else:
            last = datetime.fromisoformat(label.time).timestamp() if label.time else 0
        return saved >= last + 1  # times of answers are in whole seconds

    @property
    def answered(self) -> np.ndarray:
        """Which pairs have an answer, (N,) bool."""
        held = self.log.labels() if self.blind else self.log.decided()
        return np.isin(np.arange(len(self.y)), list(held))

    # -- questions

    def queue(self, show: str = "flagged", words: str = "") -> np.ndarray:
        """Return the pairs to ask about, in order.

        Parameters
        ----------
        show : str
            With "flagged", planned repairs come first, then the flagged pairs from the threshold down. With "kept",
            pairs come from the threshold up. With "lowest", they come by score. In the order of the data come
            "repaired", "repeated" (captions of several pairs), "answered" and "all".
        words : str
            Only pairs whose caption or key holds each of these words.

        Returns
        -------
        ndarray of int, shape (k,)
            The pairs.

        Raises
        ------
        KeyError
            There is no such `show`.
        """
        if self.sample is not None:
            return self.sample.pair_id
        if self.plan is None:
            return self._next_pairs()
        upward = np.argsort(self.y, kind="stable")
        repaired = np.isin(self.planned, REPAIRED)
        flagged = self.y < self.plan.threshold
        in_order, urgent = np.arange(len(self.y)), repaired.astype(float)
        urgent[self.first] = 1 + np.arange(len(self.first), 0, -1)
        _, text, sizes = np.unique(self.pairs.text_group, return_inverse=True, return_counts=True)
        order, chosen = {
            "flagged": (upward[::-1][np.argsort(-urgent[upward[::-1]], kind="stable")], flagged | (urgent > 0)),
            "kept": (upward, self.planned == "keep"),
            "lowest": (upward, self.known),
            "repaired": (in_order, repaired),
            "repeated": (np.lexsort((text, -sizes[text])), sizes[text] > 1),
            "answered": (in_order, self.answered),
            "all": (in_order, self.known),
        }[show]
        chosen = chosen & self.known
        for word in words.lower().split():
            chosen &= pc.match_substring(self._words, word).to_numpy(zero_copy_only=False)
        return np.asarray(order[chosen[order]], np.int64)

    def _next_pairs(self, batch: int = 5) -> np.ndarray:
        """Return the labelled pairs, and those that are to be labelled next."""
        labels = self.log.labels()
        self._next = [i for i in self._next if i not in labels]
        if not self._next and len(labels) < self.wanted:
            answers = {i: label for i, label in labels.items() if label is not None}
            self._next = next_questions(self.y, answers, min(batch, self.wanted - len(labels)), seen=list(labels))
        return np.array([*labels, *self._next], np.int64)

    @cached_property
    def _words(self) -> pa.Array:
        lines = zip(self.pairs.captions, self.pairs.keys, strict=True)
        return pa.array([f"{caption or ''}\n{key}".lower() for caption, key in lines], pa.large_string())

    def question(self, pair: int) -> dict[str, Any]:
        """Return what the page shows of a pair. In an audit that is the caption, the key and the answer."""
        i = self._checked(pair)
        made = self.log.of(i, drawn=self.blind)
        question: dict[str, Any] = {
            "pair": i, "key": visible(self.pairs.keys[i], 80), "caption": visible(self.pairs.captions[i], 2_000),
            "answer": None if made is None else {"action": made.action, "donor": made.donor, "caption": made.caption},
        }  # fmt: skip
        if self.plan is None:
            return question
        row = self.plan.table.slice(i, 1).to_pylist()[0]
        question |= {
            "raw": self.pairs.captions[i] or "", "score": round(float(self.y[i]), 3), "plan": row["action"],
            "flagged": bool(self.y[i] < self.plan.threshold), "options": self.options(i),
            "reason": None if row["reason"] in KINDS else row["reason"],
            "alike": int((self.known & ~self.answered)[self.alike(i)].sum()),
        }  # fmt: skip
        if self.explainer is not None:
            evidence = self.explainer.explain([i])[0]
            question |= {"why": evidence.why, "unsupported": evidence.unsupported} | {
                name: [{**asdict(n), "caption": visible(n.caption)} for n in getattr(evidence, name)]
                for name in ("similar_images", "similar_captions")
            }
        return question

    def options(self, pair: int) -> list[dict[str, Any]]:
        """Return the repairs of a pair: the planned one first, then captions of other pairs that fit best."""
        assert self.plan is not None
        row, options = self.plan.table.slice(pair, 1).to_pylist()[0], list[dict[str, Any]]()
        if row["action"] in REPAIRED:
            options.append({"action": row["action"], "donor": row["donor_pair_id"], "raw": row["caption"]})
            options[0] |= {"planned": True, "caption": visible(row["caption"], 2_000)}
        if self.explainer is None:
            return options
        image, (donors, texts) = self.explainer.vectors(np.array([pair]))[0], self._donors
        if image.shape[1] != texts.shape[1]:  # images and captions have spaces of their own
            return options
        group, text = self.pairs.pair_image_group, self.pairs.text_group
        own = set(text[group == group[pair]].tolist())  # captions of this image in the data
        most, fit = 5 + len(own), texts @ image[0]
        near = np.argpartition(-fit, min(most, len(fit) - 1))[:most]
        near = donors[near[np.argsort(-fit[near], kind="stable")]]
        listed = {option["caption"] for option in options} | {visible(self.pairs.captions[pair], 2_000)}
        for j in near[~np.isin(text[near], list(own))][:5].tolist():
            caption = visible(self.pairs.captions[j], 2_000)
            if caption not in listed:
                options.append({"action": "rematch_text", "donor": j, "caption": caption})
        return options

    @cached_property
    def _donors(self) -> tuple[np.ndarray, np.ndarray]:
        """One pair of each caption, a flagged one if there is one, and the captions' vectors (k, d)."""
        assert self.explainer is not None and self.plan is not None
        ids = np.flatnonzero(self.known)
        ids = ids[np.argsort(self.y[ids] >= self.plan.threshold, kind="stable")]
        ids = ids[np.sort(np.unique(self.pairs.text_group[ids], return_index=True)[1])][:50_000]
        return ids, np.asarray(self.explainer.vectors(ids)[1], np.float32)

    def alike(self, pair: int) -> np.ndarray:
        """Return the pairs (k,) with the caption of this one."""
        return np.flatnonzero(self.pairs.text_group == self.pairs.text_group[self._checked(pair)])

    def _checked(self, pair: int) -> int:
        if isinstance(pair, bool) or not (0 <= (i := index(pair)) < len(self.pairs) and self.known[i]):
            raise ConfigError(f"there is no pair {pair}, or it is quarantined")
        return i

    # -- answers

    def answer(self, pair: int, action: str, *, donor: int | None = None, caption: str | None = None) -> Decision:
        """Write the answer about one pair.

        Parameters
        ----------
        pair : int
            Which pair.

        action : str
            "keep" (the caption belongs), "drop" (it does not), "unsure", or a repair.

        donor : int, optional
            The lender of the caption ("rematch_text") or of the image ("rematch_image").

        caption : str, optional
            The typed caption ("recaption").

        Raises
        ------
        ConfigError
            There is no such pair, action or donor, or the caption cannot be written.
        OutputError
            The log cannot be written.
        """
        i, donor = self._checked(pair), self._checked(donor) if action in REMATCHED and donor is not None else None
        if action not in (CHOICES if self.plan is not None else ("keep", "drop", "unsure")):
            raise ConfigError(f"there is no answer {action!r} to this question")
        if action in REMATCHED and donor in (None, i):
            raise ConfigError("the caption, or the image, is taken from another pair: which one?")
        if action != "recaption":
            caption = None
        elif not (isinstance(caption, str) and 0 < len(caption := " ".join(caption.split())) <= 10_000):
            raise ConfigError("a caption has 1 to 10,000 characters")
        elif not can_be_written(caption):
            raise ConfigError("the caption holds half of a character (a lone surrogate), or a NUL: type it anew")
        return self.log.decide([i], action, donor=donor, caption=caption, drawn=self.blind)

    def answer_all(self, pairs: np.ndarray, action: str) -> Decision | None:
        """One decision, "keep" or "drop", about the pairs that nobody has answered, if there are any."""
        if action not in ("keep", "drop") or self.plan is None:
            raise ConfigError(f"many pairs are kept or dropped at once, and not {action!r}")
        ids = pairs[self.known[pairs] & ~self.answered[pairs]]
        return self.log.decide(ids.tolist(), action) if len(ids) else None

    def undo(self, name: str) -> Decision | None:
        """Take back the decision of that name. None where no such decision holds."""
        made = self.log.undo(name)
        self._next = list(dict.fromkeys([*self._next, *(made.pairs if made else ())]))  # they are asked again
        return made

    # -- what follows

    def rate(self) -> dict[str, Any]:
        """Return how many pairs would be kept now, and the share of mismatched ones, or what is ``counted``.

        A kept pair that a person has accepted is matched. The calibration tells of the others.
        """
        action, sure = self.planned.copy(), np.zeros(len(self.y), bool)
        for i, made in self.log.decided().items():
            action[i], sure[i] = self._action(i, made), made.action == "keep"
        kept = self.known & (action == "keep")
        left, share = self.y[kept & ~sure], Estimate(0.0, 0.0, 0.0)
        if len(left):
            share = UNDETERMINED if self.calibration is None else self.calibration.shares(left, [len(left)])[0]
        part = float(len(left) / max(kept.sum(), 1))
        share_of_kept = None if np.isnan(share.value) else [part * x for x in (share.value, share.low, share.high)]
        counted = self.calibration.counted if len(left) and self.calibration else "are mismatched"
        return {"kept": int(kept.sum()), "mismatched": share_of_kept, "counted": counted}

    def _action(self, i: int, made: Decision) -> str:
        """Return what becomes of a pair. An audit's label that the caption does not belong spoils no repair."""
        leaves = made.action == "unsure" or (made.action == "drop" and made.drawn and self.planned[i] in REPAIRED)
        return str(self.planned[i]) if leaves else made.action

    def edited(self) -> RepairPlan:
        """Return the plan with the decisions in it."""
        assert self.plan is not None
        table, decisions, rows = self.plan.table, self.log.decided(), []
        decisions = {i: made for i, made in decisions.items() if self.known[i] and self._action(i, made) == made.action}
        at = np.array(sorted(decisions), np.int64)
        if not len(at):
            return self.plan
        for row in table.take(pa.array(at)).to_pylist():
            made = decisions[row["pair_id"]]
            new = {"action": made.action, "donor_pair_id": made.donor, "caption": made.caption or row["caption"]}
            if not new.items() <= row.items():
                row |= dict.fromkeys(JUDGED)
            rows.append(row | new | {"donor_key": None, "caption": made.caption, "reason": "decided in a review"})
        others = table.filter(pa.array(~np.isin(np.arange(len(table)), at)))
        edited = pa.concat_tables([others, pa.Table.from_pylist(rows, table.schema)]).sort_by("pair_id")
        return replace(self.plan, table=followed(edited))

    def labels(self) -> AuditSample:
        """Return the sample with the answers as labels. NaN where there is none, or nobody could say."""
        assert self.sample is not None
        labels = self.log.labels()
        matched = np.array([labels.get(i) for i in self.sample.pair_id.tolist()], np.float64)  # None becomes NaN
        return replace(self.sample, matched=matched)

    def write_plan(self, path: str | Path) -> dict[str, Any]:
        """Write the plan with the decisions in it, for `export --plan`. An earlier one is replaced."""
        edited = self.edited()
        edited.save(path, overwrite=True)
        counts = edited.summary()
        return {
            "plan": str(path), "decided": int(self.answered.sum()), "kept": counts.kept, "repaired": counts.repaired,
            "dropped": counts.dropped,
        }  # fmt: skip
