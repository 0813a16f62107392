"""PairCleaner: a :class:`PairScorer` that learns which pairs belong together."""

import hashlib
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from PIL import Image

from cleanpairs.core import distributed
from cleanpairs.core.errors import ConfigError, DataError, RefusedError
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.encoders.base import DualEncoder, input_dim
from cleanpairs.encoders.tokenizer import Tokenizer, TokenTable
from cleanpairs.estimators.batches import RowScorer, VectorScorer
from cleanpairs.estimators.encoders import AUTO, WORDS, Encoders, takes_sentences, text_encoder_for
from cleanpairs.estimators.networks import builder, restore_networks, stored_networks
from cleanpairs.estimators.null_threshold import null_threshold
from cleanpairs.estimators.persistence import Saved, Stored
from cleanpairs.estimators.refusal import evidence_of, refuse_without
from cleanpairs.estimators.scorer import Embedded, PairScorer, with_images
from cleanpairs.estimators.settings import FitSettings, ModelSettings, check_encoders
from cleanpairs.features import FrozenTexts, ImageMatrix, TokenNumbers, WordsAndSentences
from cleanpairs.features.rows import Progress
from cleanpairs.scoring import Embeddings, embed_images, embed_texts
from cleanpairs.scoring.evaluate import Recall
from cleanpairs.trainer import EpochRecord, Trainer, TrainingData, TrainingSettings, TrainingStage, TrainingStrategy
from cleanpairs.trainer.checkpoints import Checkpoint


class Trained:
    """What ``fit`` finds beside :class:`cleanpairs.estimators.scorer.Fitted`.

    - ``model_`` the dual encoder (the mean of two, where the method trains two), ``tokenizer_`` its vocabulary;
    - ``heads_`` what was learned beside it, for each network; ``encoders_`` the pretrained networks before it.
    """

    encoders_ = Encoders()  # none, until a fit or a saved model names some
    heads_: list[Any]
    model_: Any
    tokenizer_: Any


@dataclass(kw_only=True, eq=False, repr=False)
class PairCleaner(Trained, PairScorer, ModelSettings, FitSettings):
    """Base of the methods that train: a dual encoder learned from noisy pairs.

    A method (see :mod:`cleanpairs.methods`) says which stages and which procedure; the rest is here. See
    :class:`Trained`.
    """

    # -- what a method says -----------------------------------------------------------------------------------------

    def _stages(self) -> list[TrainingStage]:
        """One stage of ``epochs`` epochs, unless a method has more."""
        return self._one_stage()

    def _one_stage(self, warmup: int = 0) -> list[TrainingStage]:
        """``epochs`` epochs, whose learning rate is decayed by epochs counted behind the ``warmup``."""
        return [TrainingStage(self.epochs, self._lr_update(), warmup if self.lr_update else 0)]

    def _procedure(self, data: TrainingData) -> TrainingStrategy:
        raise NotImplementedError

    _null_threshold = True  # vectors of one space give the threshold: labels there are on a scale of their own

    _paper: ClassVar[dict[str, Any]] = {}

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """The settings of the paper, or of its public code, for Flickr30K, with ``changes``; the defaults where the
        method is of no paper.
        """
        return cls(**{**cls._paper, **changes})

    def head(self, model: Any) -> Any:
        """What is learned beside ``model`` and kept with it; None when nothing is."""
        return None

    # -- settings ---------------------------------------------------------------------------------------------------

    def _validate(self) -> None:
        super()._validate()
        check_encoders(self)

    def resolved_precision(self) -> str:
        """``bf16`` or ``fp32``, as ``precision`` says or the device suggests."""
        bf16 = self.precision == "bf16" or (self.precision == "auto" and self.resolved_device() == "cuda")
        return "bf16" if bf16 else "fp32"

    def _lr_update(self) -> int:
        return self.lr_update or max(1, self.epochs * 2 // 3)

    def _settings(self) -> TrainingSettings:
        shared = {f.name: getattr(self, f.name) for f in fields(TrainingSettings) if hasattr(self, f.name)}
        where = {"device": self.resolved_device(), "precision": self.resolved_precision(), "seed": self.random_state}
        return TrainingSettings(**{**shared, **where})

    # -- fit --------------------------------------------------------------------------------------------------------

    def fit(
        self,
        pairs: Any,
        y: Any = None,
        *,
        val: Any = None,
        run_dir: str | Path | None = None,
        resume: bool = False,
        on_epoch: Callable[[EpochRecord, np.ndarray], None] | None = None,
        on_step: Callable[[int, int, float], None] | None = None,
        on_encode: Progress | None = None,
        on_encode_texts: Progress | None = None,
    ) -> Self:
        """Train on ``pairs`` and estimate the correspondence of each; see :meth:`PairScorer.fit`.

        ``val``: the epoch of the last stage with the best rSum on these clean pairs is kept; ``run_dir``: where to keep
        checkpoints, so that an interrupted fit can go on with ``resume=True``; ``on_epoch``, ``on_step``: see
        :class:`cleanpairs.trainer.Trainer`. Raises RefusedError also for a training that diverges.
        """
        self.validate()
        with distributed.process_group(self.resolved_device()):
            return self._fit(pairs, val, run_dir, resume, on_epoch, on_step, (on_encode, on_encode_texts))

    def _fit(
        self, pairs: Any, val: Any, run_dir: str | Path | None, resume: bool,
        on_epoch: Callable[[EpochRecord, np.ndarray], None] | None, on_step: Callable[[int, int, float], None] | None,
        on_encode: tuple[Progress | None, ...],
    ) -> Self:  # fmt: skip
        self._forget()
        pairs = load_pairs(pairs)
        self._refuse_other_work(pairs)
        with distributed.first_goes_ahead():
            quiet = (None, None)
            pairs, matrix, usable, data = self._training_data(pairs, *(on_encode if distributed.is_first() else quiet))
        self.evidence_ = evidence_of(
            matrix.array, data.tokens, data.image_index, data.image_group, data.text_group, seed=self.random_state
        )
        if self.require_evidence:
            refuse_without(self.evidence_, len(usable), self.method_name, pixels=matrix.array.ndim == 4)
        checkpoint = None
        if run_dir is not None:
            settings = {k: v for k, v in self.get_params().items() if isinstance(v, str) or not callable(v)}
            key = f"{pairs.source.fingerprint}:{sorted(settings.items())!r}:{self.encoders_.to_dict()!r}"
            checkpoint = Checkpoint(Path(run_dir) / "checkpoints", hashlib.sha256(key.encode()).hexdigest())
        trainer = Trainer(self._settings(), checkpoint=checkpoint, on_epoch=on_epoch, on_step=on_step)
        trained = trainer.fit(
            data, self._stages(), self._procedure(data), builder(self, matrix, data), self._validator(val), resume
        )
        self.heads_, self.history_ = trained.heads, trained.history
        self.best_val_rsum_ = trained.best_val_rsum
        self.correspondence_ = np.full(len(pairs), np.nan, dtype=np.float32)
        self.correspondence_[usable] = np.clip(trained.values, 0.0, 1.0)
        if not np.isfinite(self.correspondence_[usable]).all():
            raise RefusedError("the correspondence of some pairs is not finite: the model has diverged; lower lr")
        self.fingerprint_ = pairs.source.fingerprint
        self.model_, self.tau_ = self._model_and_temperature(trained.model, trained.values, data)
        self._set_threshold(self.correspondence_[usable])
        if self.threshold is None and self._null_threshold and self.encoders_.in_one_space(matrix, data.tokens):
            self._set_by_null(matrix.array, data)
        device = self.resolved_device()
        images = embed_images(self.model_, matrix.array, device=device)
        texts = embed_texts(self.model_, data.tokens, device=device)
        self._set_bank(images, texts, data.image_index, data.image_group, data.text_group, usable, self.model_)
        return self

    def _model_and_temperature(
        self, networks: DualEncoder, y: np.ndarray, data: TrainingData
    ) -> tuple[DualEncoder, float]:
        """The model that retrieves and scores, and the temperature of its probabilities: the networks as trained.

        ``y`` (N,) is the correspondence of the training's pairs.
        """
        return networks, self.label_tau or self.tau

    def _refuse_other_work(self, pairs: Pairs) -> None:
        """Processes that train together train on the same."""
        plain = {k: v for k, v in self.get_params().items() if isinstance(v, (str, int, float, tuple, list))}
        if not distributed.all_same(f"{self.method_name}:{pairs.source.fingerprint}:{sorted(plain.items())!r}"):
            raise ConfigError(
                f"the {distributed.world_size()} processes were started with different data or settings: they train "
                "one model, so give all the same; to train one model each, start them without torchrun"
            )

    def _training_data(
        self, pairs: Pairs, on_encode: Progress | None, on_encode_texts: Progress | None
    ) -> tuple[Pairs, ImageMatrix, np.ndarray, TrainingData]:
        """The pairs with their groups, the images' features, which pairs are usable, and these for a training."""
        self.load_encoders(text_encoder_for(self, pairs))
        matrix = self.encoders_.images(pairs, self.image_encoder, self.image_size, on_encode)
        self.quarantined_ = self._quarantine(pairs, matrix)
        pairs = self._grouped(pairs)
        usable = np.array([i for i in range(len(pairs)) if i not in self.quarantined_], dtype=np.int64)
        self._refuse_mostly_bad(pairs, len(usable))
        self.image_encoder_, self.image_size_ = matrix.encoder, matrix.image_size
        self.tokenizer_ = self._tokenizer(pairs, usable)
        data = TrainingData(
            images=matrix.array,
            tokens=self._tokens(pairs, on_encode_texts).take(usable),
            image_index=pairs.image_index[usable],
            image_group=pairs.pair_image_group[usable],
            text_group=pairs.text_group[usable],
            pair_id=usable,
        )
        return pairs, matrix, usable, data

    def _tokenizer(self, pairs: Pairs, usable: np.ndarray) -> Any:
        """What makes a table of captions: learned words, a frozen encoder, or both; ``captions_`` says which."""
        captions = [pairs.captions[i] for i in usable]
        self.encoders_, self.captions_ = self.encoders_.suiting(captions, self)
        if self.text_encoder_ == AUTO:
            self.text_encoder_ = (
                WORDS if self.encoders_.text is None else str(self.encoders_.to_dict()["text_encoder"]["name"])
            )
        frozen = self.encoders_.texts(pairs)
        both = isinstance(frozen, FrozenTexts) and self.encoders_.both is None and takes_sentences(self.backbone)
        if frozen is not None and not both:
            return frozen
        words = Tokenizer.fit(captions, kind=self.tokenizer, min_count=self.min_count, max_length=self.max_length)
        return words if frozen is None else WordsAndSentences(words, frozen)

    def load_encoders(
        self, text_encoder: str | Path | None, saved: dict[str, Any] | None = None, path: Path | None = None
    ) -> None:
        """The pretrained networks that the parameters name; those of a model in ``path``, where it is loaded."""
        self.text_encoder_ = text_encoder
        self.encoders_ = Encoders.load(self, text_encoder)
        if saved and path is not None:
            self.encoders_.check(saved, path)

    def _tokens(self, pairs: Pairs, progress: Progress | None = None, rows: np.ndarray | None = None) -> TokenTable:
        """The captions of all pairs, quarantined ones too, or of ``rows`` (k,)."""
        if isinstance(self.tokenizer_, Tokenizer | TokenNumbers):
            captions = pairs.captions if rows is None else [pairs.captions[i] for i in rows.tolist()]
            return self.tokenizer_.encode(captions)
        if rows is not None and isinstance(self.tokenizer_, WordsAndSentences):
            return self.tokenizer_.encode_rows(pairs, rows)
        table: TokenTable = self.tokenizer_.encode_pairs(pairs, progress)  # of pretrained encoders: it knows the cache
        return table if rows is None else table.take(rows)

    def _validator(self, val: Any) -> Callable[[Any], float] | None:
        if val is None:
            return None
        prepared = self._prepare(load_pairs(val))
        tokens = self._tokens(prepared[0])
        return lambda model: self._recall(model, *prepared, tokens).rsum

    def evaluate(self, pairs: Any) -> Recall:
        """See :meth:`PairScorer.evaluate`: near duplicates count each, as in validation."""
        self._fitted()
        prepared = self._prepare(load_pairs(pairs))
        return self._recall(self.model_, *prepared, self._tokens(prepared[0]))

    def _recall(self, model: Any, pairs: Pairs, features: ImageMatrix, tokens: TokenTable) -> Recall:
        device = self.resolved_device()
        images = embed_images(model, self._checked(features.array, model), device=device)
        texts = embed_texts(model, tokens, device=device)
        return Embedded(pairs, images, texts, self._quarantine(pairs, features)).recall(model, device)

    def _set_by_null(self, images: np.ndarray, data: TrainingData) -> None:
        """Threshold and noise rate of vectors of one space, where these agree with the method."""
        texts = data.tokens.vectors
        assert texts is not None
        y, rows = self.correspondence_[data.pair_id], data.tokens.ids[data.tokens.offsets[:-1]]
        vectors = images[data.image_index, 0], texts[rows]
        found = null_threshold(y, *vectors, data.image_group, data.text_group, seed=self.random_state)
        if found is not None:
            self.threshold_, self.noise_rate_ = found

    # -- use --------------------------------------------------------------------------------------------------------

    def _prepare(self, pairs: Pairs) -> tuple[Pairs, ImageMatrix]:
        encoder: Any = getattr(self, "image_encoder_", self.image_encoder)
        size = getattr(self, "image_size_", self.image_size)
        if encoder == "pretrained":
            return pairs, self.encoders_.images(pairs, encoder, size)
        if encoder == "features" and pairs.images.kind != "features":
            raise DataError("the model was trained on precomputed vectors, and this data has none")
        if encoder == "auto" or (encoder != "features" and pairs.images.kind == "features"):
            encoder = self.image_encoder
        return pairs, self.encoders_.images(pairs, encoder, size)

    def embed(self, pairs: Any, rows: np.ndarray | None = None) -> Embedded:
        """See :meth:`PairScorer.embed`."""
        self._fitted()
        pairs, matrix = self._prepare(load_pairs(pairs))
        array, tokens = self._checked(matrix.array), self._tokens(pairs, rows=rows)
        quarantined = self._quarantine(pairs, matrix) if rows is None else {}
        pairs = self._grouped(pairs)
        if rows is not None:
            pairs, used = with_images(pairs, rows)
            array = array[used]
        images = embed_images(self.model_, array, device=self.resolved_device())
        texts = embed_texts(self.model_, tokens, device=self.resolved_device())
        return Embedded(pairs, images, texts, quarantined, array, tokens)

    def _checked(self, array: np.ndarray, model: Any = None) -> np.ndarray:
        expected = input_dim(self.model_ if model is None else model)
        if array.ndim == 3 and expected is None:
            raise DataError("the model takes images, as its towers are trained on them, and these are vectors")
        if array.ndim == 3 and array.shape[-1] != expected:
            raise DataError(
                f"the model takes image vectors of {expected} dimensions, and this data has {array.shape[-1]}"
            )
        return array

    def score_embedded(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """See :meth:`PairScorer.score_embedded`: by the bank."""
        groups = pairs.image_group, pairs.text_group
        return self.bank_(images, texts, *groups, pairs.image_index, np.arange(len(pairs)))

    def takes_own_threshold(self, fingerprint: str) -> bool:
        """See :meth:`PairScorer.takes_own_threshold`: where none was asked for."""
        return self.threshold is None and fingerprint != self.fingerprint_

    def row_scorer(self, roles: Set[str]) -> RowScorer | None:
        """See :meth:`PairScorer.row_scorer`: image vectors stream, with captions or their vectors."""
        self._fitted()
        given = self.text_encoder_ == "features"
        if "features" not in roles or self.image_encoder_ != "features" or (given and "text_features" not in roles):
            return None
        return VectorScorer(self, text_vectors=given, pictures=self.near_duplicates and "image" in roles)

    def encode_images(self, images: Any) -> np.ndarray:
        """Unit vectors (m, d) float32 of images.

        ``images``: Pairs or what :func:`cleanpairs.load_pairs` takes, or an array (m, D), (m, R, D) of vectors, or
        (m, 3, H, W) uint8 pixels.
        """
        self._fitted()
        if isinstance(images, np.ndarray):
            if images.ndim == 4 and self.encoders_.frozen_images is not None:
                images = self.encoders_.frozen_images.encode_images(
                    [Image.fromarray(np.ascontiguousarray(x.transpose(1, 2, 0))) for x in images]
                )
            array = images[:, None, :] if images.ndim == 2 else images
        else:
            array = self._prepare(load_pairs(images))[1].array
        return embed_images(self.model_, self._checked(array), device=self.resolved_device()).vectors

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors (n, d) float32 of n captions."""
        self._fitted()
        if isinstance(texts, str):
            raise ConfigError(f"encode_texts takes a list of captions, found one text: use [{texts[:40]!r}]")
        return embed_texts(self.model_, self.tokenizer_.encode(texts), device=self.resolved_device()).vectors

    # -- persistence ------------------------------------------------------------------------------------------------

    def stored(self) -> Stored:
        """See :meth:`PairScorer.stored`: the weights, the vocabulary, and which pretrained networks stand before."""
        return stored_networks(self)

    def restore(self, saved: Saved, *, image_encoder: Any = None, image_transform: Any = None) -> None:
        """See :meth:`PairScorer.restore`."""
        restore_networks(self, saved, image_encoder, image_transform)
