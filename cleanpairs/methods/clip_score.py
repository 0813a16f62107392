"""CLIP-score: similarity by a pretrained CLIP or SigLIP, with nothing trained; normalised, unless told otherwise.

Hessel et al., "CLIPScore: A Reference-free Evaluation Metric for Image Captioning", EMNLP 2021; Schuhmann et al.,
LAION, 2021 and 2022; Gadre et al., DataComp, 2023; Wang et al., NeurIPS 2024 (negCLIPLoss). The score, its threshold
and departures from the papers: docs/methods/clip-score.md.
"""

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.core.parameters import check_choice, choice, number
from cleanpairs.correspondence.density_minimum import DensityMinimum
from cleanpairs.correspondence.repair_evidence import RepairEvidence
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
from cleanpairs.methods.normalised import KINDS, NormalisedScore
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import Background
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.settings import RepairSettings
from cleanpairs.scoring import Embeddings

NO_VECTOR = "its caption's vector is zero or not finite"


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
        """Unit vectors (k, E) float32 of both sides; a caption whose vector is zero is a fault, as in
        :meth:`Precomputed.vectors`.
        """
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

    Parameters beside those of :class:`cleanpairs.estimators.PairScorer`:

    - ``model``: a CLIP or SigLIP model: a directory, or a name on the Hugging Face hub; see
      :class:`cleanpairs.encoders.pretrained.PretrainedCLIP`. Or ``encoder``, which says the same; or one of the next
      two. One must be given, unless the data brings vectors of both sides
    - ``text_encoder`` {"features"}: no model: the data brings vectors of both sides, of one space
    - ``score_column``: no model: the data brings cosines, in the column of this name. Repairs are then made only where
      it brings vectors of both sides too
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
        given = self.score_column is not None or self.text_encoder == GIVEN
        if self.model is None and self.encoder is None:
            return
        name = self.encoder if self.model is None else self.model
        if not isinstance(name, (str, Path)) or not str(name):
            raise self._no_model()
        if given:
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
            fitted = self.score_.fitted
            self.noise_rate_ = float("nan") if fitted is None else fitted.noise_rate

    # -- fit --------------------------------------------------------------------------------------------------------

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
        model = (
            Precomputed(self.score_column) if source is None else self._load(str(Path(source).resolve()), str(source))
        )
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
        self.fingerprint_, self.history_ = pairs.source.fingerprint, []
        self.image_encoder_, self.image_size_ = self.method_name, None
        if isinstance(model, PretrainedCLIP):
            self.image_size_ = model.transform.output_size[0]
        self.tau_ = self.label_tau or model.temperature
        groups = pairs.pair_image_group[usable], pairs.text_group[usable]
        self._set_bank(images, texts.take(usable), pairs.image_index[usable], *groups, usable)
        self.pretrained_: PretrainedCLIP | Precomputed = model
        if val is not None:
            self.best_val_rsum_ = self.evaluate(val).rsum
        return self

    # -- use --------------------------------------------------------------------------------------------------------

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

    def _load(self, path: str, name: str) -> PretrainedCLIP:
        return PretrainedCLIP(path if Path(path).is_dir() else name, self.resolved_device(), revision=self.revision)

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
        """M images, N captions and the quarantine."""
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

    # -- persistence ------------------------------------------------------------------------------------------------

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
        model = Precomputed(self.score_column) if fingerprint == Precomputed.fingerprint else self._load(name, name)
        if model.fingerprint != fingerprint:
            raise DataError(
                f"{name} is not the model that {saved.path} was made with (its files have changed): fit again, or name "
                f"the revision that was used"
            )
        self.pretrained_ = model


def _vectors(pairs: Pairs, images: Embeddings, texts: Embeddings) -> Background:
    """The N pairs, out of M images and N captions."""
    index = pairs.image_index
    return Background(images.vectors[index], texts.vectors, pairs.image_group[index], pairs.text_group)
