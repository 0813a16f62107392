"""Whether the words that an explanation names are foreign to the image: by the image's own captions.

    OMP_NUM_THREADS=1 python benchmarks/explain.py DATA_DIR --corpora photos,titles-2000,web --noise 0.3

The corpora are those of truth.py. Of mismatched pairs: the share of the named words that none of the image's captions
holds (photographs have five, which is the truth; the others one, by which a right word may count as foreign), beside
that of all words of these captions; how many pairs have a word named. Of right pairs: the share of their words that is
named. Milliseconds of CPU a pair, and those of the index.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import roc_auc_score
from truth import read

from cleanpairs import Auto, Pairs
from cleanpairs.data.noise import apply_noise, inject_noise
from cleanpairs.methods import auto_training, untrained


def words(caption: str) -> set[str]:
    return set(re.findall(r"(?u)\b\w\w+\b", caption.lower()))


def area(score: np.ndarray, wrong: np.ndarray) -> str:
    known = np.isfinite(score)
    return f"{roc_auc_score(~wrong[known], score[known]):.3f}" if wrong.any() else "-"


def named_first(model: Auto, clean: Pairs, noisy: Pairs, found: np.ndarray) -> str:
    """Of the pairs ``found``: the share whose edited word is named first, and whose right word is named instead."""
    told = model.explainer(noisy).explain(found)
    edited = [(words(noisy.captions[i]) - words(clean.captions[i])) for i in found]
    right = [(words(clean.captions[i]) - words(noisy.captions[i])) for i in found]
    first = np.mean([bool(e.unsupported) and e.unsupported[0] in w for e, w in zip(told, edited, strict=True)])
    instead = np.mean([e.instead in w for e, w in zip(told, right, strict=True)])
    return f"{first:.2f}, {instead:.2f}"


def one_wrong_word(data: Path, corpus: str, kind: str, rate: float, seed: int, fits: bool) -> None:
    """A row: AUROC and rate of the untrained evidence and of `auto`, without the words and with them."""
    clean, settings = read(data, corpus)
    noise = inject_noise(clean, rate, kind=kind, seed=seed)
    noisy, wrong, cells, told = apply_noise(clean, noise), noise.mismatched, [], "-"
    settings |= {"backbone": "mlp", "text_encoder": "auto", "random_state": seed, "require_dependence": False}
    fit = Auto(**settings)._prepare(noisy)
    words_of = untrained.words_of
    for kept in (lambda tokens: None, words_of):
        untrained.words_of = auto_training.words_of = kept
        evidence = untrained.Untrained.of(fit.data, 0.0, similar=False, train=True, seed=seed).agreement
        cells.append([area(evidence.observed, wrong[fit.usable]), f"{evidence.noise_rate:.3f}", "-", "-"])
        if fits:
            model = Auto(**settings).fit(noisy)
            found, (low, high) = model.correspondence_, model.noise_rate_interval_
            cells[-1][2:] = area(found, wrong), f"{model.noise_rate_:.3f} [{low:.3f}, {high:.3f}]"
    if fits and kind == "edited":
        lowest = np.argsort(np.nan_to_num(found, nan=1), kind="stable")[: wrong.sum()]
        told = named_first(model, clean, noisy, lowest[wrong[lowest]])
    untrained.words_of = auto_training.words_of = words_of
    both = [f"{a} / {b}" for a, b in zip(*cells, strict=True)]
    print(f"| {corpus} | {kind} | {rate:g} | {' | '.join(both)} | {told} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--corpora", default="photos,photos-1,titles-2000,web")
    parser.add_argument("--noise", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help="KIND@RATE, ...: what the words add to the evidence, such as edited@0.2")
    parser.add_argument("--fits", action="store_true", help="with --kinds: and to `auto`")
    args = parser.parse_args()
    if args.kinds:
        heads = "corpus | kind | noise | evidence: AUROC | rate | auto: AUROC | rate | first, instead"
        print(f"| {heads} |\n" + "|---" * 8 + "|")
        for corpus in args.corpora.split(","):
            for kind, rate in (k.split("@") for k in args.kinds.split(",")):
                one_wrong_word(args.data, corpus, kind, float(rate), args.seed, args.fits)
        return
    heads = (
        "corpus",
        "named words of mismatched pairs: foreign",
        "all their words: foreign",
        "pairs with a named word",
    )
    heads += ("words of right pairs that are named", "index, s", "ms a pair")
    print("| " + " | ".join(heads) + " |\n|" + "---|" * len(heads))
    for corpus in args.corpora.split(","):
        clean, settings = read(args.data, corpus)
        noise = inject_noise(clean, args.noise, seed=args.seed)
        pairs = apply_noise(clean, noise)
        model = Auto(backbone="mlp", random_state=args.seed, require_dependence=False, **settings).fit(pairs)
        own: dict[int, set[str]] = {}
        whole = read(args.data, "photos")[0] if corpus == "photos-1" else clean
        image = {key.rsplit("#", 1)[0]: m for key, m in zip(clean.keys, clean.image_index.tolist(), strict=True)}
        for key, m, caption in zip(whole.keys, whole.image_index.tolist(), whole.captions, strict=True):
            m = image[key.rsplit("#", 1)[0]] if whole is not clean else m
            own.setdefault(m, set()).update(words(caption))
        begun = time.process_time()
        explainer = model.explainer(pairs)
        explainer.why([0])
        index, begun = time.process_time() - begun, time.process_time()
        found = explainer.explain(range(len(pairs)))
        each = 1000 * (time.process_time() - begun) / len(pairs)
        foreign, all_foreign, named = [], [], []
        for e, wrong, m in zip(found, noise.mismatched, pairs.image_index.tolist(), strict=True):
            if wrong:
                foreign += [w not in own[m] for w in e.unsupported]
                all_foreign += [w not in own[m] for w in words(e.caption)]
            else:
                named += [w in e.unsupported for w in words(e.caption)]
        some = np.mean([bool(found[i].unsupported) for i in np.flatnonzero(noise.mismatched)])
        print(f"| {corpus} | {np.mean(foreign):.3f} | {np.mean(all_foreign):.3f} | {some:.2f} | {np.mean(named):.3f} | "
              f"{index:.1f} | {each:.2f} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
