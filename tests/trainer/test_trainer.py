"""The training loop: what an epoch covers, what is skipped, and that a resumed training is the same to the bit"""

import contextlib
import json
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import current_thread
from typing import Any
from unittest.mock import Mock, call

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cleanpairs import CRCL, InfoNCE
from cleanpairs.core.errors import ConfigError, DataError, RefusedError, ResourceError
from cleanpairs.core.interrupt import Interrupts
from cleanpairs.core.torch_state import seeded
from cleanpairs.data.arrays import write_tensors
from cleanpairs.encoders.backbone import VSEInf
from cleanpairs.encoders.base import Local
from cleanpairs.encoders.tokenizer import Tokenizer, pack
from cleanpairs.methods.crcl import ActiveComplementaryLoss, MomentumCorrection
from cleanpairs.objectives import InfoNCELoss
from cleanpairs.ops.matching import matching_probability
from cleanpairs.trainer import Averaged, SingleNetwork, Trained, TrainingData, TrainingSettings, TrainingStage, loop
from cleanpairs.trainer.context import EpochContext, Staged, on_device, pieces, random_batches, take_packed
from cleanpairs.trainer.loop import MAX_NON_FINITE, Checkpoint, Trainer
from cleanpairs.trainer.strategy import Objective
from tests import helpers
from tests.helpers import StopAt, assert_raises

WORDS = "red blue green cat dog bird big small old new".split()
SETTINGS = TrainingSettings(batch_size=8, lr=2e-3, eval_group_size=8, label_rounds=2, bucket=2, seed=3)
STAGES = [TrainingStage(2), TrainingStage(3, lr_update=2)]
FEW = [TrainingStage(2), TrainingStage(1)]


def corpus(n: int = 44, regions: int = 3) -> tuple[TrainingData, Tokenizer]:
    """Captions of 1 to 5 words, whose vectors are the words' (a sum, with noise)."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(len(WORDS), 16))
    chosen = [rng.choice(len(WORDS), rng.integers(1, 6), replace=False) for _ in range(n)]
    captions = [" ".join(WORDS[k] for k in row) for row in chosen]
    images = np.array([vectors[row].sum(0) for row in chosen])[:, None] + 0.1 * rng.normal(size=(n, regions, 16))
    tokenizer, ids = Tokenizer.fit(captions), np.arange(n)
    text_group = np.unique([" ".join(sorted(c.split())) for c in captions], return_inverse=True)[1].astype(np.int64)
    return TrainingData(images.astype(np.float32), tokenizer.encode(captions), ids, ids, text_group), tokenizer


def builder(tokenizer: Tokenizer, model: type[VSEInf] = VSEInf) -> Callable[[], VSEInf]:
    return lambda: model(len(tokenizer), 16, dim=16, dim_word=8)


def validate(model: Any) -> float:
    """Some figure that differs from epoch to epoch, up and down."""
    return float(np.sin(1e4 * sum(float(v.double().abs().sum()) for v in model.state_dict().values())))


def train(
    checkpoint: Checkpoint | None = None, *, objective: Objective | None = None, model: type[VSEInf] = VSEInf,
    make: type[MomentumCorrection] = MomentumCorrection, label_pass: str = "eval",
    stages: list[TrainingStage] = STAGES, settings: TrainingSettings = SETTINGS, resume: bool = False, **more: Any,
) -> Trained:  # fmt: skip
    """Of 44 pairs, which messages name from 5000 on. ``more``: the images' type, the captions' numbers, callbacks."""
    data, tokenizer = corpus()
    images = data.images.astype(more.pop("stored", np.float32))
    data = replace(data, pair_id=np.arange(len(data)) + 5000, images=images)
    loss = objective or ActiveComplementaryLoss(tau=0.1)
    strategy = make(len(data), loss, freeze=1, guard=False, label_pass=label_pass)
    strategy.captions = more.pop("captions", None)
    trainer = Trainer(settings, checkpoint=checkpoint, **more)
    return trainer.fit(data, stages, strategy, builder(tokenizer, model), validate, resume)


def assert_same(a: Trained, b: Trained) -> None:
    """Weights, labels and what was found on the way, to the bit."""
    assert len(a.model.state_dict()) > 10
    torch.testing.assert_close(a.model.state_dict(), b.model.state_dict(), rtol=0, atol=0)
    assert np.array_equal(a.values, b.values) and a.best_val_rsum == b.best_val_rsum
    timeless = [[{k: v for k, v in line.items() if "second" not in k} for line in t.history] for t in (a, b)]
    assert timeless[0] == timeless[1]


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Trained]:
    return {"eval": train(), "batch": train(label_pass="batch")}


# 44 pairs in batches of 8: 6 steps an epoch, 12 in the first stage, 30 in all
@pytest.mark.parametrize(("step", "label_pass"), [(30, "eval"), (4, "eval"), (4, "batch")])
def test_a_run_stopped_at_every_few_steps(step: int, label_pass: str, tmp_path: Path, uninterrupted: Any) -> None:
    for stop in range(30 // step + 1):
        last = stop == 30 // step
        with contextlib.nullcontext() if last else pytest.raises(KeyboardInterrupt) as stopped:
            how = {"resume": stop > 0, "on_step": StopAt(step), "label_pass": label_pass}
            trained = train(Checkpoint(tmp_path, "f"), **how)
        assert last or stopped.type is KeyboardInterrupt  # and not Terminated
    assert_same(trained, uninterrupted[label_pass])


@pytest.mark.parametrize("epoch", [2, 5])
def test_a_signal_between_two_epochs_stops_too(epoch: int, tmp_path: Path, uninterrupted: dict[str, Trained]) -> None:
    """During the label pass or the validation: also behind the last epoch, where no step would notice any more."""
    seen = []

    def on_epoch(record: Any, y: np.ndarray) -> None:
        seen.append(record)
        if len(seen) == epoch:
            os.kill(os.getpid(), signal.SIGINT)

    assert_raises(KeyboardInterrupt, "^$", train, Checkpoint(tmp_path, "f"), on_epoch=on_epoch)
    assert len(seen) == epoch
    assert_same(train(Checkpoint(tmp_path, "f"), resume=True), uninterrupted["eval"])


def test_handlers_are_put_back_and_a_second_sigint_does_not_wait() -> None:
    """Under nohup a terminal may go."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    own = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        before = [signal.getsignal(number) for number in numbers]
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.received is None
            os.kill(os.getpid(), signal.SIGINT)
            assert interrupts.received == signal.SIGINT
            assert_raises(KeyboardInterrupt, "^$", os.kill, os.getpid(), signal.SIGINT)
        assert [signal.getsignal(number) for number in numbers] == before
        with Interrupts(enabled=False):
            assert [signal.getsignal(number) for number in numbers] == before
    finally:
        signal.signal(signal.SIGHUP, own)


def test_resuming_nothing_or_a_finished_training(tmp_path: Path, uninterrupted: dict[str, Trained]) -> None:
    for steps in (30, 0):
        counted = StopAt()
        assert_same(train(Checkpoint(tmp_path, "f"), resume=True, on_step=counted), uninterrupted["eval"])
        assert counted.seen == steps


# -- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 7, 0.5, -1])
def test_a_truncated_checkpoint_is_named(keep: float, tmp_path: Path) -> None:
    train(Checkpoint(tmp_path, "f"), stages=STAGES[:1])
    file = tmp_path / "last.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) if keep == 0.5 else int(keep)])
    assert_raises(DataError, r"last\.safetensors.*--overwrite", train, Checkpoint(tmp_path, "f"), resume=True)


HEAD = {"fingerprint": "f", "position": [1, 2, 3], "best_rsum": None, "history": [], "plain": {}, "partial": False}


@pytest.mark.parametrize(
    "head",
    [*({k: v for k, v in HEAD.items() if k != name} for name in HEAD), [],
     *(HEAD | {k: [1]} for k in ("position", "plain"))],
)  # fmt: skip
def test_a_head_that_lacks_something_or_has_other_types(tmp_path: Path, head: Any) -> None:
    """A checkpoint that is damaged is an error of the data, whatever of it is damaged."""
    file = tmp_path / "last.safetensors"
    write_tensors({"model.w": torch.ones(2)}, file, {"state": json.dumps(HEAD)})
    assert Checkpoint(tmp_path, "f").load() is not None
    write_tensors({"model.w": torch.ones(2)}, file, {"state": json.dumps(head)})
    assert_raises(DataError, "cannot be read", Checkpoint(tmp_path, "f").load)


# -- losses that are not finite -------------------------------------------------------------------------------------


class Faulty:
    """An objective whose calls in ``bad`` (from 0) give NaN, or a finite loss with an infinite gradient."""

    tau = 0.1

    def __init__(self, bad: set[int], gradient: bool = False) -> None:
        self.bad, self.gradient, self.calls = bad, gradient, 0

    def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
        loss = ActiveComplementaryLoss(tau=self.tau)(S, labels, excluded)
        bad = self.calls in self.bad
        self.calls += 1
        if bad and self.gradient:
            return loss + torch.sqrt((S.diagonal() - S.diagonal().detach()).abs())  # + 0, whose gradient is not finite
        return loss * float("nan") if bad else loss


@pytest.mark.parametrize("gradient", [False, True], ids=["loss", "gradient"])
def test_ten_in_a_row_are_refused_and_may_be_read_some_steps_later(gradient: bool, monkeypatch: Any) -> None:
    """As on a GPU: none is read within the step, and the training is the same."""
    at_once = train(objective=Faulty({2, 6, 7}, gradient), stages=FEW)
    assert all(bool(torch.isfinite(value.float()).all()) for value in at_once.model.state_dict().values())
    assert at_once.history[-1]["skipped_steps"] == 3 and np.isfinite(at_once.values).all()
    assert all(np.isfinite(line["loss"]) for line in at_once.history)
    monkeypatch.setitem(loop.READ_EVERY, "cpu", 4)
    assert_same(train(objective=Faulty({2, 6, 7}, gradient), stages=FEW), at_once)
    train(objective=Faulty({*range(MAX_NON_FINITE + 4)} - {MAX_NON_FINITE - 1}, gradient), stages=FEW)
    ten = STAGES, range(3, 3 + MAX_NON_FINITE), r"10 steps in a row.*pairs \(pair_id\) 50\d\d, 50\d\d"
    for every, (stages, bad, words) in ((4, ten), (1, ten), (1, (FEW[1:], range(6), "in any step of stage 1"))):
        monkeypatch.setitem(loop.READ_EVERY, "cpu", every)
        assert_raises(RefusedError, words, train, objective=Faulty(set(bad), gradient), stages=stages)


def test_the_mean_loss_is_of_the_steps_that_were_taken() -> None:
    class Seven(Faulty):
        def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
            return super().__call__(S, labels, excluded) * 0 + 7

    assert train(objective=Seven({1}), stages=STAGES[:1]).history[0]["loss"] == pytest.approx(7.0)


# -- epochs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "bucket"), [(2, 0), (3, 8), (9, 8), (17, 1), (100, 0), (100, 8)])
def test_an_epoch_covers_every_pair_once(n: int, bucket: int) -> None:
    lengths = corpus(n)[0].tokens.lengths
    orders = set()
    for epoch in (1, 2, 3):
        draws = (np.random.default_rng(epoch) for _ in range(2))
        batches, again = ([b.tolist() for b in random_batches(np.arange(n), lengths, 8, bucket, rng)] for rng in draws)
        rows = [row for batch in batches for row in batch]
        assert sorted(rows) == list(range(n)) and batches == again
        assert all(2 <= len(b) <= 8 + 2 for b in batches)  # a pair alone has no negative
        orders.add(tuple(rows))
    assert len(orders) > 1 or n < 4
    if n == 100 and bucket:  # they hold captions of like length
        assert np.mean([np.ptp(lengths[b]) for b in batches]) < 0.5 * np.ptp(lengths)


def test_the_best_epoch_of_the_last_piece_is_kept() -> None:
    data, tokenizer = corpus()
    kept: list[tuple[float, dict[str, Tensor]]] = []
    figures = iter([3.0, 9.0, 5.0])

    def judge(model: Any) -> float:
        kept.append((next(figures), {k: v.clone() for k, v in model.state_dict().items()}))
        return kept[-1][0]

    plain = SingleNetwork(len(data), ActiveComplementaryLoss(tau=0.1))
    trained = Trainer(SETTINGS).fit(data, STAGES, plain, builder(tokenizer), judge)
    assert len(kept) == 3 and trained.best_val_rsum == 9.0
    torch.testing.assert_close(trained.model.state_dict(), kept[1][1], rtol=0, atol=0)
    assert [line["val_rsum"] for line in trained.history] == [None, None, 3.0, 9.0, 5.0]
    assert [line["lr"] for line in trained.history] == pytest.approx([2e-3, 2e-3, 2e-3, 2e-3, 2e-4])
    assert [(line["stage"], line["epoch"]) for line in trained.history] == [(1, 1), (1, 2), (2, 1), (2, 2), (2, 3)]


# -- batches that do not fit, and training that diverges --------------------------------------------------------------


class OutOfMemory(VSEInf):
    """Raises what torch raises on a GPU where more than ``most`` pairs go through the towers at once."""

    most = 4

    def forward(self, images: Tensor, keep: Tensor | None, tokens: Any) -> Any:
        if self.training and len(images) > self.most:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nmore")
        return super().forward(images, keep, tokens)


def test_a_batch_that_does_not_fit_is_computed_in_pieces_with_the_loss_of_the_whole(uninterrupted: Any) -> None:
    made = train(model=OutOfMemory, stages=FEW)
    assert {line["micro_batch"] for line in made.history} == {4}  # of batches of 8
    assert "in pieces of 4 pairs" in made.history[-1]["note"]
    assert_same(*(replace(t, history=[]) for t in (made, train(stages=FEW, settings=replace(SETTINGS, micro_batch=4)))))
    assert {(line["micro_batch"], line["note"]) for line in uninterrupted["eval"].history} == {(None, None)}


@pytest.mark.parametrize(("whole", "held"), [(False, 4), (True, 8)])
def test_a_device_that_does_not_hold_a_piece_is_a_limit(whole: bool, held: int, monkeypatch: Any) -> None:
    """A strategy that needs the whole graph is not tried in pieces, and refused where pieces are asked for."""
    monkeypatch.setattr(SingleNetwork, "needs_whole_graph", whole)
    monkeypatch.setattr(OutOfMemory, "most", 3)
    with pytest.raises(ResourceError, match=rf"does not hold {held} pairs of a batch \(CUDA out of memory\..*GiB\.\)"):
        train(model=OutOfMemory)
    if whole:
        assert_raises(ConfigError, "without micro_batch", train, settings=replace(SETTINGS, micro_batch=4))


class Diverging(MomentumCorrection):
    """Draws all images to one point in an epoch, the first ``times`` that it comes to it."""

    at, times, seen = (2, 2), 1, -1

    def loss(self, view: Any, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        loss = super().loss(view, network, batch, seed)
        return self.spoilt(loss, view) if (view.stage, view.epoch) == self.at and self.seen < self.times else loss

    def start_epoch(self, view: Any) -> None:
        super().start_epoch(view)
        self.seen += (view.stage, view.epoch) == self.at

    def spoilt(self, loss: Tensor, view: Any) -> Tensor:
        for name, weight in view.networks[0].model.named_parameters():
            if name.startswith("image") and name.endswith("bias"):
                weight.data.fill_(1e4)
        return loss


class Exploding(Diverging):
    """Its loss grows a thousandfold instead."""

    def spoilt(self, loss: Tensor, view: Any) -> Tensor:
        return loss * 1000


def test_the_rate_decays_again_and_again_from_the_end_of_the_warm_up() -> None:
    """As the public codes of NCR and L2RM have it: 0.1 ** (epoch // lr_update), counted behind the warm-up."""
    stage = TrainingStage(9, lr_update=3, warmup=2)
    assert [stage.decay(epoch) for epoch in range(1, 10)] == pytest.approx([1] * 5 + [0.1] * 3 + [0.01])
    assert {TrainingStage(9).decay(epoch) for epoch in range(1, 10)} == {1.0}
    along = [TrainingStage(5, 1, warmup=1, cosine=True).decay(epoch) for epoch in range(1, 6)]
    assert along == pytest.approx([1, 1, 0.8536, 0.5, 0.1464], abs=1e-4)


LONG = [TrainingStage(1), TrainingStage(3, lr_update=3)]
OFTEN = replace(SETTINGS, checkpoint_seconds=0.0)


@pytest.mark.parametrize(("kind", "kept"), [(Diverging, True), (Exploding, False)])
def test_a_training_that_diverges_goes_back_once(kind: type[Diverging], kept: bool, tmp_path: Path) -> None:
    train(Checkpoint(tmp_path, "f"), stages=LONG[:1])  # of an earlier training, and not what to go back to
    trained = train(make=kind, stages=LONG, checkpoint=Checkpoint(tmp_path, "f") if kept else None, settings=OFTEN)
    assert [(h["stage"], h["epoch"]) for h in trained.history] == [(1, 1), (2, 1), (2, 2), (2, 3)]
    fallbacks = [h["fallbacks"] for h in trained.history]
    assert fallbacks == ([0, 0, 1, 1] if kept else [1, 1, 1, 1])
    assert [h["lr"] for h in trained.history] == pytest.approx([SETTINGS.lr * 0.5**k for k in fallbacks])
    assert max(h["loss"] for h in trained.history) < 100
    assert "after a divergence at half the learning rate" in trained.history[-1]["note"]
    if not kept:  # nothing of the first attempt is left, and all its labels are
        at_half_the_rate = train(stages=LONG, settings=replace(OFTEN, lr=SETTINGS.lr / 2))
        assert_same(replace(trained, history=[]), replace(at_half_the_rate, history=[]))


@pytest.mark.parametrize("kind", [Diverging, Exploding])
def test_a_training_that_diverges_twice_is_refused(kind: type[Diverging], tmp_path: Path) -> None:
    hopeless = type("Hopeless", (kind,), {"times": 2})
    words = "images are one point" if kind is Diverging else "mean loss of epoch 2 of stage 2"
    with pytest.raises(RefusedError, match=f"diverged again at half the learning rate: .*{words}.*lower lr"):
        train(Checkpoint(tmp_path, "f"), make=hopeless, settings=OFTEN)
    assert Checkpoint(tmp_path, "f").load().position == (2, 2, 0)  # the beginning of that epoch


def test_a_run_that_went_back_is_resumed_at_its_rate(tmp_path: Path) -> None:
    whole = train(make=Exploding, stages=LONG, checkpoint=Checkpoint(tmp_path / "a", "f"), settings=OFTEN)
    how = {"stages": LONG, "checkpoint": Checkpoint(tmp_path / "b", "f"), "settings": OFTEN}
    # 6 + 6 steps, 6 that diverge, and 2 of the same epoch at half the rate
    assert_raises(KeyboardInterrupt, "^$", train, make=Exploding, on_step=StopAt(20), **how)
    assert_same(train(resume=True, **how), whole)


def test_networks_and_stages_begin_with_weights_of_their_own() -> None:
    data, tokenizer = corpus(9)
    begun: list[float] = []

    def build() -> VSEInf:
        model = builder(tokenizer)()
        begun.append(sum(float(p.detach().double().abs().sum()) for p in model.parameters()))
        return model

    strategy = SingleNetwork(9, InfoNCELoss(tau=0.1))
    strategy.networks = 2
    Trainer(SETTINGS).fit(data, STAGES, strategy, build)
    assert len(begun) == len(set(begun)) == 4


def test_labels_from_the_batches_are_the_probabilities_that_these_had() -> None:
    """Each pair's own: it is known again by the label that it had."""
    seen: dict[float, float] = {}

    class Recording(ActiveComplementaryLoss):
        def __call__(self, S: torch.Tensor, labels: torch.Tensor, excluded: Any = None) -> torch.Tensor:
            seen.update(zip(labels.tolist(), matching_probability(S, 0.1).tolist(), strict=True))
            return super().__call__(S, labels, excluded)

    (data, tokenizer), settings = corpus(), replace(SETTINGS, exclude_duplicates=False)
    batches = MomentumCorrection(len(data), Recording(tau=0.1), freeze=1, guard=False, label_pass="batch")
    batches.y = begun = np.linspace(0.5, 1, len(data), dtype=np.float32)
    trained = Trainer(settings).fit(data, [TrainingStage(1)], batches, builder(tokenizer))
    np.testing.assert_allclose(trained.values, [seen[y] for y in begun.tolist()], rtol=1e-5)
    assert np.ptp(trained.values) > 0.01  # not all alike: with labels of 1 for everybody this could not fail


# -- the mean of the first epochs' figures ----------------------------------------------------------------------------


P = np.random.default_rng(0).random((7, 5)).astype(np.float32)


@pytest.mark.parametrize("start", [1, 2, 3])
@pytest.mark.parametrize("label_epochs", [3, 5, None])
def test_the_mean_over_start_to_horizon(start: int, label_epochs: int | None) -> None:
    labels = Averaged(5, start=start, label_epochs=label_epochs)
    for epoch, p in enumerate(P, start=1):
        labels.update(epoch, p)
        last = min(epoch, label_epochs or epoch)
        counted = P[start - 1 : last] if epoch >= start else np.ones((1, 5))
        assert labels.value().tolist() == pytest.approx(counted.astype(np.float64).mean(axis=0).tolist(), rel=1e-6)


def test_before_any_epoch_all_are_trusted_and_the_labels_stay_1() -> None:
    labels, figures = Averaged(3), np.zeros(3)
    assert labels.value().tolist() == [1.0] * 3
    labels.update(1, figures)
    figures[:] = 9
    assert labels.value().tolist() == [0.0] * 3 and labels.labels().tolist() == [1.0] * 3
    assert labels.value().dtype == labels.labels().dtype == np.float32


# -- inputs made ahead, and images on the device ----------------------------------------------------------------------


@pytest.mark.parametrize(("micro", "captions"), [(None, None), (3, np.roll(np.arange(44), 1))])
def test_inputs_made_ahead_are_those_made_in_time(micro: int | None, captions: Any, monkeypatch: Any) -> None:
    how = {"captions": captions, "settings": replace(SETTINGS, micro_batch=micro), "stages": [TrainingStage(2)]}
    plain = train(**how)
    original, make = EpochContext.__init__, EpochContext.inputs
    made: list[str] = []

    def ahead(self: EpochContext, *args: Any) -> None:
        original(self, *args)
        self.prefetching = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead")

    def noted(self: EpochContext, *args: Any) -> Any:
        made.append(current_thread().name)
        return make(self, *args)

    monkeypatch.setattr(EpochContext, "__init__", ahead)
    monkeypatch.setattr(EpochContext, "inputs", noted)
    assert_same(train(**how), plain)
    in_time = [name for name in made if not name.startswith("ahead")]
    assert (len(made), len(in_time)) == (12, 2)  # two epochs of six batches: all but the first of each


@pytest.mark.parametrize(("micro", "stored"), [(None, np.float16), (3, np.float32)])
def test_images_on_the_device_are_those_of_the_batches(stored: Any, micro: int | None, monkeypatch: Any) -> None:
    how = {"stored": stored, "settings": replace(SETTINGS, micro_batch=micro), "stages": [TrainingStage(2)]}
    plain = train(**how)
    monkeypatch.setattr(loop, "on_device", lambda images, device: torch.from_numpy(images))
    assert_same(train(**how), plain)


@pytest.mark.gpu
@pytest.mark.parametrize("stored", [np.float32, np.float16, np.uint8])
def test_images_go_to_a_gpu_that_has_the_memory(stored: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    images, device = np.arange(3000 * 4).reshape(3000, 4).astype(stored), torch.device("cuda")
    held = on_device(images, device)
    assert held is not None and held.device.type == "cuda"
    np.testing.assert_array_equal(held.cpu().numpy(), images)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda of: (images.nbytes, images.nbytes))
    assert on_device(images, device) is None


# -- precision: half of it only where that pays, and never on a CPU unless it is asked for ----------------------------


@pytest.mark.parametrize("backbone", ["mlp", "vse_inf", "sgraf"])
def test_half_precision_learns_as_full_precision_does(backbone: str) -> None:
    """The loss of each epoch is about the same: no step reads the weights of an earlier one."""
    small = {"backbone": backbone, "dim": 16, "dim_word": 8, "dim_sim": 8, "epochs": 6, "batch_size": 16, "lr": 5e-3}
    models = (InfoNCE(precision=name, device="cpu", **small).fit(helpers.corpus(64)) for name in ("fp32", "bf16"))
    full, half = ([line["loss"] for line in model.history_] for model in models)
    learned = full[0] - full[-1]
    assert learned > 0.1 and max(abs(a - b) for a, b in zip(full, half, strict=True)) < 0.1 * learned, (full, half)


# -- the gradient cache has the loss and the gradient of the plain step -----------------------------------------------


class Towers(nn.Module):
    """Vectors (B, 6) to two states of unit vectors, or of two to five parts."""

    def __init__(self, *, local: bool = False, dropout: float = 0.0) -> None:
        super().__init__()
        self.local = local
        self.image, self.text = nn.Linear(6, 20), nn.Linear(6, 20)
        self.dropout, self.masks = nn.Dropout(dropout), list[Tensor]()

    def forward(self, x: Tensor, lengths: Tensor) -> tuple[Any, Any]:
        image, text = self.image(x).sin(), self.dropout(self.text(x).cos())
        self.masks.append((text == 0).detach().clone())
        if not self.local:
            return nn.functional.normalize(image, dim=1), nn.functional.normalize(text, dim=1)
        L = int(lengths.max())
        words = text.view(-1, 5, 4)[:, :L] * (torch.arange(L) < lengths[:, None])[..., None]
        return Local(image.view(-1, 5, 4), torch.full_like(lengths, 5)), Local(words, lengths)


def loss_of(images: Any, texts: Any) -> Tensor:
    if isinstance(images, Local):
        images, texts = images.parts.sum(1), texts.parts.sum(1) / texts.lengths[:, None]
    labels = torch.linspace(0, 1, len(images), dtype=torch.float64)
    return ActiveComplementaryLoss(tau=0.2)(images @ texts.T, labels).mean()


def step(module: Towers, x: Tensor, lengths: Tensor, micro: int | None) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of a step."""
    module.zero_grad(set_to_none=True)
    staged = Staged(module)
    torch.manual_seed(7)
    loss = loss_of(*staged.states(len(x), pieces(len(x), micro), lambda at: module(x[at], lengths[at]), 7))
    loss.backward()
    staged.finish()
    return float(loss.detach()), {k: p.grad.clone() for k, p in module.named_parameters() if p.grad is not None}


def batch(n: int = 23) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 6, (n,), generator=g).sort(descending=True).values
    return torch.randn(n, 6, generator=g, dtype=torch.float64), lengths


@pytest.mark.parametrize("local", [False, True], ids=["vectors", "parts"])
@pytest.mark.parametrize(("n", "micro"), [(23, 2), (23, 8), (23, 100), (1, 2), (3, 2)])
def test_pieces_have_the_loss_and_the_gradient_of_the_whole(local: bool, n: int, micro: int) -> None:
    module = Towers(local=local).double()
    x, lengths = batch(n)
    (loss, gradients), (cached, of_pieces) = (step(module, x, lengths, most) for most in (None, micro))
    assert cached == pytest.approx(loss, abs=1e-10)
    assert n == 1 or min(map(len, pieces(n, micro))) > 1  # batch norm takes no single vector
    torch.testing.assert_close(of_pieces, gradients, atol=1e-10, rtol=0)
    assert len(gradients) == 4 and (n == 1 or all(float(g.abs().max()) > 1e-4 for g in gradients.values()))


def test_both_passes_of_a_piece_draw_the_same_dropout() -> None:
    module, (x, lengths) = Towers(dropout=0.5).double(), batch(16)
    step(module, x, lengths, 4)
    first, second = module.masks[:4], module.masks[4:]
    assert len(second) == 4 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1]) and 0.3 < torch.cat(first).double().mean() < 0.7


def test_packed_captions_of_a_piece_are_packed_alone() -> None:
    captions = ["a b c d", "a", "d c", "b b b", "c"]
    table = Tokenizer.fit(captions).encode(captions)
    packed, order = pack(table, np.arange(5))
    for at in (np.array([0]), np.array([1, 3]), np.array([3, 4]), np.arange(5)):
        taken = take_packed(packed, at)
        alone, same = pack(table, order[at])
        assert np.array_equal(same, np.arange(len(at)))
        assert taken.sentences is alone.sentences is None
        assert all(torch.equal(a, b) for a, b in zip(taken[:-1], alone[:-1], strict=True))


@pytest.mark.parametrize(
    ("given", "device", "wanted"),
    [("auto", "cpu", "fp32"), ("auto", "cuda", "bf16"), ("fp32", "cuda", "fp32"), ("bf16", "cpu", "bf16"),
     ("auto", None, "fp32")],
)  # fmt: skip
def test_half_precision_is_for_gpus(monkeypatch: Any, given: str, device: str | None, wanted: str) -> None:
    """Products in bfloat16 take twice as long on most CPUs. No device: there is no GPU."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device is not None)
    assert CRCL(precision=given, **{"device": device} if device else {})._resolved_precision() == wanted


def test_seeding_gives_gpus_their_states_back(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = Mock(device_count=lambda: 2, get_rng_state="state of {}".format)
    for name in ("is_initialized", "device_count", "get_rng_state", "set_rng_state", "manual_seed_all"):
        monkeypatch.setattr(torch.cuda, name, getattr(cuda, name))
    with seeded(3):
        cuda.manual_seed_all.assert_called_once_with(3)
    assert cuda.set_rng_state.call_args_list == [call("state of 0", 0), call("state of 1", 1)]
