"""One cell of the table: one method, one noise, one seed."""

import math
import resource
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cleanpairs.benchmarking.settings import MethodSettings, Splits, with_features
from cleanpairs.core.registry import METHODS
from cleanpairs.data import Pairs, load_pairs
from cleanpairs.data.noise import Noise, apply_noise
from cleanpairs.ops.matching import unit_rows
from cleanpairs.ops.normalised_similarity import cosines, normalised_similarity
from cleanpairs.repair.plan import wrong_in_output
from cleanpairs.scoring.evaluate import detection, recall

# The cosine, and negCLIPLoss (Wang et al., NeurIPS 2024): cleanpairs.ops.normalised_similarity.
PLAIN_SCORES = ("cosine", "negCLIPLoss")


def run_cell(
    settings: MethodSettings,
    splits: Splits,
    noise: Noise,
    seed: int,
    *,
    on_step: Callable[[int, int, float], None] | None = None,
) -> dict[str, Any]:
    """Fit on mismatched pairs, and judge by the truth, which the method never sees. Returns dict:

    - ``rsum`` and the six recalls on the test split, ``val_rsum`` at the best epoch
    - detection at the method's threshold; ``auroc_best_epoch``, ``auroc_by_epoch`` of its label after each epoch
    - ``flagged`` share, ``noise_rate_estimate`` (NaN: undetermined), ``mismatched``: the true share
    - ``wrong_kept``, ``wrong_out``: share of mismatched pairs among those kept, and among those and the ones that
      `rematch` repairs by default; see also :func:`repair_quality`
    - ``pairs_per_second``, ``pairs_per_cpu_second``: pairs times epochs over the ``seconds`` of ``fit``, in which
      encoding of images is not
    - ``peak_mb``: the highest resident memory while the cell ran, what was loaded before it included; ``peak_gpu_mb``

    Raises CleanpairsError: as :meth:`cleanpairs.estimators.PairScorer.fit`.
    """
    start = time.perf_counter()
    _reset_peak()
    model = settings.estimator(random_state=seed)
    # A pretrained one encodes them by itself; so do the encoders that a setting names, and keep what they make.
    by_itself = "model" in METHODS[settings.method].needs or model.encoder is not None
    ready = splits if by_itself else splits.with_features(model.image_encoder, model.image_size)
    if ready is not splits:
        if settings.params.get("meta") is not None:  # read and encoded as the data is
            meta = load_pairs(settings.params["meta"])
            model.set_params(meta=with_features(meta, model.image_encoder, model.image_size))
        model.set_params(image_encoder="features")
    train = apply_noise(ready.train, noise)
    truth = noise.mismatched
    curve: list[float] = []

    def on_epoch(record: Any, y: np.ndarray) -> None:
        # The label of an epoch has no place for quarantined pairs.
        usable = np.ones(len(train), dtype=bool)
        usable[list(model.quarantined_)] = False
        if len(y) == int(usable.sum()) and truth[usable].any() and not truth[usable].all():
            curve.append(detection(y, truth[usable], 0.5).auroc)

    began, cpu = time.perf_counter(), time.process_time()
    told = {"on_epoch": on_epoch, "on_step": on_step} if "epochs" in model.get_params() else {}
    model.fit(train, val=ready.val, **told)
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    trained = (len(train) - len(model.quarantined_)) * len(model.history_)
    y = model.correspondence_
    known = np.isfinite(y)
    row: dict[str, Any] = {
        "pairs": len(train),
        "quarantined": len(model.quarantined_),
        "mismatched": float(truth.mean()),
        "epochs": len(model.history_),
        "val_rsum": model.best_val_rsum_,
        "threshold": float(model.threshold_),
        "flagged": float((y[known] < model.threshold_).mean()),
        "noise_rate_estimate": float(model.noise_rate_),
    }
    if ready.test is not None:
        row |= model.evaluate(ready.test).to_dict()
    if truth.any():
        row |= detection(y, truth, model.threshold_).to_dict()
        row |= {"auroc_best_epoch": max(curve, default=None), "auroc_by_epoch": [round(a, 4) for a in curve]}
        row |= repair_quality(model, ready.train, train, noise)
        shares = wrong_in_output(train, model.rematch(train).table) or (math.nan, math.nan)
        row |= {"wrong_kept": shares[0], "wrong_out": shares[1]}
    row |= {"seconds": seconds, "cpu_seconds": cpu}
    if trained:  # a method that does not train has no such speed
        row |= {"pairs_per_second": trained / seconds, "pairs_per_cpu_second": trained / max(cpu, 1e-9)}
    return row | _peaks() | {"total_seconds": time.perf_counter() - start}


def repair_quality(model: Any, clean: Pairs, train: Pairs, noise: Noise) -> dict[str, Any]:
    """How good are the new captions that ``model.rematch`` plans?

    A new caption is right when it belongs to the pair's own image, or has the same text as one that does, and its words
    are its own. ``repair_precision``: share of the ``repaired`` that is right; ``repair_random``: if each had got the
    caption of any flagged pair; ``corrupted_restored``: share of all mismatched pairs that got a right caption.
    """
    table = model.rematch(train, targets="text", strategy="method", repairs="plausible").table
    rows = np.flatnonzero(np.array([action == "rematch_text" for action in table["action"].to_pylist()], dtype=bool))
    donor = np.array(table["donor_pair_id"].fill_null(-1), dtype=np.int64)[rows]
    after = noise.permutation.copy()
    after[rows] = noise.permutation[donor]
    whole = np.ones(len(clean), dtype=bool)
    whole[list(noise.rewritten)] = False
    right = ~clean.mismatched_by(after)[rows] & whole[donor]
    flagged = np.flatnonzero(model.correspondence_ < model.threshold_)
    _, owner = np.unique(clean.pair_image_group, return_inverse=True)
    theirs = np.bincount(owner[noise.permutation[flagged[whole[flagged]]]], minlength=int(owner.max(initial=-1)) + 1)
    corrupted = int(noise.mismatched.sum())
    return {
        "repaired": len(rows),
        "repair_precision": float(right.mean()) if len(rows) else None,
        "repair_random": float(theirs[owner[rows]].mean() / len(flagged)) if len(rows) and len(flagged) else None,
        "corrupted_restored": float((right & noise.mismatched[rows]).sum() / corrupted) if corrupted else None,
    }


def _reset_peak() -> None:
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()


def _peaks() -> dict[str, float | None]:
    """MiB of resident memory, and of the GPU's where there is one."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(OSError, KeyError):  # of Linux, where it can begin anew
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        peak = int(status["VmHWM"].split()[0])
    gpu = torch.cuda.max_memory_allocated() / 2**20 if torch.cuda.is_available() else None
    return {"peak_mb": peak / 1024, "peak_gpu_mb": gpu}


def plain_scores(pairs: Pairs) -> list[MethodSettings]:
    """Those that the vectors of ``pairs`` allow: one an image and one a caption, of one length."""
    vectors, texts = pairs.images.array(), pairs.text_vectors
    if vectors is None or texts is None or vectors.shape[1:] != (1, texts.shape[1]):
        return []
    return [MethodSettings(name, {}, None, None, "plain") for name in PLAIN_SCORES]


def plain_row(name: str, splits: Splits, noise: Noise) -> dict[str, Any]:
    """Figures of :func:`run_cell` that need neither a fit nor a threshold."""
    began = time.perf_counter()
    pairs = apply_noise(splits.train, noise)
    image, text = _vectors(pairs)
    usable = np.setdiff1d(np.arange(len(pairs)), list(pairs.reasons))
    y = np.full(len(pairs), np.nan)
    groups = (pairs.pair_image_group[usable], pairs.text_group[usable])
    sides = image[usable], text[usable]
    y[usable] = cosines(*sides) if name == "cosine" else normalised_similarity(*sides, *groups)
    seconds = time.perf_counter() - began
    row: dict[str, Any] = {"pairs": len(pairs), "quarantined": len(pairs.reasons), "seconds": seconds}
    row |= {"mismatched": float(noise.mismatched.mean()), "total_seconds": seconds}
    if noise.mismatched.any():
        found = detection(y, noise.mismatched, -np.inf)
        row |= {"auroc": found.auroc, "ap": found.ap}
    if splits.test is not None and splits.test.has_both_vectors:
        test = splits.test
        _, first, owner = np.unique(test.pair_image_group, return_index=True, return_inverse=True)
        image, text = _vectors(test)
        row |= recall(image[first], text, owner).to_dict()
    return row


def _vectors(pairs: Pairs) -> tuple[np.ndarray, np.ndarray]:
    array, texts = pairs.images.array(), pairs.text_vectors
    assert array is not None and texts is not None
    return unit_rows(array[pairs.image_index, 0]), unit_rows(texts)
