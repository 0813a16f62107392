"""FrozenScorer: a :class:`PairScorer` that trains nothing. It compares vectors of one space.

A method adds one hook, :meth:`FrozenScorer.compare`. What its scores mean, the null tells: the same score of random
wrong pairs. The threshold, the noise rate and the probability follow from it.
"""

import math
from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from cleanpairs.core import ConfigError, DataError
from cleanpairs.core.parameters import check_choice, number, text
from cleanpairs.core.plain import part_of
from cleanpairs.correspondence.calibration import ScoreProbability
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.correspondence.score_mixture import ScoreMixture
from cleanpairs.correspondence.similarity import null_pairs, one_space_by_cosine
from cleanpairs.data import ImageSource, Pairs, load_pairs
from cleanpairs.data.filters import filter_reasons
from cleanpairs.data.rows import RowBatch
from cleanpairs.encoders.image_transform import pictures_of
from cleanpairs.encoders.libraries import load_encoder
from cleanpairs.encoders.model_files import FrozenPair
from cleanpairs.estimators.batches import RowScorer
from cleanpairs.estimators.embedded import Embedded, with_images
from cleanpairs.estimators.encoders import GIVEN, Encoders, check_vectors, resolved
from cleanpairs.estimators.persistence import Saved, Stored
from cleanpairs.estimators.scorer import PairScorer, checked_captions, validation_pairs
from cleanpairs.estimators.settings import check_model
from cleanpairs.features.texts import refuse_without_captions
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import TAU, VectorPairs
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.settings import RepairSettings
from cleanpairs.scoring import Embeddings


class GivenVectors:
    """The vectors of both sides that the data brings, in place of a model."""

    name, fingerprint = "the data", "given"
    temperature = TAU
    flagged: float | None = None  # share of the pairs that is flagged, where the null does not tell

    def has_vectors(self, pairs: Pairs) -> bool:
        """Whether there are single vectors of both sides, of one length.

        Parameters
        ----------
        pairs : Pairs
            n pairs.

        Returns
        -------
        bool
            Whether there are.
        """
        array, texts = pairs.images.array(), pairs.text_vectors
        return array is not None and texts is not None and array.shape[1:] == (1, texts.shape[1])

    def vectors(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors that the data brings.

        Parameters
        ----------
        pairs : Pairs
            n pairs.

        Returns
        -------
        (M, E) float32, (N, E) float32
            Unit vectors of images and captions.

        Raises
        ------
        DataError
            The data brings none, or vectors of two lengths.
        """
        return _unit_vectors(pairs.images.array(), pairs.text_vectors)


@dataclass
class GivenScores(GivenVectors):
    """Cosines in a column of the data, or several scores, in place of a model. Vectors, if any, serve repairs.

    Parameters
    ----------
    columns : tuple of str
        Columns of scores.
    labels : str, optional
        Column of labels that weigh several scores. A matched pair has 1, a mismatched one 0, and others have null.
    mixture : ScoreMixture, optional
        What combines several scores. The method :meth:`learn` finds it.
    """

    columns: tuple[str, ...]
    labels: str | None = None
    mixture: ScoreMixture | None = None
    flagged = 0.3

    def learn(self, pairs: Pairs) -> str | None:
        """Find what combines several scores of the pairs of a fit. With labels, the share that they call mismatched is
        flagged.

        Parameters
        ----------
        pairs : Pairs
            n pairs.

        Returns
        -------
        str or None
            How the scores are weighed. None of a single score.
        """
        if len(self.columns) == 1:
            return None
        scores, labels = self._matrix(pairs), None if self.labels is None else self._scores(pairs, self.labels)
        self.mixture = ScoreMixture.of(scores, labels)
        if labels is not None:
            self.flagged = float(1 - np.nanmean(self.mixture(scores)))
        how = "by what they agree on" if labels is None else f"by the labels of {self.labels}"
        return f"scores of the data, weighed {how}: {self.mixture.describe(self.columns)}"

    def vectors(self, pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
        """Return the vectors as :class:`GivenVectors` does, or zeros if the data brings none."""
        if self.has_vectors(pairs):
            return super().vectors(pairs)
        return np.zeros((len(pairs.images), 1), np.float32), np.zeros((len(pairs), 1), np.float32)

    def faults(self, pairs: Pairs) -> dict[int, str]:
        """Return pair_id -> reason of the pairs that lack a score."""
        missing = np.flatnonzero(np.isnan(self.correspondence(pairs)))
        return {int(i): f"it has no {' or no '.join(self.columns)}" for i in missing}

    def correspondence(self, pairs: Pairs) -> np.ndarray:
        """Half of one more than the cosine, or what several scores make, (N,) float32. DataError: no cosines."""
        if self.mixture is not None:
            return self.mixture(self._matrix(pairs))
        column, cosine = self.columns[0], self._scores(pairs, self.columns[0])
        outside = np.flatnonzero(np.abs(cosine) > 1.0001)
        if len(outside):
            raise DataError(
                f"score_column of clip-score must hold cosines, from -1 to 1; {column!r} holds "
                f"{cosine[outside[0]]:g} at pair {outside[0]}: divide by its scale first"
            )
        return np.asarray((1 + np.clip(cosine, -1, 1)) / 2)

    def _matrix(self, pairs: Pairs) -> np.ndarray:
        return np.stack([self._scores(pairs, name) for name in self.columns], axis=1)

    def _scores(self, pairs: Pairs, column: str) -> np.ndarray:
        if column not in pairs.precomputed_scores:
            names = ", ".join(pairs.precomputed_scores) or "none"
            raise DataError(
                f"score_column of clip-score: the data has no scores {column!r} (found: {names}); name a column of "
                f"numbers by --column score={column} (score_columns)"
            )
        scores = np.asarray(pairs.precomputed_scores[column], dtype=np.float32)
        return np.where(np.isin(np.arange(len(pairs)), list(pairs.reasons)), np.nan, scores)


def displaced_in_vectors(pairs: Pairs) -> list[str]:
    """Describe blocks of displaced rows, by the vectors that the data brings.

    Parameters
    ----------
    pairs : Pairs
        n pairs.

    Returns
    -------
    list of str
        A sentence for each. None without vectors of both sides.
    """
    given = GivenVectors()
    if not given.has_vectors(pairs):
        return []
    images, texts = map(Embeddings, given.vectors(pairs))
    embedded = Embedded(pairs, images, texts, pairs.reasons)
    return [str(block) for block in embedded.displaced_rows(np.ones(len(pairs))).blocks]


def _unit_vectors(images: np.ndarray | None, texts: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the unit vectors of (m, 1, E) and (n, E). DataError if the two are not of one length."""
    if images is None or texts is None or images.shape[1:] != (1, texts.shape[1]):
        sides = [None if x is None else " x ".join(map(str, x.shape[1:])) for x in (images, texts)]
        raise DataError(
            f"text_encoder='features' needs one vector an image and one a caption, of one length; found "
            f"{sides[0] or 'none'} an image and {sides[1] or 'none'} a caption"
        )
    return unit_rows(np.asarray(images)[:, 0]), unit_rows(np.asarray(texts))


def _vector_pairs(pairs: Pairs, images: Embeddings, texts: Embeddings) -> VectorPairs:
    index = pairs.image_index
    return VectorPairs(images.vectors[index], texts.vectors, pairs.image_group[index], pairs.text_group)


@dataclass(kw_only=True, eq=False, repr=False)
class FrozenScorer(PairScorer):
    """Base of the methods that train nothing.

    Parameters
    ----------
    model : str or Path, optional
        CLIP, SigLIP, a model of sentence-transformers, or ``open_clip:MODEL/PRETRAINED``. It is a directory, or a name
        on the Hugging Face hub. ``encoder`` means the same. Without either, the data must bring vectors of both sides.

    revision : str, optional
        Branch, tag or commit on the hub.

    text_encoder : {"features"}, optional
        No model: the data brings vectors of both sides, of one space.

    image_encoder : {"auto", "features"}
        "features": the data's vectors of images are this model's own. "auto": the model looks at the images. The
        vectors are taken only where there is no image.

    quantile : float in [0, 1), optional
        Share of the pairs that is flagged when ``threshold`` is None. None: those that are more likely mismatched.

    Notes
    -----
    Subclasses define :meth:`compare`. The correspondence is the probability of being matched, by the null scores.
    """

    needs_training: ClassVar[bool] = False
    _background_pairs: ClassVar[int] = 4096  # pairs of the background

    model: str | Path | None = field(default=None, metadata={"check": check_model})
    revision: str | None = text(None)
    quantile: float | None = number(None, least=0, below=1, also=(None,))

    def compare(self, pairs: VectorPairs, background: VectorPairs, null: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Score pairs, and random wrong pairs of the same images and captions. The higher, the better matched.

        Parameters
        ----------
        pairs : VectorPairs
            N pairs.
        background : VectorPairs
            Pairs with which they are compared. If these are the same pairs, a pair leaves itself out.
        null : (2, K) int64
            Rows of images and of captions of ``pairs`` that do not belong together.

        Returns
        -------
        observed : (N,) float
            Scores of the pairs.
        null : (K,) float
            Scores of the wrong pairs.
        """
        raise NotImplementedError

    def uncalibrated(self, score: np.ndarray) -> np.ndarray:
        """Return the correspondence where the null gives no probability.

        Parameters
        ----------
        score : (n,) float
            What :meth:`compare` gave.

        Returns
        -------
        (n,) float
            In [0, 1].
        """
        from scipy.special import expit

        return np.asarray(expit(score))

    @property
    def _pointwise(self) -> bool:
        """Whether a pair is scored without a background, and its correspondence is :meth:`uncalibrated`."""
        return False

    @property
    def _model_name(self) -> str | Path | None:
        return self.encoder if self.model is None else self.model

    def _begin(self) -> None:
        super()._begin()
        self._background: VectorPairs | None = None  # some pairs of the fit
        self._fit_probability: ScoreProbability | None = None  # what the scores of the fit mean
        self._probability: ScoreProbability | None = None  # what scores by the background mean

    def _validate(self) -> None:
        if self.text_encoder is not None:
            check_choice(self.method_name, "text_encoder", self.text_encoder, (GIVEN,))
        super()._validate()
        check_choice(self.method_name, "image_encoder", self.image_encoder, ("auto", "features"))
        if self._model_name is not None and self.text_encoder == GIVEN:
            raise ConfigError(f"{self.method_name} takes a model or text_encoder='features', and found several")

    def _source(self, name: str | Path | None) -> FrozenPair | GivenVectors:
        """Return what makes the vectors: the model of a name, or the data."""
        if name is None:
            return GivenVectors()
        return load_encoder(resolved(name), self._resolved_device(), revision=self.revision)

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        share = getattr(self._model, "flagged", None) if self.quantile is None else self.quantile
        if share is not None:
            return float(np.nanquantile(self.correspondence_, share))
        if self._fit_probability is None:
            return 0.0
        return float(self.uncalibrated(np.array(self._fit_probability.threshold()))) if self._pointwise else 0.5

    def _set_threshold(self, y: np.ndarray) -> None:
        super()._set_threshold(y)
        self.noise_rate_ = float("nan") if self._fit_probability is None else self._fit_probability.noise_rate

    def fit(self, pairs: Any, y: Any = None, *, val: Any = None) -> Self:
        """Encode the pairs, and set the threshold and the bank by them.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.
        y : None
            There are no labels.
        val : pairs, optional
            Clean pairs, whose rSum is ``best_val_rsum_``.

        Returns
        -------
        FrozenScorer
            This one.

        Raises
        ------
        CleanpairsError
            See :meth:`cleanpairs.estimators.PairScorer.fit`. ConfigError: the model is of another kind, or transformers
            is missing, too. DataError: there is no such model, or it is damaged, too.
        """
        self.validate()
        self._begin()
        pairs, val = load_pairs(pairs), validation_pairs(val, y)
        model = self._load_model(pairs)
        images, texts, self.quarantined_ = self._encode(pairs)
        usable = self._usable(pairs)
        groups, index = (pairs.pair_image_group[usable], pairs.text_group[usable]), pairs.image_index[usable]
        given = self._given_correspondence(pairs)
        if self.require_dependence and given is None:
            self._test_independence(images.vectors[:, None], texts.vectors[usable], index, *groups)
        self.correspondence_ = np.full(len(pairs), np.nan, np.float32)
        found = self._calibrate(_vector_pairs(pairs, images, texts).take(usable)) if given is None else given[usable]
        self.correspondence_[usable] = found
        self._set_threshold(self.correspondence_[usable])
        self._fingerprint, self.history_, self._image_encoder = pairs.source.fingerprint, [], self.method_name
        self._image_size = model.transform.output_size[0] or None if isinstance(model, FrozenPair) else None
        self.tau_ = model.temperature
        embedded = Embedded(pairs, images, texts, self.quarantined_)
        self._set_bank(embedded, usable)
        self._judge_displaced(embedded)
        if val is not None:
            self.best_val_rsum_ = self.evaluate(val).rsum
        return self

    def _load_model(self, pairs: Pairs) -> Any:
        """Return what encodes or scores the pairs, after it has learned from them. Sets what captions become."""
        model = self._model = self._source(self._model_name)
        if isinstance(model, FrozenPair):
            refuse_without_captions(pairs)
        elif isinstance(model, GivenScores) and (learned := model.learn(replace(pairs, reasons=self._unusable(pairs)))):
            self._captions = learned
        elif pairs.has_both_vectors:
            self._text_encoder, self._captions = GIVEN, "vectors of the data, both sides"
        elif self.text_encoder is None and not isinstance(model, GivenScores):
            raise ConfigError(
                f"model of {self.method_name} must be a directory or a name on the hub, like "
                "openai/clip-vit-large-patch14, found None; none is needed where the data brings vectors of both sides"
            )
        return model

    def _given_correspondence(self, pairs: Pairs) -> np.ndarray | None:
        """Return the correspondence (N,) that the data brings, where it is taken."""
        return self._model.correspondence(pairs) if isinstance(self._model, GivenScores) else None

    def _calibrate(self, pairs: VectorPairs) -> np.ndarray:
        """Correspondence (N,) float32 of the pairs of a fit. Some of these are the background of later ones."""
        null = np.stack(null_pairs(pairs.image_group, pairs.text_group, self.random_state_))
        found, shapes = self.compare(pairs, pairs, null), [(len(pairs),), (null.shape[1],)]
        shaped = isinstance(found, tuple) and [x.shape for x in found if isinstance(x, np.ndarray)] == shapes
        if not shaped or not all(x.dtype.kind == "f" and np.isfinite(x).all() for x in found):
            raise ConfigError(
                f"compare of {self.method_name} must return two arrays of finite floats, of the shapes {shapes[0]} "
                f"(the pairs) and {shapes[1]} (the wrong pairs)"
            )
        observed, of_null = found
        related = one_space_by_cosine(pairs, null)
        self._fit_probability = ScoreProbability.from_null(observed, of_null) if related else None
        self._probability = self._fit_probability
        order, most = np.random.default_rng(self.random_state_).permutation(len(pairs)), self._background_pairs
        if len(pairs) <= most or self._pointwise or self._fit_probability is None:
            self._background = pairs.take(np.sort(order[: 0 if self._pointwise else most]))
        else:
            count = min(most, len(pairs) - most // 2)
            background = self._background = pairs.take(np.sort(order[:count]))
            others = order[count : count + most]
            rate = float(1 - self._fit_probability(observed[others]).mean())
            self._probability = self._of_others(pairs.take(others), background, rate) or self._probability
        return self._correspondence(observed, self._fit_probability)

    def _of_others(self, pairs: VectorPairs, background: VectorPairs, rate: float) -> ScoreProbability | None:
        """Return what scores of pairs outside the background mean. None of too few.

        The right partner of a mismatched pair is hardly ever in the background, and so is that of a null pair.
        """
        null = pairs.take(*null_pairs(pairs.image_group, pairs.text_group, self.random_state_))
        none = np.empty((2, 0), np.int64)
        scores, of_null = (self.compare(each, background, none)[0] for each in (pairs, null))
        return ScoreProbability.from_null(scores, of_null, rate)

    def _correspondence(self, score: np.ndarray, probability: ScoreProbability | None) -> np.ndarray:
        calibrated = probability is not None and not self._pointwise
        return np.asarray(probability(score) if calibrated else self.uncalibrated(score), np.float32)  # type: ignore[misc]

    def score_vectors(self, pairs: VectorPairs) -> np.ndarray:
        """Score pairs by the stored background.

        Parameters
        ----------
        pairs : VectorPairs
            n pairs.

        Returns
        -------
        (n,) float32
            The correspondence.
        """
        assert self._background is not None
        observed, _ = self.compare(pairs, self._background, np.empty((2, 0), np.int64))
        return self._correspondence(observed, self._probability)

    def _embed(self, pairs: Any, rows: np.ndarray | None = None) -> Embedded:
        """See :meth:`cleanpairs.estimators.PairScorer._embed`."""
        self._fitted()
        pairs = load_pairs(pairs)
        if rows is not None and isinstance(self._model, GivenVectors):
            pairs, used = with_images(pairs, rows)
            array = pairs.images.array()
            images = pairs.images if array is None else ImageSource(len(used), vectors=array[used])
            pairs, rows = replace(pairs, images=images), None
        embedded = Embedded(pairs, *self._encode(pairs))
        return embedded if rows is None else embedded.take(rows)

    def _score_embedded(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """See :meth:`cleanpairs.estimators.PairScorer._score_embedded`. The bank is for repairs only."""
        given = self._given_correspondence(pairs)
        return self.score_vectors(_vector_pairs(pairs, images, texts)) if given is None else given

    def _row_scorer(self, roles: Set[str]) -> RowScorer | None:
        """Vectors of both sides stream. What a model encodes, or a column of scores judges, is loaded whole."""
        streams = not isinstance(self._model, FrozenPair | GivenScores) and not self._named_filters
        if not streams or not {"features", "text_features"} <= roles:
            return None
        return RowScorer(self._embed_rows, self._judge_rows, hashes=not self._pointwise)

    def _embed_rows(self, batch: RowBatch, data: str) -> tuple[Embeddings, Embeddings]:
        """Return the vectors of a batch. DataError where they have another size than those of the fit."""
        images, texts = _unit_vectors(batch.vectors, batch.text_vectors)
        self._check_size(images)
        return Embeddings(images), Embeddings(texts)

    def _judge_rows(self, images: Embeddings, texts: Embeddings, *groups: np.ndarray) -> np.ndarray:
        return self.score_vectors(VectorPairs(images.vectors, texts.vectors, *groups))

    def _unusable(self, pairs: Pairs) -> dict[int, str]:
        """Return why pairs are quarantined, scores aside. As in a stream, there is no filter by default."""
        return {**filter_reasons(pairs, f"none,{self.drop}"), **pairs.reasons}

    def _encode(self, pairs: Pairs) -> tuple[Embeddings, Embeddings, dict[int, str]]:
        model = self._model
        if isinstance(model, GivenVectors):
            images, texts = model.vectors(pairs)
            self._check_size(images)
            missing = model.faults(pairs) if isinstance(model, GivenScores) else {}
            faults = {**self._unusable(pairs), **missing, **pairs.reasons}
            return Embeddings(images), Embeddings(texts), dict(sorted(faults.items()))
        encoders = Encoders(joint=model)
        matrix = encoders.images(pairs, GIVEN if pairs.images.only_vectors else self.image_encoder, None)
        table = encoders.captions(None, None).table(pairs)
        assert table.vectors is not None
        captions = np.asarray(table.vectors[table.ids])
        return Embeddings(unit_rows(matrix.array[:, 0])), Embeddings(captions), self._quarantine(pairs, matrix)

    def rematch(self, pairs: Any, settings: RepairSettings | None = None, **changes: Any) -> RepairPlan:
        """See :meth:`cleanpairs.estimators.PairScorer.rematch`. Without vectors, flagged pairs are dropped."""
        self._fitted()
        pairs = load_pairs(pairs)
        if not (isinstance(self._model, FrozenPair) or self._model.has_vectors(pairs)):
            changes["repairs"] = "none"
        return super().rematch(pairs, settings, **changes)

    @property
    def _knows_space(self) -> bool:
        return bool(np.isfinite(self.noise_rate_))

    def encode_images(self, images: Any) -> np.ndarray:
        """Encode images.

        Parameters
        ----------
        images : pairs or numpy.ndarray
            What :func:`cleanpairs.load_pairs` takes, this model's vectors (m, E) or (m, 1, E), or pixels (m, 3, H, W)
            uint8.

        Returns
        -------
        (m, E) float32
            Unit vectors.
        """
        self._fitted()
        if not isinstance(images, np.ndarray):
            return self._encode(load_pairs(images))[0].vectors
        if isinstance(self._model, FrozenPair):
            if images.ndim == 4:
                return np.asarray(self._model.encode_images(pictures_of(images)))
            check_vectors(images, self._model)
        vectors = unit_rows(images.reshape(len(images), math.prod(images.shape[1:])))
        self._check_size(vectors)
        return vectors

    def _check_size(self, vectors: np.ndarray) -> None:
        background = self._background
        if background is not None and background.images.shape[1] != vectors.shape[1]:
            raise DataError(
                f"the vectors of the fit have {background.images.shape[1]} dimensions, and this data has "
                f"{vectors.shape[1]}: make them by the same model"
            )

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """See :meth:`cleanpairs.estimators.PairScorer.encode_texts`."""
        self._fitted()
        if isinstance(self._model, GivenVectors):
            raise ConfigError("the captions' vectors came with the data: name a model that makes others (model)")
        return np.asarray(self._model.encode_texts(checked_captions(texts)))

    def _stored(self) -> Stored:
        """Return the pretrained model's name and fingerprint, the background, and what scores mean."""
        about = {"name": self._model.name, "fingerprint": self._model.fingerprint}
        mixture = getattr(self._model, "mixture", None)
        parts = {"background": self._background, "calibration": self._probability, "mixture": mixture}
        known = {part: vars(state) for part, state in parts.items() if state is not None}
        arrays = {f"{part}.{name}": value for part, values in known.items() for name, value in values.items()}
        return Stored({"pretrained": about}, arrays=arrays)

    def _restore(self, saved: Saved) -> None:
        """See :meth:`cleanpairs.estimators.PairScorer._restore`."""
        name, fingerprint = (saved.config["pretrained"][key] for key in ("name", "fingerprint"))
        arrays = saved.tensors("bank.safetensors")
        self.bank_ = saved.bank(arrays)
        if "background.images" in arrays:
            self._background = VectorPairs(**part_of(arrays, "background."))
        if "calibration.knots" in arrays:
            found = part_of(arrays, "calibration.")
            self._probability = ScoreProbability(float(found.pop("noise_rate")[0]), **found)
        model = self._source(None if fingerprint == GivenVectors.fingerprint else name)
        if model.fingerprint != fingerprint:
            raise DataError(
                f"{name} is not the model that {saved.path} was made with (its files have changed): fit again, or name "
                f"the revision that was used"
            )
        if isinstance(model, GivenScores) and "mixture.weights" in arrays:
            model.mixture = ScoreMixture(**part_of(arrays, "mixture."))
        self._model = model
