"""PairCleaner: a :class:`PairScorer` that learns which pairs belong together."""

import hashlib
import re
import warnings
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
from torch import from_numpy, nn

import cleanpairs
from cleanpairs.core import ConfigError, DataError, RefusedError, check_choice, distributed, jsonable
from cleanpairs.core.plain import part_of
from cleanpairs.core.registry import BACKBONES, HEADS
from cleanpairs.core.torch_state import default_modes, seeded
from cleanpairs.correspondence.similarity import SimilarityModel
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.arrays import as_array
from cleanpairs.data.rows import RowBatch
from cleanpairs.encoders.base import DualEncoder, input_dim
from cleanpairs.encoders.ensemble import Ensemble, members_of
from cleanpairs.encoders.image_transform import pictures_of
from cleanpairs.encoders.joint_head import JointHead, VectorTowers
from cleanpairs.encoders.tokenizer import Tokenizer, TokenTable
from cleanpairs.estimators.batches import RowScorer, even, filled
from cleanpairs.estimators.embedded import Embedded, with_images
from cleanpairs.estimators.encoders import AUTO, GIVEN, WORDS, Encoders, takes_sentences, text_encoder_for
from cleanpairs.estimators.null_threshold import null_threshold
from cleanpairs.estimators.persistence import Saved, Stored
from cleanpairs.estimators.scorer import PairScorer, checked_captions, validation_pairs
from cleanpairs.estimators.settings import FitSettings, ModelSettings
from cleanpairs.features import Captions, ImageMatrix
from cleanpairs.features.texts import precomputed_text_vectors
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import VectorPairs
from cleanpairs.scoring import Embeddings, embed_images, embed_texts
from cleanpairs.scoring.evaluate import Recall
from cleanpairs.trainer import EpochRecord, Trainer, TrainingData, TrainingSettings, TrainingStage, TrainingStrategy
from cleanpairs.trainer.loop import Checkpoint
from cleanpairs.trainer.types import Trained, step_seed


@dataclass(frozen=True)
class Fit:
    """What a fit passes to its hooks.

    Parameters
    ----------
    pairs : Pairs
        N pairs, with their groups.

    images : ImageMatrix
        M images, as the networks take them.

    captions : TokenTable
        N captions.

    usable : (n,) int64
        The pairs that are trained on.

    data : TrainingData
        What these pairs are trained with.

    strategy : TrainingStrategy
        The method's, which has the correspondence after the training. None before it is made.
    """

    pairs: Pairs
    images: ImageMatrix
    captions: TokenTable
    usable: np.ndarray
    data: TrainingData
    strategy: Any = None


class FittedCleaner:
    """What ``fit`` finds in addition to :class:`cleanpairs.estimators.scorer.Fitted`.

    Attributes
    ----------
    model_ : DualEncoder
        The networks that retrieve and score. Of several it is their mean.
    tokenizer_ : Captions
        What makes tables of captions.
    """

    model_: Any
    tokenizer_: Captions
    _heads: list[Any]  # what was learned in addition to each network
    _encoders: Encoders  # the pretrained networks before it


@dataclass(kw_only=True, eq=False, repr=False)
class PairCleaner(FittedCleaner, PairScorer, ModelSettings, FitSettings):
    """Base of the methods that train: a dual encoder learned from noisy pairs.

    A method (see :mod:`cleanpairs.methods`) says which stages and which training strategy. The rest is here.
    """

    def _stages(self) -> list[TrainingStage]:
        """One stage of ``epochs`` epochs, unless a method has more."""
        return self._one_stage()

    def _one_stage(self, warmup: int = 0) -> list[TrainingStage]:
        """Return a stage of ``epochs`` epochs. Its learning rate decays by the epochs after the ``warmup``."""
        cosine, lr_update = self.lr_decay == "cosine", self.lr_update or max(1, self.epochs * 2 // 3)
        return [TrainingStage(self.epochs, lr_update, warmup if self.lr_update or cosine else 0, cosine)]

    def _make_strategy(self, data: TrainingData) -> TrainingStrategy:
        raise NotImplementedError

    _paper: ClassVar[dict[str, Any]] = {}

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return an estimator with the paper's, or its code's, settings for Flickr30K.

        Parameters
        ----------
        **changes
            Other values of some parameters.

        Returns
        -------
        PairCleaner
            What the paper does not say has its default.
        """
        return cls(**{**cls._paper, **changes})

    def _head(self, model: Any) -> Any:
        """Return what is learned in addition to ``model`` and kept with it, or None."""
        return None

    def _validate(self) -> None:
        super()._validate()
        owner = self.method_name
        BACKBONES[self.backbone]  # an unknown one raises
        if re.fullmatch(r"head|lora|full|blocks:[1-9]\d{0,3}", str(self.tune)) is None:
            raise ConfigError(f"tune of {owner} must be head, lora, blocks:N or full, found {self.tune!r}")
        if self.tune != "head" and self.encoder is None:
            raise ConfigError(
                f"tune={self.tune!r} of {owner} needs an encoder to tune: name it, encoder=NAME (--encoder NAME)"
            )
        if self.image_transform is not None and not callable(self.image_transform):
            raise ConfigError(f"image_transform of {owner} must be callable or None, found {self.image_transform!r}")
        if not isinstance(self.image_encoder, nn.Module):
            check_choice(owner, "image_encoder", self.image_encoder, ("auto", "features", "efficientnet_lite0"))
        if self.encoder is not None:
            precomputed = self.tune == "head" and self.image_encoder == "features"
            if self.image_encoder != "auto" and not precomputed:
                raise ConfigError(
                    f"encoder of {owner} looks at the images itself, found image_encoder={self.image_encoder!r}, "
                    f"too: leave one out ('features', with tune='head', takes vectors that it has made before)"
                )
            if self.text_encoder not in (None, AUTO, WORDS):
                raise ConfigError(f"encoder of {owner} reads the captions itself: leave text_encoder out")

    def _resolved_precision(self) -> str:
        """Return ``bf16`` or ``fp32``, as ``precision`` says or the device suggests."""
        bf16 = self.precision == "bf16" or (self.precision == "auto" and self._resolved_device() == "cuda")
        return "bf16" if bf16 else "fp32"

    def _settings(self) -> TrainingSettings:
        shared = {f.name: getattr(self, f.name) for f in fields(TrainingSettings) if hasattr(self, f.name)}
        where = {"device": self._resolved_device(), "precision": self._resolved_precision(), "seed": self.random_state_}
        # A checkpoint notes the pieces, and JSON knows no number of numpy.
        return TrainingSettings(**{**shared, **where, "micro_batch": self.micro_batch and int(self.micro_batch)})

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
    ) -> Self:
        """Train on the pairs, and estimate the correspondence of each.

        Parameters
        ----------
        pairs : N pairs
            As :func:`cleanpairs.load_pairs` takes them.
        y : None
            There are no labels.
        val : pairs, optional
            Clean pairs. The epoch of the last stage with the best rSum on them is kept.
        run_dir : str or Path, optional
            Where checkpoints are kept.
        resume : bool
            Go on from the checkpoints in ``run_dir`` of an interrupted fit.
        on_epoch, on_step : callable, optional
            See :class:`cleanpairs.trainer.Trainer`.

        Returns
        -------
        PairCleaner
            This one.

        Raises
        ------
        CleanpairsError
            See :meth:`PairScorer.fit`, also for notes. RefusedError: the training diverges, too.
        """
        self.validate()
        if resume and run_dir is None:
            raise ConfigError("resume=True needs the run_dir of the fit that was interrupted")
        with default_modes(), distributed.process_group(self._resolved_device()):
            self._begin()
            pairs, val = load_pairs(pairs), validation_pairs(val, y)
            self._refuse_different_processes(pairs)
            with distributed.main_process_first():
                fit = self._prepare(pairs)
            d, strategy, self._independence = fit.data, self._make_strategy(fit.data), None
            if not strategy.dependence_is_known:
                given = fit.images.array, d.tokens, d.image_index, d.image_group, d.text_group
                self._independence = self._test_independence(*given)
            checkpoint = None if run_dir is None else self._checkpoint(pairs, val, strategy, Path(run_dir))
            trainer = Trainer(self._settings(), checkpoint=checkpoint, on_epoch=on_epoch, on_step=on_step)
            self._train(replace(fit, strategy=strategy), trainer, val, resume)
            return self

    def _train(self, fit: Fit, trainer: Trainer, val: Pairs | None, resume: bool) -> None:
        strategy = fit.strategy
        stages, build = strategy.stages(self._stages()), self._builder(fit)
        if stages:
            trained = trainer.fit(fit.data, stages, strategy, build, self._validator(val), resume)
        else:
            trained = Trained(build().eval(), strategy.value(), heads=[None])
        self._heads, self.history_ = trained.heads, trained.history
        self.best_val_rsum_ = trained.best_val_rsum
        self._finish(trained.model, fit)
        if val is not None and not stages:
            self.best_val_rsum_ = self.evaluate(val).rsum

    def _refuse_different_processes(self, pairs: Pairs) -> None:
        plain = {k: v for k, v in self.get_params().items() if isinstance(v, (str, int, float, tuple, list))}
        work = f"{self.method_name}:{pairs.source.fingerprint}:{sorted(plain.items())!r}:{self.random_state_}"
        if distributed.all_reduce_max(distributed.broadcast(work) != work):
            raise ConfigError(
                f"the {distributed.world_size()} processes were started with different data or settings: they "
                "train one model, so give all the same; to train one model each, start them without torchrun"
            )

    def _checkpoint(self, pairs: Pairs, val: Pairs | None, strategy: TrainingStrategy, run_dir: Path) -> Checkpoint:
        elsewhere = ("meta", "random_state")  # what they stand for is in the key
        settings = sorted((k, v) for k, v in self.get_params().items() if not callable(v) and k not in elsewhere)
        code = cleanpairs.__version__, self.method_name, jsonable(settings, repr)  # 8 and np.int64(8) are one setting
        key = f"{code}:{pairs.source.fingerprint}:{self._encoders.to_dict()!r}:{self.random_state_}"
        key += "" if val is None else f":{val.source.fingerprint}"  # by which the best epoch was chosen
        key += f":meta:{strategy.meta_fingerprint}"
        return Checkpoint(run_dir / "checkpoints", hashlib.sha256(key.encode()).hexdigest())

    def _finish(self, networks: Any, fit: Fit) -> None:
        """Set what the trained ``networks`` tell of the pairs."""
        usable = fit.usable
        self.correspondence_ = np.full(len(fit.pairs), np.nan, dtype=np.float32)
        self.correspondence_[usable] = np.clip(fit.strategy.value(), 0.0, 1.0)
        if not np.isfinite(self.correspondence_[usable]).all():
            raise RefusedError("the correspondence of some pairs is not finite: the model has diverged; lower lr")
        if len(usable) > 1 and np.ptp(self.correspondence_[usable]) == 0:
            more = "; train more epochs, or on more pairs" * bool(self.history_)
            warnings.warn(f"all pairs have the same correspondence{more}", stacklevel=4)
        self._fingerprint = fit.pairs.source.fingerprint
        self.model_, self.tau_ = self._model_and_temperature(networks, fit)
        self._set_threshold(self.correspondence_[usable])
        self._set_noise_rate(fit)
        embedded = self._embedded(fit.pairs, fit.images.array, fit.captions, self.quarantined_)
        self._set_bank(embedded, usable, self.model_)
        self._judge_displaced(embedded)

    def _builder(self, fit: Fit) -> Callable[[], Any]:
        """Return what builds fresh networks for these images and captions."""
        matrix, data = fit.images, fit.data
        encoders, tokens, dim_image = self._encoders, data.tokens, int(matrix.array.shape[-1])
        if encoders.tuned:
            return partial(
                HEADS.load("tuned_clip"), encoders.joint, tune=self.tune, rank=self.lora_rank,
                encoder_lr=self.encoder_lr, checkpointing=self.gradient_checkpointing,
            )  # fmt: skip
        if encoders.in_one_space(matrix, tokens):
            return partial(JointHead, dim_image)
        # (V, D), of different captions, and those of them that are trained on
        frozen, used = (tokens.vectors, tokens.ids) if tokens.sentence is None else (tokens.sentences, tokens.sentence)
        shape: dict[str, Any] = {"dim": self.dim, "image_drop": self.image_drop}
        if tokens.vectors is not None:
            make = partial(VectorTowers, dim_image, tokens.vectors.shape[1], **shape)
            of_images: Any = _moments(_some(matrix.array[_some(np.unique(data.image_index))].reshape(-1, dim_image)))
        else:
            backbone = BACKBONES.load(self.backbone)
            shape |= {name: getattr(self, name) for name in ("dim_sim", "dropout") if hasattr(backbone.Shape, name)}
            if frozen is not None:
                shape["dim_sentence"] = int(frozen.shape[1])
            words = {"dim_word": self.dim_word, "text_drop": self.text_drop}
            make = partial(backbone, len(self.tokenizer_), dim_image, **words, **shape)
            of_images = _moments(_some_regions(matrix.array, data.image_index))
        of_texts = None if frozen is None else _moments(frozen[_some(np.unique(used))])

        def build() -> Any:
            network = make()
            if self.standardise:
                network.fit_input(*of_images)
            if self.standardise and of_texts is not None:
                network.fit_text(*of_texts)
            return network

        return build

    def _model_and_temperature(self, networks: DualEncoder, fit: Fit) -> tuple[DualEncoder, float]:
        """Return the model that retrieves and scores, and the temperature of its probabilities."""
        return networks, self.tau

    def _prepare(self, pairs: Pairs) -> Fit:
        """Read the images and the captions, and quarantine what cannot be used."""
        self._load_encoders(text_encoder_for(self, pairs))
        matrix = self._encoders.images(pairs, self.image_encoder, self.image_size)
        self.quarantined_ = self._quarantine(pairs, matrix)
        pairs = self._grouped(pairs)
        usable = self._usable(pairs)
        self._image_encoder, self._image_size = matrix.encoder, matrix.image_size
        self.tokenizer_ = self._tokenizer(pairs, usable)
        captions = self.tokenizer_.table(pairs)
        return Fit(pairs, matrix, captions, usable, self._data(pairs, matrix, captions, usable))

    def _data(self, pairs: Pairs, matrix: ImageMatrix, captions: TokenTable, usable: np.ndarray) -> TrainingData:
        groups = pairs.pair_image_group[usable], pairs.text_group[usable]
        index = pairs.image_index[usable]
        return TrainingData(matrix.array, captions.take(usable), index, *groups, pair_id=usable)

    def _tokenizer(self, pairs: Pairs, usable: np.ndarray) -> Captions:
        captions = [pairs.captions[i] for i in usable]
        self._encoders, self._captions = self._encoders.suiting(captions, self)
        joint, text, words, dim = self._encoders.joint, self._encoders.text, None, None
        if self._text_encoder == AUTO:
            self._text_encoder = WORDS if text is None else str(getattr(text, "name", text))
        if text == GIVEN:
            dim = int(precomputed_text_vectors(pairs).shape[1])
        elif joint is None and (text is None or takes_sentences(self.backbone)):
            words = Tokenizer.fit(captions, kind=self.tokenizer, min_count=self.min_count, max_length=self.max_length)
        return self._encoders.captions(words, dim)

    def _load_encoders(self, text_encoder: str | Path | None) -> None:
        self._text_encoder, self._encoders = text_encoder, Encoders.load(self, self._resolved_device(), text_encoder)

    def _validator(self, val: Pairs | None) -> Callable[[Any], float] | None:
        if val is None:
            return None
        prepared = val, self._images(val), self.tokenizer_.table(val)
        return lambda model: self._recall(model, *prepared).rsum

    def evaluate(self, pairs: Any, *, folds: int = 1) -> Recall:
        """See :meth:`PairScorer.evaluate`: near duplicates count each, as in validation."""
        self._fitted()
        pairs = load_pairs(pairs)
        return self._recall(self.model_, pairs, self._images(pairs), self.tokenizer_.table(pairs), folds)

    def _recall(self, model: Any, pairs: Pairs, features: ImageMatrix, tokens: TokenTable, folds: int = 1) -> Recall:
        device = self._resolved_device()
        images = embed_images(model, self._checked(features.array, model), device=device)
        texts = embed_texts(model, tokens, device=device)
        return Embedded(pairs, images, texts, self._quarantine(pairs, features)).recall(model, device, folds)

    def _set_noise_rate(self, fit: Fit) -> None:
        """Set noise rate and threshold by vectors of one space, as labels there have a scale of their own."""
        images, data, texts = fit.images.array, fit.data, fit.data.tokens.vectors
        if self.threshold is not None or texts is None or not self._encoders.in_one_space(fit.images, data.tokens):
            return
        y, rows = self.correspondence_[data.pair_id], data.tokens.ids[data.tokens.offsets[:-1]]
        pairs = VectorPairs(images[data.image_index, 0], texts[rows], data.image_group, data.text_group)
        estimate = null_threshold(y, pairs, self.random_state_)
        if estimate is not None:
            self.threshold_, self.noise_rate_ = estimate

    def _images(self, pairs: Pairs) -> ImageMatrix:
        encoder, images = getattr(self, "_image_encoder", self.image_encoder), pairs.images
        if encoder == "features" and images.kind != "features":
            raise DataError("the model was trained on precomputed vectors, and this data has none")
        if encoder not in ("features", "pretrained") and images.only_vectors:
            encoder = self.image_encoder
        return self._encoders.images(pairs, encoder, getattr(self, "_image_size", self.image_size))

    def _embed(self, pairs: Any, rows: np.ndarray | None = None) -> Embedded:
        """See :meth:`PairScorer._embed`."""
        self._fitted()
        pairs = load_pairs(pairs)
        matrix = self._images(pairs)
        array, tokens = self._checked(matrix.array), self.tokenizer_.table(pairs, rows)
        quarantined = self._quarantine(pairs, matrix) if rows is None else {}
        pairs = self._grouped(pairs)
        if rows is not None:
            pairs, used = with_images(pairs, rows)
            array = array[used]
        return self._embedded(pairs, array, tokens, quarantined)

    def _embedded(self, pairs: Pairs, array: np.ndarray, tokens: TokenTable, quarantined: dict[int, str]) -> Embedded:
        images = embed_images(self.model_, array, device=self._resolved_device())
        texts = embed_texts(self.model_, tokens, device=self._resolved_device())
        return Embedded(pairs, images, texts, quarantined, array, tokens)

    def _checked(self, array: np.ndarray, model: Any = None) -> np.ndarray:
        if array.ndim < 3:
            raise DataError(f"image vectors must be (m, D) or (m, R, D), found {array.shape}")
        expected = input_dim(self.model_ if model is None else model)
        if array.ndim == 3 and expected is None:
            raise DataError("the model takes images, as its towers are trained on them, and these are vectors")
        if array.ndim == 3 and array.shape[-1] != expected:
            raise DataError(
                f"the model takes image vectors of {expected} dimensions, and this data has {array.shape[-1]}: make "
                "them by the network that made those of its training data"
            )
        return array

    def _row_scorer(self, roles: Set[str]) -> RowScorer | None:
        """See :meth:`PairScorer._row_scorer`: image vectors stream, with captions or their vectors."""
        needed = {"features", "text_features" if self._text_encoder == GIVEN else "text"}
        if self._named_filters or self._image_encoder != "features" or not needed <= roles:
            return None
        groups_images = self.near_duplicates and "image" in roles  # near duplicates among them are one image
        compares_vectors = not self.model_.local and not groups_images
        return RowScorer(self._embed_rows, self._pair_scores, compares_vectors=compares_vectors)

    def _embed_rows(self, batch: RowBatch, data: str) -> tuple[Embeddings, Embeddings]:
        """Embed a batch of rows. DataError where the vectors have another size than the model's."""
        if not len(batch.captions):
            return (Embeddings(np.empty((0, self.model_.dim), np.float32)),) * 2
        assert batch.vectors is not None
        if batch.vectors.shape[-1] != (dim := input_dim(self.model_)):
            found = batch.vectors.shape[-1]
            raise DataError(f"the model takes image vectors of {dim} dimensions, {data} has {found}")
        if self._text_encoder == GIVEN:
            assert batch.text_vectors is not None
            tokens = self.tokenizer_.given(batch.text_vectors, data)
        else:
            tokens = self.tokenizer_.encode(batch.captions.to_pylist())
        if self._similarity is not None and batch.vectors.shape[1] == 1:  # torch's threads cost more than this
            captions = tokens.frozen()
            assert captions is not None
            return Embeddings(unit_rows(batch.vectors[:, 0])[batch.row]), Embeddings(unit_rows(captions))
        rows, device = np.arange(len(tokens)), self._resolved_device()
        vectors, tokens = filled(batch.vectors), tokens.take(filled(rows))
        images = embed_images(self.model_, vectors, device=device, batch_size=even(len(vectors)))
        texts = embed_texts(self.model_, tokens, device=device, batch_size=even(len(tokens)))
        return images.take(batch.row), texts.take(rows)

    def encode_images(self, images: Any) -> np.ndarray:
        """Encode images in the joint space.

        Parameters
        ----------
        images : pairs or numpy.ndarray
            What :func:`cleanpairs.load_pairs` takes, vectors (m, D) or (m, R, D), or pixels (m, 3, H, W) uint8.

        Returns
        -------
        (m, d) float32
            Unit vectors.
        """
        self._fitted()
        if isinstance(images, np.ndarray) and images.ndim == 4 and len(images):
            images = {"image": pictures_of(images), "caption": [""] * len(images)}
        if isinstance(images, np.ndarray):
            array = as_array("the images", images)
            array = array[:, None, :] if array.ndim == 2 else array
        else:
            array = self._images(load_pairs(images)).array
        return embed_images(self.model_, self._checked(array), device=self._resolved_device()).vectors

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """See :meth:`PairScorer.encode_texts`."""
        self._fitted()
        table = self.tokenizer_.encode(checked_captions(texts))
        return embed_texts(self.model_, table, device=self._resolved_device()).vectors

    def _stored(self) -> Stored:
        """See :meth:`PairScorer._stored`: the weights, the vocabulary, and which pretrained networks stand before."""
        encoders, members = self._encoders.to_dict(), members_of(self.model_)
        # By their absolute paths. What was chosen for these data is no parameter, nor is the name of a module.
        named = {role: network["name"] for role, network in encoders.items() if role != "image_encoder"}
        weights = dict(self.model_.state_dict())
        for k, head in enumerate(self._heads):
            if head is not None and type(self)._head is not PairCleaner._head:  # others stay with the training
                weights |= {f"head.{k}.{name}": value for name, value in head.state_dict().items()}
        words, similarity = self.tokenizer_.words, {} if self._similarity is None else self._similarity.arrays()
        return Stored(
            config={
                "backbone": {"name": getattr(members[0], "registered", self.backbone), **self.model_.config},
                "encoders": encoders,
                "text_encoder": named.get("text_encoder", self._text_encoder),
            },
            parameters={role: name for role, name in named.items() if getattr(self, role) not in (None, "auto")},
            arrays={f"similarity.{name}": array for name, array in similarity.items()},
            weights={name: value.detach().cpu().contiguous() for name, value in weights.items()},
            vocabulary=words.to_dict() if isinstance(words, Tokenizer) else None,
        )

    def _restore(self, saved: Saved) -> None:
        """See :meth:`PairScorer._restore`."""
        self._load_encoders(saved.config["text_encoder"])
        networks = self._encoders.to_dict()
        for role, network in saved.config["encoders"].items():
            if networks.get(role, {}).get("fingerprint") == network["fingerprint"]:
                continue
            if role == "image_encoder":
                raise ConfigError(
                    f"{saved.path} was made with the torch module {network['name']} as image_encoder, which is not "
                    "saved: give it again, from_pretrained(path, image_encoder=module, image_transform=...), of the "
                    "same class, weights and transform"
                )
            raise DataError(
                f"{network['name']} is not the model that {saved.path} was made with (its files have changed): fit "
                f"again, or put the former files back"
            )
        shape = dict(saved.config["backbone"])
        with seeded(0):  # weights that are drawn only to be replaced
            name, members = shape.pop("name"), shape.get("members")
            each = [self._network(member, name) for member in members or [shape]]
            network = Ensemble(each, shape.get("weights")) if members else each[0]
            heads = [self._head(member) for member in members_of(network)]
        weights, arrays = saved.tensors("model.safetensors", "pt"), saved.tensors("bank.safetensors")
        for k, head in enumerate(heads):
            if head is not None:
                head.load_state_dict(part_of(weights, f"head.{k}."))
        network.load_state_dict({name: value for name, value in weights.items() if not name.startswith("head.")})
        device = self._resolved_device()
        self.model_ = network.eval().to(device)
        self._heads = [None if head is None else head.to(device) for head in heads]
        self.bank_, similarity = saved.bank(arrays, self.model_, device), part_of(arrays, "similarity.")
        self._similarity = SimilarityModel.from_arrays(similarity) if similarity else None
        self.tokenizer_ = self._stored_captions(members[0] if members else shape, saved)

    def _network(self, config: dict[str, Any], usual: str) -> Any:
        """Return a network of this configuration, of the kind that it names, or the ``usual`` one."""
        shape = dict(config)
        name = shape.pop("name", usual)
        kind = (HEADS if name in HEADS else BACKBONES).load(name)
        return kind(self._encoders.joint, **shape) if name == "tuned_clip" else kind(**shape)

    def _stored_captions(self, shape: dict[str, Any], saved: Saved) -> Captions:
        words = None
        if "vocabulary" in shape:
            words = Tokenizer.from_dict(saved.json("vocabulary.json"))
            if len(words) != shape["vocabulary"]:
                raise DataError(
                    f"{saved.path / 'vocabulary.json'} makes {len(words)} tokens, and the model takes "
                    f"{shape['vocabulary']}: the files are not of one model"
                )
        return self._encoders.captions(words, shape.get("dim_text") or shape.get("dim_image"))


def _some_regions(array: np.ndarray, image_index: np.ndarray) -> np.ndarray:
    """Return regions (n, D) of up to 4096 images."""
    rows = np.unique(image_index)
    if len(rows) > 4096:
        rows = np.sort(np.random.default_rng(step_seed(0)).choice(rows, 4096, replace=False))
    return array[rows].reshape(-1, array.shape[-1])


def _some(x: np.ndarray) -> np.ndarray:
    """Return about 16,384 rows of n at even distances."""
    return x[:: max(1, len(x) // 16_384)]


def _moments(vectors: np.ndarray) -> tuple[Any, Any]:
    """Return mean and standard deviation (D,) of vectors (n, D)."""
    x = np.asarray(vectors, dtype=np.float32)
    return from_numpy(x.mean(axis=0)), from_numpy(x.std(axis=0))
