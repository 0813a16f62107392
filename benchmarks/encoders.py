"""What captions become: learned words, a frozen sentence encoder, or both, on corpora that are given as files.

    python benchmarks/encoders.py photos.parquet --test photos_test.parquet --captions 1 5 --sizes 1600 --noise 0.4 0
    python benchmarks/encoders.py clipart

Each file is Parquet with an image and a caption, or a list of captions, a row; ``clipart`` is the corpus that ships,
with its test split. Of each corpus so many rows and so many captions of each are taken, the share ``--noise`` of the
captions is permuted, and the method ``auto`` with the backbone ``mlp`` is fitted with each text encoder: AUROC of the
untrained neighbours' agreement, AUROC and F1 of the method, rSum on the test file, CPU seconds. ``sentences``
are the vectors alone, given as those of the data; ``auto`` chooses, as a fit does. ``--speed`` is of both encoders
alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from cleanpairs import Auto, Pairs, load_pairs
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.datasets import clipart_path
from cleanpairs.encoders.sentences import SHIPPED, SentenceEncoder
from cleanpairs.features import Captions, ImageMatrix, image_matrix
from cleanpairs.methods.untrained import Untrained
from cleanpairs.scoring.evaluate import detection
from cleanpairs.trainer import TrainingData

KINDS = ("words", "sentences", "both", "auto")
SETTINGS = {"backbone": "mlp", "batch_size": 32}


def first_captions(pairs: Pairs, rows: int, captions: int) -> np.ndarray:
    """Places of at most ``captions`` captions of each of the first ``rows`` rows."""
    return np.flatnonzero((pairs.row < rows) & (pairs.position < captions))


def vectors(pairs: Pairs, matrix: ImageMatrix, sentences: np.ndarray | None) -> Pairs:
    """The pairs with features for images, and maybe vectors for captions."""
    return Pairs.from_arrays(
        pairs.captions, features=np.asarray(matrix.array), image_index=pairs.image_index, text_vectors=sentences
    )


def runs(
    pairs: Pairs, test: Pairs | None, frozen: Captions, noise: float, kinds: tuple[str, ...], seed: int
) -> Iterator[str]:
    """One line of a table for each kind of captions."""
    corpora = [(p, image_matrix(p), frozen.table(p).frozen()) for p in (pairs, test) if p is not None]
    wrong = inject_noise(pairs, noise, seed=seed) if noise else None
    for kind in kinds:
        given = [vectors(p, m, z if kind == "sentences" else None) for p, m, z in corpora]
        train = given[0]
        if wrong is not None:
            train = apply_noise(train, wrong)
            if kind == "sentences":  # their vectors go with the captions
                train = vectors(train, corpora[0][1], frozen.encode(train.captions).frozen())
        name = {"words": "words", "sentences": "features", "both": SHIPPED, "auto": "auto"}[kind]
        model = Auto(text_encoder=name, random_state=seed, **SETTINGS)  # type: ignore[arg-type]
        began = time.process_time()
        model.fit(train)
        seconds = time.process_time() - began
        figures = ["-", "-", "-"]
        if wrong is not None:
            found = detection(model.correspondence_, wrong.mismatched, model.threshold_)
            data = TrainingData(
                np.asarray(corpora[0][1].array), model.tokenizer_.table(train), train.image_index,
                train.pair_image_group, train.text_group,
            )  # fmt: skip
            before = roc_auc_score(
                ~wrong.mismatched, Untrained.of(data, 0.0, similar=False, train=True, seed=seed).agreement.observed
            )
            figures = [f"{before:.4f}", f"{found.auroc:.4f}", f"{found.f1:.3f}"]
        rsum = f"{model.evaluate(given[1]).rsum:.1f}" if test is not None else "-"
        yield f"| {noise:g} | {kind} | {' | '.join(figures)} | {model.noise_rate_:.2f} | {rsum} | {seconds:.0f} |"


def speed(pairs: Pairs, images: int = 64, captions: int = 1000) -> None:
    """CPU milliseconds an image in float32 and bfloat16, by turns, and how far the features agree; the same of captions
    of 12 words.
    """
    import io

    import torch
    from PIL import Image

    from cleanpairs.encoders.efficientnet_lite import EfficientNetLite0

    encoded = pairs.images.read(range(min(images, len(pairs.images))))
    pictures = [Image.open(io.BytesIO(data)).convert("RGB").resize((224, 224)) for data in encoded if data is not None]
    all_words = " ".join(pairs.captions).split()
    texts = [" ".join(all_words[12 * k : 12 * k + 12]) for k in range(min(captions, len(all_words) // 12))]
    precisions = (torch.float32, torch.bfloat16)
    networks = [EfficientNetLite0(precision=p) for p in precisions]
    readers = [SentenceEncoder(SHIPPED, precision=p) for p in precisions]
    runs_of: list[tuple[str, list[Any], list[Any]]] = [
        ("image", pictures, [lambda x, n=n: n.encode_images(x).mean(axis=1) for n in networks]),
        ("caption", texts, [r.encode_texts for r in readers]),
    ]
    for what, rows, parts in runs_of:
        found: list[np.ndarray] = []
        times: list[list[float]] = [[], []]
        for turn in range(4):  # the first warms up
            found = []
            for k, encode in enumerate(parts):
                began = time.process_time()
                found.append(encode(rows))
                times[k] += [1000 * (time.process_time() - began) / len(rows)] if turn else []
        a, b = found
        cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        slow, fast = (float(np.median(t)) for t in times)
        print(
            f"{what}: {slow:.2f} ms in float32, {fast:.2f} ms in bfloat16 ({slow / fast:.2f} times as fast); cosine: "
            f"least {cosine.min():.5f}, mean {cosine.mean():.5f}; {len(rows)} of them, medians of 3 turns"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="a Parquet file, or clipart")
    parser.add_argument("--test", help="rows that rSum is of")
    parser.add_argument("--text-column")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2000], help="rows")
    parser.add_argument("--captions", type=int, nargs="+", default=[1], help="of each row")
    parser.add_argument("--noise", type=float, nargs="+", default=[0.4])
    parser.add_argument("--kinds", nargs="+", default=KINDS[:3], choices=KINDS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-test", type=int, default=500)
    parser.add_argument("--speed", action="store_true", help="of the encoders only")
    options = parser.parse_args()
    shipped = options.corpus == "clipart"
    column = {} if options.text_column is None else {"text_column": options.text_column}
    whole = load_pairs(clipart_path("train") if shipped else options.corpus, limit=max(options.sizes), **column)
    if options.speed:
        return speed(whole)
    test = clipart_path("test") if shipped else options.test
    test = None if test is None else load_pairs(test, limit=options.limit_test, **column)
    frozen = Captions(frozen=SentenceEncoder(SHIPPED))
    print(f"{Path(options.corpus).name}, seed {options.seed}")
    print("| rows | captions | noise | text | untrained AUROC | AUROC | F1 | noise rate | rSum | CPU s |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for size in options.sizes:
        for captions in options.captions:
            pairs = whole.select(first_captions(whole, size, captions))
            for noise in options.noise:
                for line in runs(pairs, test, frozen, noise, tuple(options.kinds), options.seed):
                    print(f"| {size} | {captions} {line}", flush=True)
    return None


if __name__ == "__main__":
    main()
