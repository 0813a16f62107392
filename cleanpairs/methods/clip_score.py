"""CLIP-score: similarity by a pretrained CLIP or SigLIP, with nothing trained; normalised, unless told otherwise.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021; Schuhmann et al.,
LAION, 2021 and 2022; Gadre et al., DataComp, 2023; Wang et al., NeurIPS 2024 (negCLIPLoss). The score, its threshold
and departures from the papers: docs/methods/clip-score.md.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from scipy.special import expit

from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.core.parameters import check_choice, choice, number
from cleanpairs.correspondence.calibration import ORDER, calibrate, positions
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.correspondence.repair_evidence import RepairEvidence
from cleanpairs.correspondence.similarity import LEAST_PAIRS, null_pairs, one_space, scores_and_null
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.filters import filter_reasons
from cleanpairs.data.images import ImageSource
from cleanpairs.data.rows import RowBatch
from cleanpairs.encoders.pretrained import PretrainedCLIP
from cleanpairs.estimators import Embedded, PairScorer
from cleanpairs.estimators.batches import RowScorer, filled
from cleanpairs.estimators.encoders import GIVEN, check_vectors, refuse_without_captions
from cleanpairs.estimators.persistence import Saved, Stored
from cleanpairs.estimators.refusal import evidence_of, refuse_without
from cleanpairs.estimators.scorer import with_images
from cleanpairs.features import Captions, ImageMatrix, encoded_matrix
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import Background, cosines
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.settings import RepairSettings
from cleanpairs.scoring import Embeddings

KINDS = {"background": "softmax", "csls": "csls", "none": ""}  # of the method -> of the operation
STORED = 4096  # pairs with which those that are scored later are compared
KNOTS = 2001
NO_VECTOR = "its caption's vector is zero or not finite"


@dataclass(frozen=True)
class Probability:
    """P(matched) of a score: log odds ``logits`` (k,) at rising scores ``knots`` (k,), linear between and beyond."""

    noise_rate: float
    knots: np.ndarray
    logits: np.ndarray

    @classmethod
    def of(cls, observed: np.ndarray, null: np.ndarray, rate: float | None = None) -> "Probability | None":
        """By N observed and K null scores, and the noise rate where it is known; None where they are too few."""
        if min(len(observed), len(null)) < LEAST_PAIRS:
            return None
        found = calibrate(observed, null, by_score=True, draws=0)
        assert found is not None
        found = found if rate is None else found.shifted(rate)
        knots = np.unique(np.quantile(np.concatenate([observed, null]), np.linspace(0, 1, KNOTS)))
        wrong = found.mismatched(positions(knots, observed))
        logits = np.log((1 - wrong) / wrong) + ORDER * np.linspace(-0.5, 0.5, len(knots))
        return cls(found.rate, knots, logits)

    def __call__(self, score: np.ndarray) -> np.ndarray:
        """(n,) float64 in (0, 1), rising with the score (n,)."""
        width = max(float(self.knots[-1] - self.knots[0]), 1e-12)
        near = np.clip(score, self.knots[0], self.knots[-1])
        beyond = np.clip((score - near) / width, -1, 1)
        return np.asarray(expit(np.interp(near, self.knots, self.logits) + ORDER * beyond))

    def threshold(self) -> float:
        """The score below which a pair is more likely wrong; -inf where none is."""
        above_all = np.nextafter(self.knots[-1], np.inf)
        return float(np.interp(0, self.logits, self.knots, left=-np.inf, right=above_all))


@dataclass(frozen=True)
class NormalisedScore:
    """Scores pairs of unit vectors; see :mod:`cleanpairs.ops.normalised_similarity`.

    ``kind``: a name of :data:`KINDS`; ``background``: up to :data:`STORED` pairs; ``calibration``: what scores against
    it mean, None of too few pairs; ``fitted``: what those mean of the pairs themselves, compared with all of them.
    """

    kind: str
    tau: float
    background: Background
    calibration: Probability | None
    fitted: Probability | None = None

    @classmethod
    def of(cls, pairs: Background, kind: str, tau: float, seed: int = 0) -> "tuple[NormalisedScore, np.ndarray]":
        """By N pairs, and the correspondence (N,) float32 of these."""
        observed, null = _scores(pairs, kind, tau, seed)
        calibration = later = Probability.of(observed, null) if one_space(observed, null) else None
        stored = pairs.take(np.sort(np.random.default_rng(seed).permutation(len(pairs))[:STORED]))
        if kind != "none" and len(stored) < len(pairs) and calibration is not None:
            later = Probability.of(*_scores(pairs, kind, tau, seed, stored), calibration.noise_rate)
        score = cls(kind, tau, stored if kind != "none" else stored.take(np.arange(0)), later, calibration)
        return score, score._correspondence(observed, calibration)

    def __call__(self, pairs: Background) -> np.ndarray:
        """Correspondence (n,) float32 in [0, 1] of n pairs."""
        if self.kind == "none":
            return self._correspondence(cosines(pairs.images, pairs.texts), None)
        score = self.background.scores(pairs, kind=KINDS[self.kind], tau=self.tau)
        return self._correspondence(score, self.calibration)

    def _correspondence(self, score: np.ndarray, calibration: Probability | None) -> np.ndarray:
        """The probability; where unknown the mean matching probability ("background"), or half of 1 + score."""
        if self.kind != "none" and calibration is not None:
            found = calibration(score)
        else:
            found = np.exp(score / self.tau) if self.kind == "background" else np.clip((1 + score) / 2, 0, 1)
        return np.asarray(found, np.float32)

    def arrays(self) -> dict[str, np.ndarray]:
        """What :meth:`from_arrays` makes the same of, but for ``fitted``; by name, each contiguous."""
        found = {f"background.{name}": np.ascontiguousarray(array) for name, array in vars(self.background).items()}
        found["background.tau"] = np.array([self.tau])
        if self.calibration is not None:
            found |= {f"calibration.{name}": np.atleast_1d(value) for name, value in vars(self.calibration).items()}
        return found

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray], kind: str) -> "NormalisedScore":
        """Of what :meth:`arrays` gave, and maybe more."""
        background = Background(*(arrays[f"background.{field.name}"] for field in fields(Background)))
        calibration = None
        if "calibration.knots" in arrays:
            rate, knots, logits = (arrays[f"calibration.{field.name}"] for field in fields(Probability))
            calibration = Probability(float(rate[0]), knots, logits)
        return cls(kind, float(arrays["background.tau"][0]), background, calibration)

    def threshold(self) -> float:
        """The correspondence below which a pair is more likely wrong; 0 where that is unknown, or none is."""
        if self.fitted is None:
            return 0.0
        return 0.5 if self.kind != "none" else float(np.clip((1 + self.fitted.threshold()) / 2, 0, 1))


def _scores(
    pairs: Background, kind: str, tau: float, seed: int, background: Background | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Scores (N,) of the pairs and of null pairs (K,); against a ``background``, which holds neither, of some."""
    if background is None:
        return scores_and_null(pairs, KINDS[kind], tau, seed)
    image, text = null_pairs(pairs.image_group, pairs.text_group, seed)
    rng = np.random.default_rng(seed)
    some, also = rng.permutation(len(pairs))[: len(background)], rng.permutation(len(image))[: 2 * len(background)]
    i, t = image[also], text[also]
    mixed = Background(pairs.images[i], pairs.texts[t], pairs.image_group[i], pairs.text_group[t])
    observed, null = (background.scores(x, kind=KINDS[kind], tau=tau) for x in (pairs.take(some), mixed))
    return observed, null


class Precomputed:
    """In place of a model: the vectors of both sides that the data brings, which may lack with a ``score_column``."""

    name = "the data"
    fingerprint = "given"
    temperature = 0.01  # where CLIP ends: its logit scale is cut at 100

    def __init__(self, score_column: str | None) -> None:
        self.score_column = score_column

    def has_vectors(self, pairs: Pairs) -> bool:
        """Whether there are single vectors of both sides, of one length."""
        array = pairs.images.array()
        texts = pairs.text_vectors
        return array is not None and texts is not None and array.shape[1:] == (1, texts.shape[1])

    def vectors(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
        """(M, E) and (N, E) unit vectors, and pair -> what it lacks; DataError where the data lacks all."""
        n, faults = len(pairs), {}
        if self.score_column is not None:
            missing = np.flatnonzero(np.isnan(precomputed_cosines(pairs, self.score_column)))
            faults = {int(i): f"it has no {self.score_column}" for i in missing}
            if not self.has_vectors(pairs):
                return np.zeros((len(pairs.images), 1), np.float32), np.zeros((n, 1), np.float32), faults
        z_image, z_text, wrong = _unit_vectors(pairs.images.array(), pairs.text_vectors)
        return z_image, z_text, faults | wrong


class PrecomputedScorer(RowScorer):
    """Scores given vectors, batch by batch; see :class:`cleanpairs.estimators.batches.RowScorer`."""

    compares_vectors = True

    def __init__(self, score: NormalisedScore) -> None:
        self.score, self.hashes = score, score.kind != "none"

    def compared(self, batch: RowBatch, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """See :class:`cleanpairs.estimators.batches.RowScorer`."""
        n = len(images)
        groups = (batch.image_group[batch.row], batch.text_group) if self.hashes else (np.arange(n),) * 2
        scores = self.score(Background(*(filled(x) if n else x for x in (images.vectors, texts.vectors, *groups))))[:n]
        scores[list(batch.faults)] = np.nan
        return scores

    def embedded(self, batch: RowBatch, data: str) -> tuple[Embeddings, Embeddings]:
        """Unit vectors (k, E) float32 of both sides; a caption whose vector is zero is a fault."""
        z_image, z_text, missing = _unit_vectors(batch.vectors, batch.text_vectors)
        batch.faults |= missing | batch.faults
        return Embeddings(z_image), Embeddings(z_text)


def _unit_vectors(images: np.ndarray | None, texts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray, dict[int, str]]:
    """Of (m, 1, E) and (n, E), and what is wrong with captions; DataError where the two are not of one length."""
    if images is None or texts is None or images.shape[1:] != (1, texts.shape[1]):
        sides = [None if x is None else " x ".join(map(str, x.shape[1:])) for x in (images, texts)]
        raise DataError(
            f"text_encoder='features' of clip-score needs one vector an image and one a caption, of one length; "
            f"found {sides[0] or 'none'} an image and {sides[1] or 'none'} a caption"
        )
    z_text = unit_rows(np.asarray(texts))
    missing = {int(i): NO_VECTOR for i in np.flatnonzero(~z_text.any(axis=1))}
    return unit_rows(np.asarray(images)[:, 0]), z_text, missing


def precomputed_cosines(pairs: Pairs, column: str) -> np.ndarray:
    """(N,) float32 of the column of scores, NaN where there is none; DataError where it is no column of cosines."""
    if column not in pairs.precomputed_scores:
        known = ", ".join(pairs.precomputed_scores) or "none"
        raise DataError(f"score_column of clip-score: the data has no scores {column!r} (found: {known})")
    cosine = np.asarray(pairs.precomputed_scores[column], dtype=np.float32)
    beyond = np.flatnonzero(np.abs(cosine) > 1.0001)
    if len(beyond):
        raise DataError(
            f"score_column of clip-score must hold cosines, from -1 to 1; {column!r} holds {cosine[beyond[0]]:g} at "
            f"pair {beyond[0]}: divide by its scale first"
        )
    return np.clip(cosine, -1, 1)


@dataclass(kw_only=True, eq=False, repr=False)
class ClipScore(PairScorer):
    """Scores by a pretrained model; ``fit`` encodes the pairs, and sets the threshold and the bank.

    - ``model``: CLIP or SigLIP: a directory, or a name on the Hugging Face hub; or ``encoder``, which says the same; or
      one of the next two. One must be given, unless the data brings vectors of both sides
    - ``text_encoder`` {"features"}: no model: the data brings vectors of both sides, of one space
    - ``score_column``: no model: the data brings cosines, in this column; repairs need vectors of both sides too
    - ``revision``: branch, tag or commit on the hub
    - ``normalise`` {"background", "csls", "none"}: by what the similarity is normalised: the softmax over a background,
      the nearest neighbours, or not at all. A column of scores is taken as it is
    - ``quantile`` float in [0, 1): share of the pairs that is flagged when ``threshold`` is None. None: those that are
      more likely wrong; 0.3 of a column of scores, where that is unknown
    - ``image_encoder`` {"auto", "features"}: "features": the vectors of the data are this model's own, of its number of
      dimensions. "auto": the model looks at the images; the vectors are taken only where there is no image
    - ``label_tau``: temperature of the probability that judges repairs; the model's own when None
    """

    method_name: ClassVar[str] = "clip-score"

    model: str | Path | None = None
    revision: str | None = None
    score_column: str | None = None
    normalise: str = choice(*KINDS)
    quantile: float | None = number(None, least=0, below=1, also=(None,))

    def _validate(self) -> None:
        super()._validate()
        check_choice("clip-score", "image_encoder", self.image_encoder, ("auto", "features"))
        if self.text_encoder is not None:
            check_choice("clip-score", "text_encoder", self.text_encoder, (GIVEN,))
        name = self.encoder if self.model is None else self.model
        if name is None:
            return
        if not isinstance(name, (str, Path)) or not str(name):
            raise self._no_model()
        if self.score_column is not None or self.text_encoder == GIVEN:
            raise ConfigError("clip-score takes a model, text_encoder='features' or score_column, and found several")

    def _no_model(self) -> ConfigError:
        return ConfigError(
            f"model of clip-score must be a directory or a name on the hub, like openai/clip-vit-large-patch14, found "
            f"{self.model!r}; none is needed where the data brings vectors of both sides, or scores (score_column=NAME)"
        )

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        if self.quantile is None and self.score_ is not None:
            return self.score_.threshold()
        known = self.correspondence_[np.isfinite(self.correspondence_)]
        return float(np.quantile(known, 0.3 if self.quantile is None else self.quantile))

    def _set_threshold(self, y: np.ndarray) -> None:
        super()._set_threshold(y)
        if self.score_ is not None:
            self.noise_rate_ = self.score_.fitted.noise_rate if self.score_.fitted is not None else float("nan")

    def fit(
        self,
        pairs: Any,
        y: Any = None,
        *,
        val: Any = None,
        on_encode: Callable[[int, int], None] | None = None,
        on_encode_texts: Callable[[int, int], None] | None = None,
    ) -> Self:
        """Encode ``pairs``, set the threshold and the bank by them; see :meth:`cleanpairs.estimators.PairScorer.fit`.

        Raises ConfigError: the model is not CLIP or SigLIP, or transformers is missing; DataError: there is no such
        model, or it is damaged.
        """
        self.validate()
        self._forget()
        pairs = load_pairs(pairs)
        source = self.encoder if self.model is None else self.model
        if source is None and self.text_encoder is None and self.score_column is None and not pairs.has_both_vectors:
            raise self._no_model()
        if source is None and pairs.has_both_vectors:
            self.text_encoder_, self.captions_ = GIVEN, "vectors of the data, both sides"
        elif source is not None:
            refuse_without_captions(pairs, source)
        model = Precomputed(self.score_column) if source is None else self._load(source)
        images, texts, self.quarantined_ = self._encode(model, pairs, on_encode, on_encode_texts)
        usable = np.array([i for i in range(len(pairs)) if i not in self.quarantined_], dtype=np.int64)
        self._refuse_mostly_bad(pairs, len(usable))
        if len(usable) < 2:
            raise RefusedError(f"a threshold needs at least 2 usable pairs, found {len(usable)}: give more data")
        if self.require_evidence and self.score_column is None:
            index, groups = pairs.image_index[usable], (pairs.pair_image_group[usable], pairs.text_group[usable])
            found = evidence_of(images.vectors[:, None], texts.vectors[usable], index, *groups, seed=self.random_state)
            refuse_without(found, len(usable), self.method_name)
        self.correspondence_ = np.full(len(pairs), np.nan, np.float32)
        if self.score_column is not None:
            self.score_: NormalisedScore | None = None
            self.correspondence_[usable] = self.score_embedded(pairs, images, texts)[usable]
        else:
            known = _vectors(pairs, images, texts).take(usable)
            self.score_, self.correspondence_[usable] = NormalisedScore.of(
                known, self.normalise, model.temperature, self.random_state
            )
        self._set_threshold(self.correspondence_[usable])
        self.fingerprint_, self.history_, self.image_encoder_ = pairs.source.fingerprint, [], self.method_name
        self.image_size_ = model.transform.output_size[0] if isinstance(model, PretrainedCLIP) else None
        self.tau_ = self.label_tau or model.temperature
        groups = pairs.pair_image_group[usable], pairs.text_group[usable]
        self._set_bank(images, texts.take(usable), pairs.image_index[usable], *groups, usable)
        self.pretrained_: PretrainedCLIP | Precomputed = model
        if val is not None:
            self.best_val_rsum_ = self.evaluate(val).rsum
        return self

    def embed(self, pairs: Any, rows: np.ndarray | None = None) -> Embedded:
        """See :meth:`cleanpairs.estimators.PairScorer.embed`."""
        self._fitted()
        pairs = load_pairs(pairs)
        if rows is not None and isinstance(self.pretrained_, Precomputed):
            pairs, used = with_images(pairs, rows)
            array = pairs.images.array()
            images = pairs.images if array is None else ImageSource(len(used), vectors=array[used])
            pairs, rows = replace(pairs, images=images), None
        found = Embedded(pairs, *self._encode(self.pretrained_, pairs))
        return found if rows is None else found.take(rows)

    def _load(self, source: str | Path) -> PretrainedCLIP:
        path = str(Path(source).resolve()) if Path(source).is_dir() else str(source)
        return PretrainedCLIP(path, self.resolved_device(), revision=self.revision)

    def score_embedded(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """By the data's scores, or the vectors; the bank is for repairs only."""
        if self.score_ is None:
            assert self.score_column is not None
            return (1 + precomputed_cosines(pairs, self.score_column)) / 2
        return self.score_(_vectors(pairs, images, texts))

    def row_scorer(self, roles: Set[str]) -> RowScorer | None:
        """Vectors of both sides stream; what a model encodes, or a column of scores judges, is loaded whole."""
        self._fitted()
        if self.score_ is None or not isinstance(self.pretrained_, Precomputed):
            return None
        return PrecomputedScorer(self.score_) if {"features", "text_features"} <= roles else None

    def _encode(
        self,
        model: PretrainedCLIP | Precomputed,
        pairs: Pairs,
        progress: Callable[[int, int], None] | None = None,
        texts_progress: Callable[[int, int], None] | None = None,
    ) -> tuple[Embeddings, Embeddings, dict[int, str]]:
        if isinstance(model, Precomputed):
            images, texts, faults = model.vectors(pairs)
            asked = filter_reasons(pairs, f"none,{self.drop}")  # as in a stream nothing is, unless it is asked for
            return Embeddings(images), Embeddings(texts), dict(sorted({**asked, **faults, **pairs.reasons}.items()))
        given, array = self.image_encoder == "features", pairs.images.array()
        if given and array is None:
            raise ConfigError("image encoder 'features' needs precomputed vectors, and the data has none; use 'auto'")
        chunks = (chunk for _, chunk in pairs.images.iter_encoded(1024))
        if array is not None and (given or all(data is None for chunk in chunks for data in chunk)):
            check_vectors(array, model)
            matrix = ImageMatrix(array, {}, "clip-score", None)
        else:
            matrix = encoded_matrix(pairs, model, progress=progress)
        table = Captions(frozen=model).table(pairs, progress=texts_progress)
        assert table.vectors is not None
        texts = np.asarray(table.vectors[table.ids])
        return Embeddings(unit_rows(matrix.array[:, 0])), Embeddings(texts), self._quarantine(pairs, matrix)

    def rematch(self, pairs: Any, settings: RepairSettings | None = None, **changes: Any) -> RepairPlan:
        """As :meth:`cleanpairs.estimators.PairScorer.rematch`; without vectors what is flagged is dropped."""
        self._fitted()
        pairs = load_pairs(pairs)
        if not self._has_vectors(pairs):
            changes["repairs"] = "none"
        return super().rematch(pairs, settings, **changes)

    def repair_evidence(self, found: Embedded, correspondence: np.ndarray, threshold: float) -> RepairEvidence | None:
        """See :meth:`cleanpairs.estimators.PairScorer.repair_evidence`."""
        pairs = found.pairs
        if self.score_ is None or not self._has_vectors(pairs) or not np.isfinite(self.noise_rate_):
            return None
        vectors = found.images.vectors, found.texts.vectors
        groups = pairs.pair_image_group, pairs.text_group
        return RepairEvidence(
            *vectors, pairs.image_index, *groups, correspondence, threshold, joint=vectors, seed=self.random_state
        )

    def _has_vectors(self, pairs: Pairs) -> bool:
        return not isinstance(self.pretrained_, Precomputed) or self.pretrained_.has_vectors(pairs)

    def encode_images(self, images: Any) -> np.ndarray:
        """Unit vectors (m, E) float32 of images.

        ``images``: Pairs or what :func:`cleanpairs.load_pairs` takes, or an array (m, E) or (m, 1, E) of this model's
        vectors, or (m, 3, H, W) uint8 pixels.
        """
        self._fitted()
        if not isinstance(images, np.ndarray):
            return self._encode(self.pretrained_, load_pairs(images))[0].vectors
        if not isinstance(self.pretrained_, Precomputed):
            if images.ndim == 4:
                from PIL import Image

                pictures = [Image.fromarray(np.ascontiguousarray(x.transpose(1, 2, 0))) for x in images]
                return np.asarray(self.pretrained_.encode_images(pictures))
            check_vectors(images, self.pretrained_)
        return unit_rows(images.reshape(len(images), -1))

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (n, E) float32 of n captions."""
        self._fitted()
        if isinstance(self.pretrained_, Precomputed):
            raise ConfigError("the captions' vectors came with the data: there is no model that makes others")
        return np.asarray(self.pretrained_.encode_texts(texts))

    def stored(self) -> Stored:
        """Of the pretrained model its name and its fingerprint only."""
        about = {"name": self.pretrained_.name, "fingerprint": self.pretrained_.fingerprint}
        return Stored({"pretrained": about}, arrays={} if self.score_ is None else self.score_.arrays())

    def restore(self, saved: Saved) -> None:
        """See :meth:`cleanpairs.estimators.PairScorer.restore`."""
        name, fingerprint = (saved.config["pretrained"][key] for key in ("name", "fingerprint"))
        arrays = saved.tensors("bank.safetensors")
        self.bank_ = saved.bank(arrays)
        self.score_ = None if self.score_column is not None else NormalisedScore.from_arrays(arrays, self.normalise)
        model = Precomputed(self.score_column) if fingerprint == Precomputed.fingerprint else self._load(name)
        if model.fingerprint != fingerprint:
            raise DataError(
                f"{name} is not the model that {saved.path} was made with (its files have changed): fit again, or name "
                f"the revision that was used"
            )
        self.pretrained_ = model


def _vectors(pairs: Pairs, images: Embeddings, texts: Embeddings) -> Background:
    index = pairs.image_index
    return Background(images.vectors[index], texts.vectors, pairs.image_group[index], pairs.text_group)
