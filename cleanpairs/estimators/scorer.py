"""PairScorer: an estimator that scores any pair, and plans repairs, whether it was trained or not.

scikit-learn's conventions: the constructor only stores, ``fit`` validates, fitted state ends in an underscore.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from cleanpairs.audit import Answered, Opinions, read_answers
from cleanpairs.core import ConfigError, DataError, RefusedError, check_settings, limit, percent
from cleanpairs.core.plain import rate_in_words
from cleanpairs.correspondence.calibration import Calibration
from cleanpairs.correspondence.density_minimum import DensityMinimum, find_density_minimum
from cleanpairs.correspondence.displacement import Displacement
from cleanpairs.correspondence.pair_probability import PairProbability, VectorRows
from cleanpairs.correspondence.similarity import SimilarityModel
from cleanpairs.data import Pairs, Source, load_pairs
from cleanpairs.data.arrays import as_array, check_correspondence
from cleanpairs.data.duplicates import group_near_duplicates
from cleanpairs.data.filters import PREFIX, chosen_filters, filter_reasons
from cleanpairs.data.images import without_outliers
from cleanpairs.data.pairs import caption_text, is_missing
from cleanpairs.data.text import NO_CAPTION_FILE, NO_DOWNLOAD
from cleanpairs.estimators.batches import RowScorer
from cleanpairs.estimators.cut import Cut, cut_at
from cleanpairs.estimators.embedded import Embedded
from cleanpairs.estimators.encoders import MOST_NEW, unknown_share
from cleanpairs.estimators.null_threshold import UnseenThreshold, spread_blocks, unseen_threshold
from cleanpairs.estimators.persistence import Saved, Stored, load_estimator, save_estimator, versions
from cleanpairs.estimators.refusal import IndependenceTest, independence_of, refuse_independent
from cleanpairs.estimators.settings import EncoderSettings, RunSettings, ScoringSettings
from cleanpairs.features import ImageMatrix
from cleanpairs.ops.search import top_k
from cleanpairs.repair.candidates import DonorSearch, NeighbourSearch
from cleanpairs.repair.decisions import RepairProbability
from cleanpairs.repair.displaced import MOVE, moves_and_misplaced
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.plan_input import PlanInput
from cleanpairs.repair.planning import judged_pairs, plan_repairs, repair_probability
from cleanpairs.repair.recaption import CaptionWriter, recaption
from cleanpairs.repair.settings import RepairSettings, changed
from cleanpairs.scoring import Bank, Embeddings, trusted_rows
from cleanpairs.scoring.evaluate import Recall

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from cleanpairs.explain import Explainer, Explanation
    from cleanpairs.export import Pushed


def validation_pairs(val: Any, y: Any) -> Pairs | None:
    """Load the pairs of ``val``, if there are any to be loaded.

    Parameters
    ----------
    val : pairs, optional
        As :func:`cleanpairs.load_pairs` takes them.
    y : object
        What was given for labels, which are not looked at.

    Returns
    -------
    Pairs or None
        None where ``val`` is.

    Raises
    ------
    ConfigError
        Labels are pairs, or a path of some.
    DataError
        None of them is usable.
    """
    if isinstance(y, (Pairs, str, Path)):
        raise ConfigError("pairs are given as labels y, and there are no labels: name them fit(pairs, val=...)")
    pairs = None if val is None else load_pairs(val)
    if pairs is not None and len(pairs.reasons) == len(pairs):
        raise DataError("val holds no usable pair")
    return pairs


class Fitted:
    """What ``fit`` and ``from_pretrained`` find, for N pairs.

    Attributes
    ----------
    correspondence_ : (N,) float32
        How well the two belong together, in [0, 1]. Low for mismatched pairs, NaN for quarantined ones. Empty in a
        loaded model.

    threshold_ : float
        Pairs below it are flagged.

    random_state_ : int
        The seed.

    noise_rate_ : float
        Estimated share of mismatched pairs. NaN where undetermined, or where the method has none.

    noise_rate_interval_ : (float, float)
        Its 95 % interval, NaN where undetermined.

    noise_rate_bound_ : float
        Its upper 95 % bound, if wrong captions can be those of similar pairs.

    better_than_random_ : float
        Share of the pairs that fit better than 19 of 20 random ones. NaN where unknown.

    standing_out_ : (k,) int64
        The few pairs that fit worse than half of all random ones, worst first.

    quarantined_ : dict
        pair_id -> reason.

    history_ : list of dict
        Figures of each epoch.

    best_val_rsum_ : float or None
        rSum on the pairs for validation at the best epoch. It leaves out the regression of ``auto``.

    bank_ : Bank
        The trusted pairs that scores refer to.

    calibration_ : Calibration or None
        What turns scores into probabilities. None where the correspondence is no calibrated probability.

    displaced_ : Displacement
        Runs of rows whose captions stand a fixed number of rows away. A loaded model has none.

    tau_ : float
        Temperature of the matching probability.
    """

    correspondence_: np.ndarray
    threshold_: float
    random_state_: int
    noise_rate_: float
    noise_rate_interval_: tuple[float, float]
    noise_rate_bound_: float
    better_than_random_: float
    standing_out_: np.ndarray
    quarantined_: dict[int, str]
    history_: list[dict[str, Any]]
    best_val_rsum_: float | None
    bank_: Bank
    calibration_: Calibration | None
    displaced_: Displacement
    tau_: float
    _text_encoder: str | Path | None  # its name, "features" (the data's vectors), "words". None with `encoder`
    _similarity: SimilarityModel | None = None  # what scores vectors of one space, where nothing is trained
    _counts_similar = False  # whether the noise rate counts captions of similar pairs
    _independence: IndependenceTest | None = None  # what the test found. None: not tested, or dependence is known
    _why_undetermined = ""  # why the noise rate is, where that is known
    _is_sample: bool | None = None  # whether the pairs of ``fit`` are a sample. None: they come in no stream
    _moves_: np.ndarray = np.empty(0, MOVE)  # of the captions of displaced rows
    _blocks_: Sequence[dict[str, Any]] = ()  # of displaced rows, as the :class:`Explainer` takes them
    _captions: str | None  # what the captions became (learned words, vectors of which encoder), and why
    _versions: dict[str, str] | None  # package -> version, that a loaded model was made with
    _fingerprint: str
    _image_encoder: str
    _image_size: int | None


@dataclass(kw_only=True, eq=False, repr=False)
class PairScorer(Fitted, EncoderSettings, ScoringSettings, RunSettings):
    """Base of all methods: it scores pairs, plans repairs, and is saved. What ``fit`` finds: :class:`Fitted`."""

    method_name: ClassVar[str]
    needs_training: ClassVar[bool] = True

    def fit(self, pairs: Any, y: Any = None, *, val: Any = None) -> Self:
        """Estimate the correspondence of each pair.

        Parameters
        ----------
        pairs : N pairs
            As :func:`cleanpairs.load_pairs` takes them.
        y : None
            There are no labels.
        val : pairs, optional
            Clean pairs for validation.

        Returns
        -------
        PairScorer
            This one.

        Raises
        ------
        ConfigError
            A setting is out of its range, or pairs are given as ``y``.
        DataError
            No pair is usable, or more than ``max_bad_share`` of them are unusable.
        RefusedError
            Fewer than two pairs, or nothing to tell mismatched pairs by.

        Notes
        -----
        Pairs of displaced rows (:meth:`displaced_rows`) are mismatched: their correspondence is 0. The others are
        judged by their own share of mismatched pairs.
        """
        raise NotImplementedError

    def _embed(self, pairs: Any, rows: np.ndarray | None = None) -> Embedded:
        """Embed any data, or the pairs ``rows`` (k,) alone, as :meth:`Embedded.take` has them.

        Raises NotFittedError. DataError: the pairs cannot be read, or their vectors have another size than the model's.
        """
        raise NotImplementedError

    def _score_embedded(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> np.ndarray:
        """Correspondence (n,) float32 of n pairs, of :meth:`_embed`. Quarantined ones too."""
        groups = pairs.image_group, pairs.text_group
        return self._pair_scores(images, texts, *groups, pairs.image_index, np.arange(len(pairs)))

    @property
    def _pair_scores(self) -> Callable[..., np.ndarray]:
        """What scores pairs of embeddings: the similarity of one space if nothing is trained on it, else the bank."""
        return self.bank_ if self._similarity is None else self._similarity.score_pairs

    def _takes_own_threshold(self, fingerprint: str) -> bool:
        """Whether a trained model has another threshold for data of this fingerprint: not ``fit``'s, and none given."""
        return self.needs_training and self.threshold is None and fingerprint != self._fingerprint

    def _row_scorer(self, roles: Set[str]) -> RowScorer | None:
        """Return what scores streamed rows with columns of these roles. None: they are loaded whole."""
        raise NotImplementedError

    def _fits_sample(self, roles: Set[str]) -> bool:
        """Whether a sample of rows with columns of these roles tells how to score all of them."""
        return False

    @property
    def _named_filters(self) -> dict[str, float]:
        """The filters that ``drop`` names. They need all rows at once, so that none streams."""
        return chosen_filters(f"none,{self.drop}")

    def _judge_all(self, correspondence: np.ndarray) -> None:
        """Take over the correspondence (N,) of all pairs of which those of ``fit`` were a sample."""
        self.correspondence_, self.standing_out_ = correspondence, np.empty(0, np.int64)

    def _judge_displaced(self, embedded: Embedded) -> None:
        """Find displaced rows among the pairs of ``fit``, unless these come in a stream."""
        if self._is_sample is None:
            seen, found = embedded.pairs, embedded.displaced_rows(self.correspondence_)
            self._set_displaced(seen.row, seen.pair_image_group, seen.text_group, found)

    def _set_displaced(
        self, row: np.ndarray, image_group: np.ndarray, text_group: np.ndarray, found: Displacement
    ) -> None:
        """Judge the pairs of ``fit`` by displaced rows ``found`` among them. See :func:`moves_and_misplaced`.

        Pairs that show another image's caption are mismatched from now on, and their share is the least noise rate. Its
        interval does not begin below the expected share of those whose own caption is found. The probabilities of the
        others follow from the share of mismatched pairs among them alone.
        """
        y, (low, high) = self.correspondence_, self.noise_rate_interval_
        moves, away = moves_and_misplaced(row, image_group, text_group, found, self.quarantined_, y)
        self.displaced_, self._moves_, usable = found, moves, np.isfinite(y)
        at = np.append(np.unique(row, return_index=True)[1], len(row)).tolist()
        self._blocks_ = [{"pair_id": at[b.first], "last": at[b.last + 1] - 1, "why": str(b)} for b in found.blocks]
        if self.calibration_ is not None and away.any() and (usable & ~away).any():
            self.calibration_, odds = self.calibration_.of_part(y[usable & ~away])
            y = y / (y + (1 - y) * odds)
        self.correspondence_ = y * ~away
        self.threshold_ = self._above_displaced(self.threshold_, self.correspondence_, away)
        least, surely = float(away[usable].mean()), float(moves["confidence"][away[moves["pair"]]].sum() / usable.sum())
        self.noise_rate_, self.noise_rate_bound_ = max(self.noise_rate_, least), max(self.noise_rate_bound_, least)
        self.noise_rate_interval_ = max(low, surely), max(high, least)

    def _above_displaced(self, threshold: float, y: np.ndarray, away: np.ndarray) -> float:
        """Return the model's threshold, which flags pairs with a ``y`` (n,) of 0 if some are ``away`` (n,)."""
        if threshold or self.threshold is not None or not away.any():
            return threshold
        return float(np.min(y, where=y > 0, initial=0.5))  # no other pair was worse than another

    def _displaced_of_fit(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the moves among the pairs of ``fit``, and which pairs (N,) are away. A person's yes decides."""
        moves, away = self._moves_, (self._without_answers("correspondence_") == 0) & (len(self._moves_) > 0)
        stays = away & (self.correspondence_ == 1)
        return moves[~(stays[moves["pair"]] | stays[moves["donor"]])], away & ~stays

    def encode_images(self, images: Any) -> np.ndarray:
        """Encode images.

        Parameters
        ----------
        images : pairs or numpy.ndarray
            What :func:`cleanpairs.load_pairs` takes, or an array of vectors or pixels.

        Returns
        -------
        (m, d) float32
            Unit vectors of all images. Pair i has row ``image_index[i]``. A part of the pairs shares all images.
        """
        raise NotImplementedError

    def encode_texts(self, texts: Sequence[str]) -> np.ndarray:
        """Encode captions.

        Parameters
        ----------
        texts : sequence of str
            n captions.

        Returns
        -------
        (n, d) float32
            Unit vectors.

        Raises
        ------
        ConfigError
            They are one text, or the captions of the fit came as vectors.
        DataError
            A caption is no text.
        """
        raise NotImplementedError

    def evaluate(self, pairs: Any, *, folds: int = 1) -> Recall:
        """Retrieval recall on pairs. An image that occurs in several rows counts once.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.
        folds : int
            The mean over as many parts, of neighbouring images. MS-COCO 1K: 5.

        Returns
        -------
        Recall
            R@1, R@5 and R@10 both ways in percent, and ``rsum``, their sum.

        Raises
        ------
        DataError
            There are fewer images than folds.
        """
        return self._embed(pairs).recall(folds=folds)

    def _stored(self) -> Stored:
        """Return what this kind of model saves in addition to what all models save."""
        raise NotImplementedError

    def _restore(self, saved: Saved) -> None:
        """Become fitted by what :meth:`_stored` kept, ``bank_`` included."""
        raise NotImplementedError

    def _default_threshold(self, density_minimum: DensityMinimum) -> float:
        return 0.5

    def _search(self, pairs: Pairs, images: Embeddings, texts: Embeddings) -> DonorSearch | None:
        """Return the method's own way to look for donors. None: the nearest by cosine."""
        return None

    def _pair_probability(self, embedded: Embedded, y: np.ndarray, threshold: float) -> PairProbability | None:
        """Return what tells by the correspondence ``y`` (n,) how likely repairs are right. None without evidence."""
        return None

    @property
    def _knows_space(self) -> bool:
        """Whether it compares vectors of one space as they are, and its scores of any data are probabilities."""
        return False

    def validate(self) -> None:
        """Check every setting. ConfigError names the first that is out of its range. ``fit`` calls this first."""
        self._validate()
        self._resolved_device()

    def _validate(self) -> None:
        chosen_filters(self.drop)
        check_settings(self.method_name, self)

    def _resolved_device(self) -> str:
        """Return ``cpu`` or ``cuda``, as ``device`` says or this machine has it. ConfigError if it has no GPU."""
        import torch

        if self.device == "cuda" and not torch.cuda.is_available():
            raise ConfigError("device 'cuda' is not available here: use device='cpu' or 'auto'")
        return "cuda" if self.device != "cpu" and torch.cuda.is_available() else "cpu"

    def _begin(self) -> None:
        """Forget what was fitted: a fit that fails must not leave the words of one with the weights of another."""
        for name in [n for n in vars(self) if n.endswith("_")]:
            delattr(self, name)
        self.noise_rate_interval_, self.noise_rate_bound_ = (float("nan"), float("nan")), float("nan")
        self.better_than_random_, self.standing_out_ = float("nan"), np.empty(0, np.int64)
        self.best_val_rsum_ = self._text_encoder = self._captions = self.calibration_ = self._versions = None
        self._similarity = None
        given = self.random_state
        drawn = given is None or isinstance(given, np.random.Generator)
        self.random_state_ = int(np.random.default_rng(given).integers(2**31)) if drawn else int(given)

    def _quarantine(self, pairs: Pairs, matrix: ImageMatrix) -> dict[int, str]:
        failures, index = matrix.failures, pairs.image_index
        failed = {i: failures[int(index[i])] for i in np.flatnonzero(np.isin(index, list(failures))).tolist()}
        outliers = {} if pairs.text_vectors is None else without_outliers(pairs.text_vectors, "text vector")[1]
        filtered = filter_reasons(pairs, self.drop, pictures=self.near_duplicates)
        return dict(sorted({**filtered, **outliers, **failed, **pairs.reasons}.items()))

    def _grouped(self, pairs: Pairs) -> Pairs:
        """Group near duplicates, after the images are read, whose cache knows the exact groups."""
        return group_near_duplicates(pairs) if self.near_duplicates else pairs

    def _usable(self, pairs: Pairs) -> np.ndarray:
        """Return the usable pairs (n,) int64. DataError, RefusedError: they are too few, or all alike."""
        n, usable = len(pairs), np.array([i for i in range(len(pairs)) if i not in self.quarantined_], dtype=np.int64)
        if n == 0:
            raise DataError(f"{', '.join(pairs.source.paths[:1]) or 'the input'} holds no pair to learn from")
        most = limit("bad_share") if self.max_bad_share is None else self.max_bad_share
        foreseen = (PREFIX, NO_DOWNLOAD, NO_CAPTION_FILE)
        bad = {pair: reason for pair, reason in self.quarantined_.items() if not reason.startswith(foreseen)}
        many = len(bad) > n * most
        if many or not len(usable):
            pair, reason = next(iter((bad if many else self.quarantined_).items()))
            # The pairs of a sample have other numbers.
            of, first = (f"{n} of a sample", "") if self._is_sample else (str(n), f" is pair {pair}")
            share = f"{len(bad)} of {of}, more than {percent(most, 0)} (--set max_bad_share=SHARE)"
            what = share if many else f"all of {of}"
            raise DataError(f"unusable pairs: {what}; the first{first}: {reason}{_folder_hint(pairs, reason)}")
        if len(usable) < 2:
            raise RefusedError(f"a fit needs at least 2 usable pairs, found {len(usable)}: give more data")
        if not self.require_dependence:
            return usable
        sides = {"image": (pairs.images.array(), pairs.image_index), "text": (pairs.text_vectors, pairs.pair_id)}
        for side, (array, index) in sides.items():
            if array is not None and all(np.array_equal(array[i], array[index[usable[0]]]) for i in index[usable]):
                same = f"the {side} vectors of the {len(usable)} usable pairs are the same"
                raise RefusedError(f"all rows are alike: {same}; encode them again")
        return usable

    def _test_independence(self, *given: Any) -> IndependenceTest:
        """Return :func:`independence_of` the arguments. RefusedError if they are independent, and may not be."""
        independence = independence_of(*given, seed=self.random_state_)
        if self.require_dependence:
            refuse_independent(independence, self.method_name, given, seed=self.random_state_)
        return independence

    def _set_threshold(self, y: np.ndarray) -> None:
        density_minimum = find_density_minimum(y)
        self.noise_rate_ = float("nan")
        if self.threshold == "auto":
            if not density_minimum.separated and not density_minimum.right:
                raise RefusedError(
                    "threshold='auto' found no density minimum between matched and mismatched pairs in the "
                    "correspondence: give a number, or train longer"
                )
            self.threshold_ = density_minimum.threshold if density_minimum.separated else 0.0  # one mode of right pairs
        else:
            given, independence = self.threshold, self._independence
            self.threshold_ = self._default_threshold(density_minimum) if given is None else float(given)
            if given is None and self.require_dependence and independence is not None and not independence.z >= 1:
                self.threshold_ = 0.0  # a few pairs, none of which is known to be worse than another

    def _set_bank(self, embedded: Embedded, usable: np.ndarray, model: Any = None) -> None:
        """Keep some trusted pairs among the ``usable`` (n,) int64 of a fit. A ``model`` is what has embedded them."""
        pairs, local = embedded.pairs, model is not None and model.local
        image_group, text_group = pairs.pair_image_group, pairs.text_group
        rows = trusted_rows(
            image_group[usable], text_group[usable], self.correspondence_[usable],
            group_size=self.eval_group_size - 1, groups=1 if local else 8, seed=self.random_state_,
        )  # fmt: skip
        trusted, device = usable[rows], "cpu" if model is None else self._resolved_device()
        sides = embedded.images.take(pairs.image_index[trusted]), embedded.texts.take(trusted)
        groups = image_group[trusted], text_group[trusted]
        self.bank_ = Bank(*sides, *groups, self.tau_, self.eval_group_size - 1, model, device)

    def _fitted(self, *, scores: bool = False) -> None:
        """NotFittedError before a fit, or without its ``scores``, which a model on the disk leaves out."""
        missing = f"this {type(self).__name__} is not fitted yet: call fit, or from_pretrained"
        if hasattr(self, "bank_"):
            missing = "a loaded model holds no scores of its fit: fit it again, or read scores.parquet of its run"
            if not scores or len(self.correspondence_):
                return
        from cleanpairs.core.errors import NotFittedError  # which imports scikit-learn

        raise NotFittedError(missing)

    def score_pairs(self, pairs: Any) -> np.ndarray:
        """Score any pairs.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.

        Returns
        -------
        (n,) float32
            The correspondence in [0, 1], NaN where a pair is quarantined. Of trained methods it is the matching
            probability among the trusted pairs of ``bank_``.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        DataError
            The pairs cannot be read, or their vectors have another size than the model's.

        Notes
        -----
        Warns where most words are new to the model.
        """
        return self._scored(pairs)[1]

    def predict(self, pairs: Any) -> np.ndarray:
        """Return which pairs are mismatched.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.

        Returns
        -------
        (n,) bool
            Pairs of ``fit`` are judged by its correspondence and threshold. Others are judged by :meth:`score_pairs`
            and :meth:`own_threshold`, which goes by all of them together. Quarantined pairs count as mismatched.
        """
        y, threshold = self._scores_and_threshold(load_pairs(pairs))
        return np.asarray(~(y >= threshold))

    def fit_predict(self, pairs: Any, y: Any = None) -> np.ndarray:
        """Fit, and tell which pairs are mismatched.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.
        y : None
            There are no labels.

        Returns
        -------
        (n,) bool
            As :meth:`predict` after :meth:`fit`.
        """
        pairs = load_pairs(pairs)
        return self.fit(pairs, y).predict(pairs)

    def _scored(self, pairs: Any) -> tuple[Embedded, np.ndarray]:
        """:meth:`_embed` and :meth:`score_pairs` at once."""
        embedded = self._embed(pairs)
        unknown = unknown_share(getattr(self, "tokenizer_", None), embedded.pairs.captions)
        if unknown is not None and unknown > MOST_NEW:
            what = f"the model does not know {percent(unknown, 0)} of the words: it was fitted on other captions"
            warnings.warn(what, stacklevel=3)
        return embedded, self._scores_of(embedded)

    def _has_scores_of(self, source: Source, pairs: int) -> bool:
        """Whether ``correspondence_`` is that of all the ``pairs`` of a source. A loaded model has none."""
        return source.fingerprint == self._fingerprint and pairs == len(self.correspondence_)

    def _scores_of(self, embedded: Embedded) -> np.ndarray:
        """Correspondence (n,) float32 of pairs of :meth:`_embed`, NaN where one is quarantined."""
        scores = self._score_embedded(embedded.pairs, embedded.images, embedded.texts)
        scores[list(embedded.quarantined)] = np.nan
        return scores

    def displaced_rows(self, pairs: Any) -> Displacement:
        """Find runs of rows whose captions stand a fixed number of rows away.

        Parameters
        ----------
        pairs : Pairs, or what :func:`cleanpairs.load_pairs` takes
            N pairs, of n rows of the input, in their order. A row with several captions counts once.

        Returns
        -------
        Displacement
            Distance and probability (n,) of each row, and the blocks. ``str`` of a block is a sentence.

        Raises
        ------
        NotFittedError
            Before ``fit``.
        DataError
            The pairs cannot be read.

        Notes
        -----
        See :mod:`cleanpairs.correspondence.displacement`. Trained networks know displaced pairs by heart. So pairs are
        compared by ridge regressions between frozen spaces, each fitted to other rows, where the images have any.
        """
        pairs, found = load_pairs(pairs), getattr(self, "displaced_", None)
        if found is not None and self._has_scores_of(pairs.source, len(pairs)):
            return found
        embedded = self._embed(pairs)
        return embedded.displaced_rows(self._scores_of(embedded))

    def calibrate(self, answers: Mapping[int, bool | None] | str | Path, opinions: Opinions | None = None) -> Self:
        """Take probabilities, noise rate and threshold from a person's answers about some pairs of ``fit``.

        Parameters
        ----------
        answers : mapping of int to bool or None, or path
            Pair id -> whether the caption belongs to the image, None where nobody can say. Or a CSV with the
            columns `pair_id` and `matched`.
            Each call starts from the scores of ``fit``: give all answers.
        opinions : Opinions, optional
            A judge's, by :func:`cleanpairs.audit.second_opinions`. They count by its measured errors.

        Returns
        -------
        Self
            With another ``correspondence_``, ``threshold_``, ``noise_rate_``, ``noise_rate_interval_`` and
            ``calibration_``. Other pairs, and a saved model, keep the threshold and the scores of ``fit``.

        Raises
        ------
        DataError
            There is neither an answer nor an opinion, or one is about a pair that has no score.

        See Also
        --------
        cleanpairs.audit.next_questions : The pairs whose answers tell most.
        """
        self._fitted(scores=True)
        y = self._without_answers("correspondence_")
        if isinstance(answers, (str, Path)):
            answers = read_answers(answers, correspondence=y)
        elif not hasattr(answers, "items"):
            raise DataError(f"answers are {{pair_id: True or False}}, or a CSV, not {type(answers).__name__}")
        answers = {pair: None if is_missing(answer) else answer for pair, answer in answers.items()}
        if all(answer is None for answer in answers.values()) and opinions is None:
            raise DataError("there is no answer to calibrate by: name some pairs, and whether their captions belong")
        self._apply_answers(Answered.of(y, answers, opinions, displaced=len(self._moves_) > 0))
        return self

    def _apply_answers(self, answered: Answered) -> None:
        rate = answered.noise_rate
        rates = ("noise_rate_", "noise_rate_interval_", "noise_rate_bound_")
        known = {name: getattr(self, name) for name in ("correspondence_", "threshold_", "calibration_", *rates)}
        self._of_fit_ = getattr(self, "_of_fit_", known)
        self.correspondence_, self.threshold_ = answered.correspondence.copy(), answered.threshold
        self.noise_rate_, self.noise_rate_interval_ = rate.value, (rate.low, rate.high)
        self.noise_rate_bound_, self.calibration_ = float("nan"), answered.calibration

    def threshold_for(
        self, *, max_wrong: float | None = None, keep: float | None = None, correspondence: np.ndarray | None = None
    ) -> Cut:
        """Return the threshold that keeps the largest set with at most a share of mismatched pairs, or the best share.

        Parameters
        ----------
        max_wrong : float in (0, 1), optional
            Expected share of mismatched pairs among the kept. Its interval ends below 1.5 times that.
        keep : float in (0, 1], optional
            Share of the pairs that is kept. Of equal ones all are, and of displaced rows none is.
        correspondence : (n,) float, optional
            Correspondence of the data of ``fit``. A loaded model needs it.

        Returns
        -------
        Cut
            The threshold, and what it keeps.

        Raises
        ------
        ConfigError
            Not exactly one of the two is given, or it is out of range.
        DataError
            A correspondence is not in [0, 1].
        RefusedError
            ``max_wrong`` without probabilities or for other scores than those of ``fit``, or fewer than 30 pairs are
            known to be that pure.
        """
        self._fitted()
        own = self.correspondence_
        y = np.asarray(own if correspondence is None else correspondence, dtype=np.float32)
        if max_wrong is not None and len(own) and not np.array_equal(y, own.astype(np.float32), equal_nan=True):
            raise RefusedError("max_wrong is promised of the scores of fit: others are no probabilities of their data")
        known = y[np.isfinite(y)], self.calibration_, self.method_name
        return cut_at(*known, max_wrong=max_wrong, keep=keep, displaced=len(self._moves_) > 0)

    def rematch(
        self,
        pairs: Any,
        settings: RepairSettings | None = None,
        *,
        correspondence: np.ndarray | None = None,
        neighbour_search: NeighbourSearch = top_k,
        recaption: CaptionWriter | str | Path | None = None,
        **changes: Any,
    ) -> RepairPlan:
        """Plan which pair gets which caption or image from which other. Nothing is changed.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.

        settings : RepairSettings, optional
            Settings of the repairs.

        correspondence : (n,) float, optional
            For the data of ``fit`` it is that of ``fit``. For other data it is that of :meth:`score_pairs` with
            :meth:`own_threshold`. If you give one, it goes with the threshold of ``fit``. A loaded model that was
            trained has no scores of its fit, and warns for that data if you give none.

        neighbour_search : callable
            Searches by cosine, like :func:`cleanpairs.ops.search.top_k`.

        recaption : CaptionWriter, str or Path, optional
            Writes captions for what would be dropped. See :meth:`recaption`.

        **changes
            Single settings, by the names of :class:`cleanpairs.repair.settings.RepairSettings`.

        Returns
        -------
        RepairPlan
            An action for each pair.

        Raises
        ------
        ConfigError
            A setting is unknown, or out of its range.
        """
        wanted = changed(settings, changes)
        embedded, unseen, fitted = self._embed(pairs), None, True
        of_fit = embedded.pairs.source.fingerprint == self._fingerprint
        if correspondence is not None:
            correspondence = _checked_scores(embedded.pairs, correspondence)
        else:
            fitted = self._has_scores_of(embedded.pairs.source, len(embedded.pairs))
            if of_fit and self.needs_training and not len(self.correspondence_):
                what = "give `correspondence`, such as that in scores.parquet of its run"
                warnings.warn(f"a loaded model holds no scores of its fit: {what}", stacklevel=2)
            if fitted:  # filters that a streamed fit did not apply quarantine nothing now
                faulty = {i: why for i, why in embedded.quarantined.items() if not why.startswith(PREFIX)}
                embedded = replace(embedded, quarantined={**faulty, **self.quarantined_})
            correspondence = self.correspondence_ if fitted else self._scores_of(embedded)
            unseen = self._threshold_of(embedded, correspondence)
        chosen = wanted.resolved(self._applied_threshold(unseen, of_fit=fitted))
        usable = replace(embedded.pairs, reasons=embedded.quarantined)
        moves = None
        if chosen.displaced:
            row, image, text = np.unique(usable.row, return_inverse=True)[1], usable.pair_image_group, usable.text_group
            if correspondence is self.correspondence_:
                moves, away = self._displaced_of_fit()
                moves["distance"] = row[moves["donor"]] - row[moves["pair"]]  # those that a run keeps count pairs
            else:
                found = embedded.displaced_rows(correspondence)
                moves, away = moves_and_misplaced(row, image, text, found, embedded.quarantined, correspondence)
            correspondence = correspondence * ~away
            if wanted.threshold is None:
                cut = self._above_displaced(chosen.resolved_threshold, correspondence, away)
                chosen = replace(chosen, threshold=cut)
        given = PlanInput.of(usable, correspondence, embedded.images.vectors, embedded.texts.vectors, chosen, moves)
        by_method = wanted.strategy == "method"
        plan = plan_repairs(
            given, partial(self.bank_.judging, embedded.images, embedded.texts), chosen,
            fingerprint=embedded.pairs.source.fingerprint, temperature=self.bank_.tau,
            judge=self._judge(given, chosen, embedded.take, fitted=of_fit, unseen=unseen),
            donor_search=self._search(embedded.pairs, embedded.images, embedded.texts) if by_method else None,
            neighbour_search=neighbour_search,
        ).plan()  # fmt: skip
        if recaption is None:
            return plan
        return self.recaption(embedded.pairs, plan, recaption, max_reuse=chosen.max_reuse)

    def _judge(
        self, given: PlanInput, settings: RepairSettings, embed: Callable[[np.ndarray], Embedded], *, fitted: bool,
        unseen: UnseenThreshold | None,
    ) -> RepairProbability | None:  # fmt: skip
        """Return how likely the repairs of pairs are right, of which ``embed`` embeds some rows.

        ``fitted``: they are those of ``fit``. ``unseen``: what the scores of others tell. None where neither is so, and
        the scores of other pairs are no probabilities. None where there is nothing to repair.
        """
        known = fitted or unseen is not None or (self._knows_space and self._without_answers("noise_rate_") >= 0)
        if settings.repairs == "none" or not known or not len(given.mismatched):
            return None
        threshold, matched = settings.resolved_threshold, None if unseen is None else unseen.matched
        rows = judged_pairs(given.undecided, threshold, self.random_state_)
        y = given.undecided[rows]
        if matched is not None:
            y, threshold = matched(y), float(matched(np.array([threshold]))[0])
        if not self._knows_space:
            if matched is None and self.calibration_ is None:
                return None
            return repair_probability(given, settings, self._pair_probability(embed(rows), y, threshold), rows, matched)
        # The vectors of the pairs to be repaired are at hand already.
        wrong, groups = np.isin(rows, given.mismatched), (given.image_group[rows], given.text_group[rows])
        if wrong.all():
            return None
        embedded, R = embed(rows[~wrong]), len(given.mismatched)
        image, text = np.empty((2, len(rows)), np.int64)
        image[wrong], image[~wrong] = given.image_row[:R], len(given.z_image) + embedded.pairs.image_index
        text[wrong], text[~wrong] = given.text_row[:R], len(given.z_text) + np.arange(len(embedded.texts))
        images = VectorRows([given.z_image, embedded.images.vectors], image)
        texts = VectorRows([given.z_text, embedded.texts.vectors], text)
        found = PairProbability(
            images, texts, np.arange(len(rows)), *groups, y, threshold, joint=(images, texts), seed=self.random_state_
        )
        return repair_probability(given, settings, found, rows)

    def own_threshold(self, pairs: Any) -> UnseenThreshold | None:
        """Return the threshold of :meth:`score_pairs` for pairs that the model has not seen.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.

        Returns
        -------
        UnseenThreshold or None
            The threshold, and the share of mismatched pairs. None where the threshold of ``fit`` holds: for its pairs,
            where ``threshold`` is given, and where none is found.
        """
        return self._threshold_of(*self._scored(pairs))

    def _threshold_of(self, embedded: Embedded, scores: np.ndarray) -> UnseenThreshold | None:
        """Return :meth:`own_threshold` of the pairs of :meth:`_scored`, by those of some images."""
        pairs = embedded.pairs
        if not self._takes_own_threshold(pairs.source.fingerprint):
            return None
        some = np.concatenate(spread_blocks(len(embedded.images)))
        rows = np.flatnonzero(np.isin(pairs.image_index, some))
        return unseen_threshold(
            self.bank_, self._pair_scores, embedded.images.take(pairs.image_index[rows]), embedded.texts.take(rows),
            pairs.pair_image_group[rows], pairs.text_group[rows], scores[rows], self.random_state_,
        )  # fmt: skip

    def _applied_threshold(self, unseen: UnseenThreshold | None, *, of_fit: bool = False) -> float:
        """Return the threshold found for pairs, else that of ``fit``, by answers for its own pairs."""
        if unseen is not None:
            return unseen.threshold
        return float(self.threshold_ if of_fit else self._without_answers("threshold_"))

    def _without_answers(self, name: str) -> Any:
        """Return an attribute as ``fit`` left it."""
        return getattr(self, "_of_fit_", {}).get(name, getattr(self, name))

    def explainer(
        self, pairs: Any, *, correspondence: np.ndarray | None = None, threshold: float | None = None
    ) -> "Explainer":
        """Return what explains pairs by the trusted ones among them.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.
        correspondence : (n,) float, optional
            See :meth:`rematch`.
        threshold : float in [0, 1], optional
            See :meth:`rematch`.

        Returns
        -------
        Explainer
            Explains any of these pairs.
        """
        from cleanpairs.explain import Explainer

        self._fitted()
        pairs, cut = load_pairs(pairs), threshold
        if correspondence is None and self._has_scores_of(pairs.source, len(pairs)):
            usable = replace(self._grouped(pairs), reasons=self.quarantined_)

            def of_some(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                embedded = self._embed(pairs, rows)
                return embedded.images.vectors[embedded.pairs.image_index], embedded.texts.vectors

            cut = self.threshold_ if cut is None else cut
            return Explainer(usable, of_some, self.correspondence_, cut, displaced=self._blocks_)
        embedded = self._embed(pairs)
        y = self._scores_of(embedded) if correspondence is None else _checked_scores(embedded.pairs, correspondence)
        y[list(embedded.quarantined)] = np.nan
        if cut is None:
            unseen = self._threshold_of(embedded, y) if correspondence is None else None
            cut = self._applied_threshold(unseen, of_fit=correspondence is not None)
        images, texts, index = embedded.images.vectors, embedded.texts.vectors, embedded.pairs.image_index
        usable = replace(embedded.pairs, reasons=embedded.quarantined)
        return Explainer(usable, lambda rows: (images[index[rows]], texts[rows]), y, cut)

    def explain(self, pairs: Any, pair_ids: Sequence[int]) -> list["Explanation"]:
        """Explain why some pairs are doubted, or not.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.
        pair_ids : (k,) sequence of int
            Which of them.

        Returns
        -------
        (k,) list of Explanation
            Trusted neighbours, and words that they do not support.

        Raises
        ------
        ConfigError
            There is no such pair.
        """
        return self.explainer(pairs).explain(pair_ids)

    def recaption(
        self, pairs: Any, plan: RepairPlan, writer: CaptionWriter | str | Path, **settings: Any
    ) -> RepairPlan:
        """Write captions for the pairs that a plan drops, and use those that fit better than the old ones.

        Parameters
        ----------
        pairs : n pairs
            As :func:`cleanpairs.load_pairs` takes them.
        plan : RepairPlan
            The plan of these pairs.
        writer : CaptionWriter, str or Path
            Any object with ``caption(images, captions, words)``, such as :class:`cleanpairs.repair.chat.ChatWriter`.
            It is given the old captions, and their words that hardly any trusted pair with a similar image has.
            A name or a directory becomes a :class:`cleanpairs.encoders.pretrained.Captioner`, which sees images only.
        **settings
            Settings of :func:`cleanpairs.repair.recaption.recaption`.

        Returns
        -------
        RepairPlan
            With the new captions.

        Raises
        ------
        ConfigError
            The captions of the fit came as vectors, so that nothing judges other captions.
        """
        self.encode_texts([])  # which raises it before the writer is asked
        loaded = self._grouped(load_pairs(pairs)) if plan.settings.get("dedup") else load_pairs(pairs)
        if isinstance(writer, (str, Path)):
            from cleanpairs.encoders.pretrained import Captioner

            writer = Captioner(writer, self._resolved_device())
        elif not hasattr(writer, "caption"):
            raise ConfigError(f"a writer has caption(images, captions, words), and {type(writer).__name__} has not")
        else:
            explainer = self.explainer(loaded)
            settings.setdefault("words", lambda rows: [e.unsupported for e in explainer.explain(rows, neighbours=0)])
        return recaption(loaded, plan, writer, self.score_pairs, **settings)

    def plot_scores(self, *, truth: np.ndarray | None = None, ax: "Axes | None" = None) -> "Axes":
        """Histogram of ``correspondence_``.

        Parameters
        ----------
        truth : (N,) bool, optional
            Which pairs are mismatched.
        ax : matplotlib.axes.Axes, optional
            Where it is drawn.

        Returns
        -------
        matplotlib.axes.Axes
            See :func:`cleanpairs.report.plot_scores`.

        Raises
        ------
        NotFittedError
            Before ``fit``, and of a loaded model.
        """
        from cleanpairs.report import plot_scores

        self._fitted(scores=True)
        return plot_scores(self.correspondence_, self.threshold_, truth=truth, ax=ax)

    def plot_training(self, *, ax: "Axes | None" = None) -> "Axes":
        """Loss by epoch, and rSum where there were pairs for validation.

        Parameters
        ----------
        ax : matplotlib.axes.Axes, optional
            Where it is drawn.

        Returns
        -------
        matplotlib.axes.Axes
            See :func:`cleanpairs.report.plot_training`.
        """
        from cleanpairs.report import plot_training

        self._fitted(scores=True)
        return plot_training(self.history_, ax=ax)

    def plot_pairs(self, pairs: Any, which: str | Sequence[int] = "worst", *, count: int = 8) -> np.ndarray:
        """Images of pairs with their captions and scores.

        Parameters
        ----------
        pairs : n pairs
            Those of ``fit``. Others are scored.
        which : {"worst", "borderline", "best", "random"}, sequence of int or (n,) bool
            Which pairs.
        count : int
            How many.

        Returns
        -------
        (k,) numpy.ndarray of matplotlib.axes.Axes
            See :func:`cleanpairs.report.plot_pairs`.

        Raises
        ------
        ConfigError
            ``which`` or ``count`` is out of its range, or there is no such pair.
        """
        from cleanpairs.report import plot_pairs

        pairs = load_pairs(pairs)
        return plot_pairs(pairs, *self._scores_and_threshold(pairs), which=which, count=count)

    def _scores_and_threshold(self, pairs: Pairs) -> tuple[np.ndarray, float]:
        """Return the correspondence (n,) of pairs, and the threshold: those of ``fit`` for its pairs."""
        self._fitted()
        if self._has_scores_of(pairs.source, len(pairs)):
            return self.correspondence_, self.threshold_
        embedded, y = self._scored(pairs)
        return y, self._applied_threshold(self._threshold_of(embedded, y))

    def save_pretrained(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the model as safetensors and JSON, which cannot run code.

        Parameters
        ----------
        path : str or Path
            The directory.
        overwrite : bool
            Replace a model there.

        Returns
        -------
        Path
            The directory.

        Raises
        ------
        OutputExistsError
            The directory exists, and ``overwrite`` is False.
        """
        self._fitted()
        return save_estimator(self, Path(path), overwrite=overwrite)

    def push_to_hub(self, repo: str, *, license: str | None = None, private: bool = True) -> "Pushed":
        """Upload the model and its card to the Hugging Face hub. :meth:`from_pretrained` loads it.

        Parameters
        ----------
        repo : str
            OWNER/NAME.
        license : str, optional
            Licence of the model, for its card.
        private : bool
            Whether nobody else sees it.

        Returns
        -------
        Pushed
            Where it is.
        """
        from cleanpairs.data.atomic import scratch_directory
        from cleanpairs.export import CardFacts
        from cleanpairs.export.pushing import push_model

        found = {"noise_rate": self._without_answers("noise_rate_"), "counts_similar": self._counts_similar}
        noise = None if np.isnan(found["noise_rate"]) else rate_in_words(found)
        made = self._versions or versions()
        about = CardFacts(license=license, method=self.method_name, noise=noise, versions=made)
        with scratch_directory("model") as folder:
            path = self.save_pretrained(folder / "model")
            return push_model(path, repo, about=about, private=private)

    @classmethod
    def from_pretrained(cls, path: str | Path, *, image_encoder: Any = None, image_transform: Any = None) -> Self:
        """Load a fitted scorer, without the correspondence of its training pairs.

        Parameters
        ----------
        path : str or Path
            Directory of :meth:`save_pretrained`, a run directory, or OWNER/NAME on the Hugging Face hub.
        image_encoder : torch.nn.Module, optional
            The module that it was fitted with, if any.
        image_transform : callable, optional
            The transform of that module.

        Returns
        -------
        PairScorer
            A scorer of the method that was saved.

        Raises
        ------
        DataError
            It is no model of this version, it is damaged, or it is of another method.
        ConfigError
            The module is missing, or another.
        """
        from cleanpairs.encoders.model_files import download

        if not Path(path).exists() and "/" in str(path):
            path = download(str(path), None, ("*.json", "*.safetensors"))
        if (Path(path) / "model" / "config.json").is_file():
            path = Path(path) / "model"
        model = load_estimator(Path(path), cls, image_encoder=image_encoder, image_transform=image_transform)
        if not isinstance(model, cls):
            raise DataError(
                f"{path} holds {type(model).__name__}, not {cls.__name__}; PairScorer.from_pretrained loads any"
            )
        return model


def checked_captions(captions: Sequence[str]) -> list[str]:
    """Return the captions (n,) that :meth:`PairScorer.encode_texts` is given.

    Parameters
    ----------
    captions : sequence of str
        n captions.

    Returns
    -------
    list of str
        Empty where one is missing.

    Raises
    ------
    ConfigError
        They are one text.
    DataError
        One is no text.
    """
    if isinstance(captions, str):
        raise ConfigError(f"encode_texts takes a list of captions, found one text: use [{captions[:40]!r}]")
    return [caption_text(i, caption) for i, caption in enumerate(captions)]


def _checked_scores(pairs: Pairs, correspondence: Any) -> np.ndarray:
    """Return a copy (n,) float of the correspondence that is given for n pairs. DataError where it is of others."""
    y = as_array("the correspondence", correspondence, float).copy()
    if y.shape != pairs.shape:
        raise DataError(f"the correspondence of {len(pairs)} pairs has the shape {pairs.shape}, found {y.shape}")
    check_correspondence(y)
    return y


def _folder_hint(pairs: Pairs, reason: str) -> str:
    """Return where a missing image was looked for, or "" for another reason."""
    if not (reason.startswith("the image file") and "is missing" in reason):
        return ""
    root = pairs.source.image_root or next((str(Path(path).parent) for path in pairs.source.files), "")
    return f"; looked for in {root}: name the folder of the images with --image-root (image_root)"
