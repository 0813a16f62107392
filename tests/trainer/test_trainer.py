"""The training loop: what an epoch covers, what is skipped, and that a resumed training is the same to the bit."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cleanpairs.core.errors import DataError, RefusedError, ResourceError
from cleanpairs.core.interrupt import Interrupts
from cleanpairs.encoders.backbone import VSEInf
from cleanpairs.encoders.tokenizer import Tokenizer
from cleanpairs.methods.crcl import ActiveComplementaryLoss, MomentumCorrection
from cleanpairs.objectives import InfoNCELoss
from cleanpairs.trainer import Averaged, SingleNetwork, Trained, TrainingData, TrainingSettings, TrainingStage, loop
from cleanpairs.trainer.context import random_batches
from cleanpairs.trainer.loop import MAX_NON_FINITE, Checkpoint, Trainer
from cleanpairs.trainer.strategy import Objective
from tests.helpers import StopAt, assert_raises

WORDS = "red blue green cat dog bird big small old new".split()
SETTINGS = TrainingSettings(batch_size=8, lr=2e-3, eval_group_size=8, label_rounds=2, bucket=2, seed=3)
STAGES = [TrainingStage(2), TrainingStage(3, lr_update=2)]


def corpus(n: int = 44, regions: int = 3, seed: int = 0) -> tuple[TrainingData, Tokenizer]:
    """Captions of 1 to 5 words, whose vectors are the words' (a sum, with noise)."""
    rng = np.random.default_rng(seed)
    vectors = rng.normal(size=(len(WORDS), 16))
    captions, images = [], []
    for _ in range(n):
        chosen = rng.choice(len(WORDS), rng.integers(1, 6), replace=False)
        captions.append(" ".join(WORDS[k] for k in chosen))
        images.append(vectors[chosen].sum(0) + 0.1 * rng.normal(size=(regions, 16)))
    tokenizer = Tokenizer.fit(captions)
    array = np.array(images, dtype=np.float32).reshape(n, regions, 16)
    ids = np.arange(n)
    _, text_group = np.unique([" ".join(sorted(c.split())) for c in captions], return_inverse=True)
    return TrainingData(array, tokenizer.encode(captions), ids, ids, text_group.astype(np.int64)), tokenizer


def builder(tokenizer: Tokenizer, model: type[VSEInf] = VSEInf) -> Callable[[], VSEInf]:
    return lambda: model(len(tokenizer), 16, dim=16, dim_word=8)


def validate(model: Any) -> float:
    """Some figure that differs from epoch to epoch, up and down."""
    return float(np.sin(1e4 * sum(float(v.double().abs().sum()) for v in model.state_dict().values())))


def train(
    checkpoint: Checkpoint | None = None, *, objective: Objective | None = None, model: type[VSEInf] = VSEInf,
    procedure: type[SingleNetwork] = SingleNetwork, label_pass: str = "eval", stages: list[TrainingStage] = STAGES,
    settings: TrainingSettings = SETTINGS, resume: bool = False, **watched: Any,
) -> Trained:  # fmt: skip
    """Of 44 pairs, which messages name from 5000 on."""
    data, tokenizer = corpus()
    data = replace(data, pair_id=np.arange(len(data)) + 5000)
    labels = MomentumCorrection(len(data), freeze=1, guard=False)
    strategy = procedure(objective or ActiveComplementaryLoss(tau=0.1), labels, label_pass=label_pass)
    trainer = Trainer(settings, checkpoint=checkpoint, **watched)
    return trainer.fit(data, stages, strategy, builder(tokenizer, model), validate, resume)


def assert_same(a: Trained, b: Trained) -> None:
    """Weights, labels and what was found on the way, to the bit."""
    first, second = a.model.state_dict(), b.model.state_dict()
    assert first.keys() == second.keys() and len(first) > 10
    for name in first:
        assert torch.equal(first[name], second[name]), name
    assert np.array_equal(a.values, b.values)
    assert a.best_val_rsum == b.best_val_rsum
    timeless = [[{k: v for k, v in line.items() if "second" not in k} for line in t.history] for t in (a, b)]
    assert timeless[0] == timeless[1]


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Trained]:
    return {"eval": train(), "batch": train(label_pass="batch")}


# 44 pairs in batches of 8: 6 steps an epoch, 12 in the first stage, 30 in all
@pytest.mark.parametrize(("step", "label_pass"), [(30, "eval"), (4, "eval"), (4, "batch")])
def test_a_run_stopped_at_every_few_steps(
    step: int, label_pass: str, tmp_path: Path, uninterrupted: dict[str, Trained]
) -> None:
    stops = list[type]()
    while True:
        how = {"resume": bool(stops), "on_step": StopAt(step), "label_pass": label_pass}
        try:
            trained = train(Checkpoint(tmp_path, "f"), **how)
            break
        except KeyboardInterrupt as stop:
            stops.append(type(stop))
    assert stops == [KeyboardInterrupt] * (30 // step)
    assert_same(trained, uninterrupted[label_pass])


@pytest.mark.parametrize("epoch", [2, 5])
def test_a_signal_between_two_epochs_stops_too(epoch: int, tmp_path: Path, uninterrupted: dict[str, Trained]) -> None:
    """During the label pass or the validation: also behind the last epoch, where no step would notice any more."""
    seen = []

    def on_epoch(record: Any, y: np.ndarray) -> None:
        seen.append(record)
        if len(seen) == epoch:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(Checkpoint(tmp_path, "f"), on_epoch=on_epoch)
    assert len(seen) == epoch
    assert_same(train(Checkpoint(tmp_path, "f"), resume=True), uninterrupted["eval"])


def test_handlers_are_put_back_and_a_second_sigint_does_not_wait() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    with Interrupts(enabled=False):
        assert signal.getsignal(signal.SIGINT) == before[0]


def test_under_nohup_a_terminal_may_go() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.received is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_resuming_nothing_or_a_finished_training(tmp_path: Path, uninterrupted: dict[str, Trained]) -> None:
    assert_same(train(Checkpoint(tmp_path, "f"), resume=True), uninterrupted["eval"])
    steps: list[int] = []
    again = train(Checkpoint(tmp_path, "f"), resume=True, on_step=lambda done, total, loss: steps.append(done))
    assert steps == []
    assert_same(again, uninterrupted["eval"])


# -- checkpoints ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 7, 0.5, -1])
def test_a_truncated_checkpoint_is_named(keep: float, tmp_path: Path) -> None:
    train(Checkpoint(tmp_path, "f"))
    file = tmp_path / "last.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * keep) if keep == 0.5 else int(keep)])
    assert_raises(DataError, r"last\.safetensors.*--overwrite", train, Checkpoint(tmp_path, "f"), resume=True)


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
    at_once = train(objective=Faulty({2, 6, 7}, gradient))
    assert all(bool(torch.isfinite(value.float()).all()) for value in at_once.model.state_dict().values())
    assert at_once.history[-1]["skipped_steps"] == 3 and np.isfinite(at_once.values).all()
    assert all(np.isfinite(line["loss"]) for line in at_once.history)
    read, unread = Trainer._read, []

    def reading(self: Trainer) -> None:
        unread.append(len(self.unread))
        read(self)

    monkeypatch.setattr(Trainer, "_read", reading)
    monkeypatch.setitem(loop.READ_EVERY, "cpu", 4)
    assert_same(train(objective=Faulty({2, 6, 7}, gradient)), at_once)
    assert unread == [4, 2] * 5  # 6 steps an epoch
    train(objective=Faulty({*range(MAX_NON_FINITE - 1), *range(MAX_NON_FINITE, MAX_NON_FINITE + 4)}, gradient))
    for every in (4, 1):
        monkeypatch.setitem(loop.READ_EVERY, "cpu", every)
        with pytest.raises(RefusedError, match=r"10 steps in a row.*pairs \(pair_id\) 50\d\d, 50\d\d"):
            train(objective=Faulty(set(range(3, 3 + MAX_NON_FINITE)), gradient))


def test_the_mean_loss_is_of_the_steps_that_were_taken() -> None:
    class Seven(Faulty):
        def __call__(self, S: Tensor, labels: Tensor, excluded: Tensor | None = None) -> Tensor:
            return super().__call__(S, labels, excluded) * 0 + 7

    assert train(objective=Seven({1})).history[0]["loss"] == pytest.approx(7.0)


# -- epochs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "bucket"), [(2, 0), (3, 8), (8, 1), (9, 8), (17, 1), (100, 0), (100, 8)])
def test_an_epoch_covers_every_pair_once(n: int, bucket: int) -> None:
    lengths = corpus(n)[0].tokens.lengths
    orders = set()
    for epoch in (1, 2, 3):
        batches, again = (
            random_batches(np.arange(n), lengths, 8, bucket, np.random.default_rng(epoch)) for _ in range(2)
        )
        rows = np.concatenate(batches)
        assert np.array_equal(np.sort(rows), np.arange(n))
        assert min(len(b) for b in batches) >= 2  # a pair alone has no negative
        assert max(len(b) for b in batches) <= 8 + 2
        assert all(np.array_equal(a, b) for a, b in zip(batches, again, strict=True))
        orders.add(tuple(rows.tolist()))
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

    plain = SingleNetwork(ActiveComplementaryLoss(tau=0.1), Averaged(len(data)))
    trained = Trainer(SETTINGS).fit(data, STAGES, plain, builder(tokenizer), judge)
    assert len(kept) == 3 and trained.best_val_rsum == 9.0
    for name, value in trained.model.state_dict().items():
        assert torch.equal(value, kept[1][1][name])
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


class Whole(SingleNetwork):
    needs_whole_graph = True


def test_a_batch_that_does_not_fit_is_computed_in_pieces_with_the_loss_of_the_whole() -> None:
    trained = train(model=OutOfMemory)
    assert {line["micro_batch"] for line in trained.history} == {4}  # of batches of 8
    assert "in pieces of 4 pairs" in trained.history[-1]["note"]
    assert_same(*(replace(t, history=[]) for t in (trained, train(settings=replace(SETTINGS, micro_batch=4)))))
    plain = train().history
    assert {(line["micro_batch"], line["note"]) for line in plain} == {(None, None)}


@pytest.mark.parametrize(("procedure", "held"), [(SingleNetwork, 4), (Whole, 8)])
def test_a_device_that_does_not_hold_a_piece_is_a_limit(procedure: type[SingleNetwork], held: int) -> None:
    class Tiny(OutOfMemory):
        most = 3

    with pytest.raises(ResourceError, match=rf"does not hold {held} pairs of a batch \(CUDA out of memory\..*GiB\.\)"):
        train(procedure=procedure, model=Tiny)


class Diverging(SingleNetwork):
    """Draws all images to one point in an epoch, the first ``times`` that it comes to it."""

    at, times, seen = (2, 2), 1, -1

    def loss(self, view: Any, network: int, batch: tuple[np.ndarray, ...], seed: int) -> Tensor:
        return self.spoilt(super().loss(view, network, batch, seed), view)

    def start_epoch(self, view: Any) -> None:
        super().start_epoch(view)
        self.seen += (view.stage, view.epoch) == self.at

    def spoils(self, view: Any) -> bool:
        return (view.stage, view.epoch) == self.at and self.seen < self.times

    def spoilt(self, loss: Tensor, view: Any) -> Tensor:
        if self.spoils(view):
            for name, weight in view.networks[0].model.named_parameters():
                if name.startswith("image") and name.endswith("bias"):
                    weight.data.fill_(1e4)
        return loss


class Exploding(Diverging):
    """Its loss grows a thousandfold instead."""

    def spoilt(self, loss: Tensor, view: Any) -> Tensor:
        return loss * 1000 if self.spoils(view) else loss


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
    train(Checkpoint(tmp_path, "f"))  # of an earlier training, and not what to go back to
    trained = train(procedure=kind, stages=LONG, checkpoint=Checkpoint(tmp_path, "f") if kept else None, settings=OFTEN)
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
        train(Checkpoint(tmp_path, "f"), procedure=hopeless, settings=OFTEN)
    kept = Checkpoint(tmp_path, "f").load()
    assert kept is not None and kept.position == (2, 2, 0)  # the beginning of that epoch


def test_a_run_that_went_back_is_resumed_at_its_rate(tmp_path: Path) -> None:
    whole = train(procedure=Exploding, stages=LONG, checkpoint=Checkpoint(tmp_path / "a", "f"), settings=OFTEN)
    keep = Checkpoint(tmp_path / "b", "f")
    with pytest.raises(KeyboardInterrupt):  # 6 + 6 steps, 6 that diverge, and 2 of the same epoch at half the rate
        train(procedure=Exploding, stages=LONG, checkpoint=keep, settings=OFTEN, on_step=StopAt(20))
    assert_same(train(stages=LONG, checkpoint=keep, settings=OFTEN, resume=True), whole)


def test_networks_and_stages_begin_with_weights_of_their_own() -> None:
    data, tokenizer = corpus(9)
    begun: list[float] = []

    def build() -> VSEInf:
        model = builder(tokenizer)()
        begun.append(sum(float(p.detach().double().abs().sum()) for p in model.parameters()))
        return model

    procedure = SingleNetwork(InfoNCELoss(tau=0.1), Averaged(9))
    procedure.networks = 2
    Trainer(SETTINGS).fit(data, STAGES, procedure, build)
    assert len(begun) == len(set(begun)) == 4


def test_labels_from_the_batches_are_the_probabilities_that_these_had() -> None:
    """Each pair's own: it is known again by the label that it had."""
    seen: dict[float, float] = {}

    class Recording(ActiveComplementaryLoss):
        def __call__(self, S: torch.Tensor, labels: torch.Tensor, excluded: Any = None) -> torch.Tensor:
            P, Q = (S.detach() / 0.1).softmax(dim=1), (S.detach() / 0.1).softmax(dim=0)
            seen.update(zip(labels.tolist(), ((P.diagonal() + Q.diagonal()) / 2).tolist(), strict=True))
            return super().__call__(S, labels, excluded)

    data, tokenizer = corpus()
    settings = replace(SETTINGS, exclude_duplicates=False)
    labels = MomentumCorrection(len(data), freeze=1, guard=False)
    labels.y = begun = np.linspace(0.5, 1, len(data), dtype=np.float32)
    batches = SingleNetwork(Recording(tau=0.1), labels, label_pass="batch")
    trained = Trainer(settings).fit(data, [TrainingStage(1)], batches, builder(tokenizer))
    np.testing.assert_allclose(trained.values, [seen[y] for y in begun.tolist()], rtol=1e-5)
    assert np.ptp(trained.values) > 0.01  # not all alike: with labels of 1 for everybody this could not fail
