r"""Auto: no noise rate, no threshold, no schedule to choose, and probabilities that hold.

A share of the pairs exchange their captions before any training. These *planted* pairs are mismatched for sure, and go
through all that follows as if nobody knew (target-decoy competition: Elias and Gygi, Nature Methods 2007). Untrained
agreement gives every pair a first probability w of being matched. Networks train on all pairs, weighted by w. Their
scores, with neighbours predicted again, are calibrated by those of the planted pairs: this gives w and the noise rate.

Then the planted pairs get their captions back. Sparse transport repairs pairs with w < 1/2 for the training (L2RM's
idea). Fresh networks judge all pairs once more, and a ridge regression joins them. Equations, sources and reasons:
docs/methods/auto.md.
"""

from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from cleanpairs.core.parameters import choice, number, whole
from cleanpairs.correspondence.calibration import UNDETERMINED, noise_rate
from cleanpairs.correspondence.pair_probability import PairProbability
from cleanpairs.correspondence.similarity import SimilarityAgreement
from cleanpairs.encoders.base import DualEncoder
from cleanpairs.encoders.ensemble import Ensemble, members_of
from cleanpairs.encoders.joint_head import JointSpace
from cleanpairs.encoders.linear import Linear
from cleanpairs.estimators import Embedded, PairCleaner
from cleanpairs.estimators.cleaner import Fit
from cleanpairs.estimators.encoders import AUTO, GIVEN
from cleanpairs.methods.auto_training import AutoTraining
from cleanpairs.methods.untrained import Untrained
from cleanpairs.ops.normalised_similarity import TAU
from cleanpairs.scoring import embed_images, embed_texts
from cleanpairs.trainer import TrainingData, step_seed


@dataclass(kw_only=True, eq=False, repr=False)
class Auto(PairCleaner):
    """The method that asks for no setting: neighbours' agreement, two networks, weights that are probabilities.

    Parameters
    ----------
    epochs : int
        Epochs of the second stage, whose networks are kept.

    label_epochs : int
        Epochs of the first stage. In both stages the scores of so many epochs enter the correspondence.

    repair_weight : float in [0, 1]
        Weight of the repaired pairs in the second stage.

    networks : int
        How many networks are trained, up to 16.

    planted : float in [0, .25]
        Share of the pairs that exchange captions in the first stage. 0: there is no first stage, and the noise rate
        is undetermined.

    mismatches : {"random", "similar"}
        Whose captions the planted pairs get. "random": those of any pairs. "similar": those of the twentieth of the
        pairs that is most like theirs. Then more is flagged, and only an upper bound of the noise rate is known.

    regression : bool
        False: the networks retrieve and score alone.

    retrieval : bool
        For vectors of one space: whether networks are trained that retrieve better. Else these vectors retrieve, and
        nothing is trained.

    text_encoder : str or Path, optional
        With "words", words are learned from the captions. With "auto", vectors of the installed sentence encoder join
        them, where that knows the language. With "features", the captions' vectors of the data are taken. Else it is a
        frozen encoder: a directory, or a name on the hub. None means "words". But None and "auto" take the data's
        vectors, where it has those of both sides.

    backbone : str
        Dual encoder: "mlp", "vse_inf", "saf", "sgr" or "sgraf".

    image_size : int, optional
        Side in pixels of the square that the image encoder sees. None: its own.

    image_transform : callable, optional
        For a torch module as ``image_encoder``: turns a list of Pillow's RGB images into its pixels.

    tune : str
        What is trained of ``encoder``: "head" (frozen towers), "lora", "blocks:N" (the last N) or "full".

    encoder_lr : float, optional
        Learning rate of the trained weights of ``encoder``. None: 2e-4 for LoRA, else 1e-5.

    lora_rank : int
        Rank of LoRA's matrices.

    gradient_checkpointing : bool
        Recompute the activations of the towers: less memory, more time.

    dim : int
        Dimensions of the joint embedding.

    dim_word : int
        Dimensions of a word's embedding.

    dim_sim : int
        Dimensions of the similarity vectors of backbones that compare words with regions.

    dropout : float in [0, 1)
        Dropout in the heads of "mlp".

    image_drop : float in [0, 1)
        Share of the regions that are left out at random in training.

    text_drop : float in [0, 1)
        Share of the words that are left out at random in training.

    standardise : bool
        Centre and scale the input vectors by dimension.

    tokenizer : {"words", "characters", "subword"}
        What a token is. "words" takes characters where a script has no spaces.

    min_count : int
        Words that occur less often are not in the vocabulary.

    max_length : int
        Captions are cut after so many words, or four times as many characters.

    encoder : str or Path, optional
        CLIP, SigLIP or another encoder of both sides, in place of backbone, image encoder and learned words.
        It is a directory, a name on the Hugging Face hub, or ``open_clip:MODEL/PRETRAINED``.

    image_encoder : str or torch.nn.Module
        "auto": vectors of the data where it has them, else "efficientnet_lite0". "efficientnet_lite0": frozen.
        "features": vectors of the data. A torch module is frozen.

    threshold : float in [0, 1], "auto" or None
        Pairs with a correspondence below it are flagged. "auto": the density minimum between the two modes, or 0 where
        there is only a high one and no pair looks mismatched. None: the method's own.

    eval_group_size : int
        Pairs in a group of an evaluation pass. Larger groups lower the probability of every pair.

    require_dependence : bool
        Refuse pairs whose images and captions do not depend on each other.

    max_bad_share : float in [0, 1], optional
        Share of the pairs that may be quarantined. None: ``CLEANPAIRS_MAX_BAD_SHARE``, or 0.2.

    drop : str
        Names of filters that quarantine more pairs, with commas between them. Some filters always do.

    near_duplicates : bool
        Copies of an image in other sizes, qualities or formats count as one image, as equal bytes do.

    device : {"auto", "cpu", "cuda"}
        "auto": a GPU where there is one.

    random_state : int, numpy.random.Generator or None
        Seed of everything. A generator, and None, draw one at ``fit``, which is then ``random_state_``.

    lr : float
        Learning rate of AdamW.

    lr_update : int, optional
        The rate falls to a tenth after each so many epochs of the last stage, without its warm-up. None: once, after
        two thirds of all.

    lr_decay : {"steps", "cosine"}
        How the rate falls after the warm-up: as ``lr_update`` says, or along half a cosine.

    weight_decay : float
        Weight decay of AdamW.

    grad_clip : float
        Largest norm of the gradient.

    batch_size : int
        Pairs in a step, of all processes together.

    micro_batch : int, optional
        Pairs that go through the towers at once, where a batch is too large for memory.

    tau : float
        Temperature of the matching probability.

    exclude_duplicates : bool
        Pairs with the same image or text are no negatives of each other.

    precision : {"auto", "fp32", "bf16"}
        "auto": bf16 on a GPU, fp32 on a CPU.

    Notes
    -----
    Sources and equations: docs/methods/auto.md. The numbers of the algorithm are in
    :class:`cleanpairs.methods.auto_training.AutoNumbers`.
    """

    method_name: ClassVar[str] = "auto"

    text_encoder: str | Path | None = "auto"
    epochs: int = 12
    label_epochs: int = whole(5, 2)
    repair_weight: float = number(0.5, least=0, most=1)
    networks: int = whole(2, 1, most=16)
    planted: float = number(0.1, least=0, most=0.25)
    mismatches: str = choice("random", "similar")
    regression: bool = True
    retrieval: bool = False

    def _builder(self, fit: Fit) -> Callable[[], Any]:
        found = fit.strategy.known.similarity
        if found is None or self.retrieval:
            return super()._builder(fit)
        self._similarity = found.model
        return partial(JointSpace, int(fit.images.array.shape[-1]))

    def _fits_sample(self, roles: Set[str]) -> bool:
        given = self.encoder is None and self.text_encoder in (None, AUTO, GIVEN)
        given &= self.image_encoder in ("auto", GIVEN) and not self._named_filters and not self.retrieval
        return given and {"features", "text_features"} <= roles

    @property
    def _knows_space(self) -> bool:
        return self._similarity is not None and self.calibration_ is not None

    def _judge_all(self, correspondence: np.ndarray) -> None:
        super()._judge_all(correspondence)
        if self.calibration_ is not None:
            known = correspondence[np.isfinite(correspondence)]
            self.noise_rate_ = float(1 - known.mean(dtype=np.float64))
            self.calibration_ = self.calibration_.moved(self.noise_rate_)
            rate = self.calibration_.noise_rate(len(known))
            self.noise_rate_interval_ = rate.low, rate.high
            self.noise_rate_bound_ = max(self.noise_rate_bound_, rate.high)

    def _make_strategy(self, data: TrainingData) -> AutoTraining:
        label_epochs = min(self.label_epochs, self.epochs)
        share = self.planted if label_epochs > 1 else 0.0
        similar = self.mismatches == "similar"
        known = Untrained.of(data, share, similar=similar, train=self.retrieval, seed=self.random_state_)
        return AutoTraining(known, self, label_epochs)

    def _set_noise_rate(self, fit: Fit) -> None:
        training: AutoTraining = fit.strategy
        known = training.known
        groups, calibration = known.agreement.group_noise_rate, training.calibration
        rate = noise_rate(calibration, len(fit.usable), other=training.untrained_rate)
        self._why_undetermined = "fewer than 120 pairs tell too little" if len(fit.usable) < 120 else ""
        if groups is not None and np.isnan(groups.determined().value):
            self._why_undetermined = "few images have several captions (or the reverse), which may all be wrong"
        if groups is not None and groups.high and calibration is not None:
            rate = rate.joined(groups.determined())
            if not np.isnan(rate.value):
                unseen = known.agreement.not_judged * len(fit.usable)
                calibration = replace(calibration.moved(rate.value), unseen=unseen)
        self.calibration_ = None if np.isnan(rate.value) else calibration
        self._counts_similar = isinstance(known.agreement, SimilarityAgreement) and known.agreement.near
        upper = known.plants_similar_pairs or self._counts_similar
        self.noise_rate_bound_ = rate.high if upper else known.agreement.bound(rate)
        self.better_than_random_ = known.agreement.better_than_random()
        self.standing_out_ = fit.usable[known.agreement.standing_out()]
        rate = UNDETERMINED if known.plants_similar_pairs else rate
        self.noise_rate_, self.noise_rate_interval_ = rate.value, (rate.low, rate.high)

    def _model_and_temperature(self, networks: DualEncoder, fit: Fit) -> tuple[DualEncoder, float]:
        """The networks and the regression. The cosines of each with as much spread over random pairs as the other's."""
        if self._similarity is not None:
            return networks, TAU
        networks, tau = super()._model_and_temperature(networks, fit)
        data, w = fit.data, fit.strategy.value()
        by_similarity = fit.strategy.known.by_similarity
        if not self.regression or by_similarity or networks.local or data.images.ndim != 3 or not w.any():
            return networks, tau
        device, seed = self._resolved_device(), self.random_state_
        given = data.images, data.tokens, data.image_index, w
        linear = Linear.fit(*given, vocabulary=len(self.tokenizer_), seed=seed).to(device)
        rng = np.random.default_rng(step_seed(seed, 19))
        some = np.sort(rng.choice(len(data), min(len(data), 512), replace=False))
        images, tokens = data.images[data.image_index[some]], data.tokens.take(some)
        S, L = (
            embed_images(m, images, device=device).vectors @ embed_texts(m, tokens, device=device).vectors.T
            for m in (networks, linear)
        )
        if min(S.std(), L.std()) < 1e-5:  # similarities that are all the same
            return networks, tau
        share = float(L.std() / (S.std() + L.std()))
        members = members_of(networks)
        weights = [*(share / len(members) for _ in members), 1 - share]
        spread = float((share * S + (1 - share) * L).std() / S.std())
        return Ensemble([*members, linear], weights).eval(), tau * spread

    def _pair_probability(self, embedded: Embedded, y: np.ndarray, threshold: float) -> PairProbability | None:
        """See :meth:`cleanpairs.estimators.PairScorer._pair_probability`."""
        pairs, spaces, joint = embedded.pairs, embedded.frozen_spaces, embedded.given_vectors()
        groups = pairs.pair_image_group, pairs.text_group
        return PairProbability(*spaces, pairs.image_index, *groups, y, threshold, joint=joint, seed=self.random_state_)
