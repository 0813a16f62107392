"""Every method in one table, and what ``auto``'s tricks give the others: untrained evidence beside them, two networks.

    OMP_NUM_THREADS=1 python benchmarks/rows.py                    # the clip art that ships: nothing to download
    OMP_NUM_THREADS=1 python benchmarks/rows.py --noise 0.2,0.4,0.6,0.8 --seeds 3
    OMP_NUM_THREADS=1 python benchmarks/rows.py DATA --presets crcl,ncr
    OMP_NUM_THREADS=1 python benchmarks/rows.py NAME_image.npy     # vectors of both sides, NAME_text.npy beside

DATA: what ``cleanpairs bench`` takes: a directory in the research layout, or X_train.parquet with X_val and X_test
beside it (``benchmarks/corpora.py`` makes some). Vectors, and a file without these, are split 8 : 1 : 1. The rows of
the cosine, the normalised cosine and LEMoN are of vectors.

The evidence is what ``auto`` asks before any training: the neighbours' agreement of
:mod:`cleanpairs.correspondence.agreement` in its frozen spaces, or the similarity of vectors; "ridge" is linear maps
between those spaces, weighted by that evidence, of other folds than the pair's; it retrieves as ``auto``'s does
(:mod:`cleanpairs.encoders.linear`). ``A + evidence`` is the sum of the ranks of both, and in similarity that of A and
of the ridge regression, each in its deviations; ``auto`` has the regression already. ``2 x A`` is the mean of two fits
with different seeds, in correspondence and in similarity (of REPAIR four networks, of CRCL two, as ``auto`` has). Noise
is of captions one by one, the same in all rows of a seed; the validation split picks the epoch. Bold is what is above
every other row by more than the spread of the difference, which is taken seed by seed. All rows but the presets read
the captions as ``auto`` does: words, and sentence vectors where that encoder is installed (``--words``: words alone,
for all).

A second call goes on where the first stopped: fits are kept in OUT.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

sys.path.insert(0, str(Path(__file__).parent))
from vectors import lemon, normalised_similarity, unit

from cleanpairs import Pairs
from cleanpairs.benchmarking.settings import load_splits
from cleanpairs.core.registry import METHODS
from cleanpairs.correspondence.agreement import ridge
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.datasets import clipart_path
from cleanpairs.encoders.linear import Linear
from cleanpairs.estimators.spaces import frozen_spaces
from cleanpairs.methods.auto import Auto
from cleanpairs.methods.auto_training import ranks
from cleanpairs.methods.untrained import Untrained
from cleanpairs.scoring import Encoded, embed_images, embed_texts, matrix
from cleanpairs.scoring.evaluate import recall_of_similarity

OTHER = 1000  # added to the seed of the second network
COMBINED = ("crcl", "repair")
METHOD_ROWS = "infonce,triplet,ncr,crcl,repair,pc2,l2rm,gsc,npc,cream,in2r,auto"


class Corpus:
    """The splits of a corpus at one noise and seed, and its fits, which are kept in ``out``."""

    def __init__(
        self, data: Path, rate: float, seed: int, backbone: str, out: Path, text: str = "auto", device: str = "cpu"
    ) -> None:
        self.device = device
        self.clean, self.val, self.test = splits_of(data)
        noise = inject_noise(self.clean, rate, per="caption", seed=seed)
        self.pairs, self.wrong, self.seed = apply_noise(self.clean, noise), noise.mismatched, seed
        # Everybody reads the captions that `auto` reads: words, and sentence vectors where an encoder is installed.
        self.settings: dict[str, Any] = {"backbone": backbone, "text_encoder": text}
        if self.clean.text_vectors is not None:
            self.settings = {"text_encoder": "features", "image_encoder": "features"}
        self.out = out / f"{data.stem}-{backbone}-{text}-{device}-{rate:g}-{seed}"
        self.out.mkdir(parents=True, exist_ok=True)

    def fit(self, name: str, seed: int, *, paper: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Correspondence (N,), and similarity (M, N') of the test split's images and captions."""
        file = self.out / f"{name}{'-paper' if paper else ''}-{seed}.npz"
        if not file.is_file():
            kind, settings = METHODS.load(name), self.settings
            if paper:
                kind = kind.paper
                if settings["text_encoder"] == "auto":
                    settings = {**settings, "text_encoder": None}
            model = kind(**settings, device=self.device, random_state=seed).fit(self.pairs, val=self.val)
            test = model._embed(self.test)
            compared = Encoded(test.images, test.texts, model.model_, self.device)
            S = matrix(compared, np.arange(len(test.images)), np.arange(len(test.texts)))
            with file.with_suffix(".part").open("wb") as part:
                np.savez(part, y=model.correspondence_, S=S)
            file.with_suffix(".part").rename(file)
        with np.load(file) as kept:
            return kept["y"], kept["S"]

    def untrained(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Row -> score (N,), of what trains nothing; and the similarity of the test split by the regression."""
        reader = Auto(**self.settings, device="cpu")
        fit = reader._prepare(self.pairs)
        usable, data = fit.usable, fit.data
        evidence = np.full(len(self.pairs), np.nan)  # a picture that cannot be read has none
        asked = Untrained.of(data, 0.0, similar=False, train=True, seed=self.seed).agreement
        evidence[usable], right = asked.observed, asked.matched
        found = {"evidence alone": evidence, "ridge alone": np.full(len(self.pairs), np.nan)}
        of_images, of_texts = frozen_spaces(data.images, data.image_index, data.tokens, self.seed)
        found["ridge alone"][usable] = ridge_score(of_images[data.image_index], of_texts, data.image_group, right)
        words = len(reader.tokenizer_)
        linear = Linear.fit(data.images, data.tokens, data.image_index, right, vocabulary=words, seed=self.seed)
        test, images = self.test, reader._images(self.test)
        L = embed_images(linear, images.array).vectors @ embed_texts(linear, reader.tokenizer_.table(test)).vectors.T
        texts = self.pairs.text_vectors
        if texts is not None:
            images = self.pairs.images.array()
            assert images is not None
            x, t = unit(np.asarray(images, np.float32)[self.pairs.image_index].reshape(len(texts), -1)), unit(texts)
            if x.shape == t.shape:
                found |= {"cosine": (x * t).sum(1), "normalised cosine": normalised_similarity(x, t)}
                found["LEMoN"] = lemon(x, t)
        return found, L

    def rows(self, methods: list[str], presets: list[str]) -> dict[str, tuple[float, float]]:
        """Row -> AUROC and rSum, NaN without a model; told on standard error as soon as they are there."""
        shown: dict[str, tuple[float, float]] = {}

        def row(name: str, y: np.ndarray, S: np.ndarray | None = None) -> None:
            rsum = float("nan") if S is None else recall_of_similarity(S, self.test.image_index).rsum
            known = np.isfinite(y)
            shown[name] = float(roc_auc_score(~self.wrong[known], y[known])), rsum
            print(f"{self.out.name}: {name}: {shown[name][0]:.4f} {rsum:.1f}", file=sys.stderr, flush=True)

        untrained, L = self.untrained()
        for name, score in untrained.items():
            row(name, score, L if name == "ridge alone" else None)
        evidence = rank(untrained["evidence alone"])
        for name in methods:
            y, S = self.fit(name, self.seed)
            row(name, y, S)
            if name in COMBINED:
                again, T = self.fit(name, self.seed + OTHER)
                row(f"{name} + evidence", rank(y) + evidence, S / S.std() + L / L.std())
                T = S + T
                row(f"2 x {name}", y + again, T)
                row(f"2 x {name} + evidence", rank(y + again) + evidence, T / T.std() + L / L.std())
        for name in presets:
            row(f"{name}, the paper's settings", *self.fit(name, self.seed, paper=True))
        return shown


def rank(score: np.ndarray) -> np.ndarray:
    """(N,) in (0, 1), NaN where there is no score."""
    found, known = np.full(len(score), np.nan), np.isfinite(score)
    found[known] = ranks(score[known])
    return found


def ridge_score(x: np.ndarray, t: np.ndarray, image: np.ndarray, right: np.ndarray, folds: int = 10) -> np.ndarray:
    """(N,) of how well ridge regressions that have not seen the image predict each side of a pair from the other.

    Product of the prediction and the vector, in deviations over all vectors and over all predictions; ``right`` (N,)
    are the weights of the pairs, ``image`` (N,) numbers the images.
    """
    number = np.unique(image, return_inverse=True)[1]
    fold = np.random.default_rng(0).permutation(number.max() + 1)[number] % folds
    score = np.zeros(len(x))
    for a, b in ((x, t), (t, x)):
        a, b = (side - np.average(side, axis=0, weights=right) for side in (a, b))
        predicted = np.zeros_like(b)
        for k in range(folds):
            predicted[fold == k] = a[fold == k] @ ridge(a, b, np.where(fold == k, 0, right))
        predicted, b = unit(predicted), unit(b)
        product = np.einsum("ij,ij->i", predicted, b)
        for one, other in ((predicted, b), (b, predicted)):
            spread = np.sqrt(np.einsum("ij,ij->i", one @ np.cov(other.T), one))
            score += (product - one @ other.mean(axis=0)) / np.maximum(spread, 1e-12)
    return score


def splits_of(data: Path) -> tuple[Pairs, Pairs, Pairs]:
    """Train, validation and test."""
    if data.suffix == ".npy":
        x, t = (np.load(data.with_name(data.name.replace("_image", side))) for side in ("_image", "_text"))
        whole = Pairs.from_arrays(features=x, text_vectors=t)
    else:
        splits = load_splits(str(data))
        if splits.val is not None and splits.test is not None:
            return splits.train, splits.val, splits.test
        whole = splits.train
    parts = np.split(np.random.default_rng(0).permutation(len(whole)), [len(whole) * 8 // 10, len(whole) * 9 // 10])
    train, val, test = (whole.select(np.sort(part)) for part in parts)
    return train, val, test


def table(head: str, each: list[dict[str, tuple[float, float]]]) -> str:
    """Mean and spread of every row over the seeds; bold what is above every other by more than the difference's."""
    values = np.array([[found[row] for row in each[0]] for found in each])  # (seeds, rows, 2)
    mean = values.mean(axis=0)
    spread = values.std(axis=0, ddof=1) if len(each) > 1 else np.full_like(mean, np.nan)
    lines = [f"| {head}, {len(each)} seeds | AUROC | test rSum |", "|---|---|---|"]
    for i, row in enumerate(each[0]):
        cells = []
        for k, digits in enumerate((3, 1)):
            above = values[:, [i], k] - np.delete(values[:, :, k], i, axis=1)  # (seeds, other rows)
            apart = above.mean(axis=0) > (above.std(axis=0, ddof=1) if len(each) > 1 else np.inf)
            cell = f"{mean[i, k]:.{digits}f}" + (f" ± {spread[i, k]:.{digits}f}" if len(each) > 1 else "")
            best = bool(np.all(apart | np.isnan(above.mean(axis=0))))
            cells.append("-" if np.isnan(mean[i, k]) else f"**{cell}**" if best else cell)
        lines.append(f"| {row} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, nargs="?", default=clipart_path("train"))
    parser.add_argument("--noise", default="0.4", help="rates, with commas")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--methods", default=METHOD_ROWS)
    parser.add_argument("--presets", default="", help="methods to fit with their paper's settings, too")
    parser.add_argument("--backbone", default="mlp")
    parser.add_argument("--device", default="cpu", help="where the networks train")
    parser.add_argument("--words", action="store_true", help="no sentence encoder, for any row")
    parser.add_argument("--out", type=Path, default=Path("runs/rows"))
    args = parser.parse_args()
    presets, methods = ([name for name in text.split(",") if name] for text in (args.presets, args.methods))
    for rate in map(float, args.noise.split(",")):
        each = [
            Corpus(args.data, rate, seed, args.backbone, args.out, "words" if args.words else "auto", args.device).rows(
                methods, presets
            )
            for seed in range(args.seeds)
        ]
        print(table(f"{args.data.stem}, {args.backbone}, noise {rate:g}", each), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
