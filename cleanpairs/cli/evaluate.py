"""``cleanpairs evaluate``."""

from __future__ import annotations

from typing import Any

import click

from cleanpairs.cli.options import column_options, existing_run, pick_columns, run_and_data, trust_option
from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.terminal import echo
from cleanpairs.core.plain import plain


@click.command(short_help="Retrieval recall, and detection where the truth is known.")
@click.argument("paths", nargs=-1, metavar="[RUN] [DATA]", type=click.Path())
@click.option("--truth", metavar="FILE", help="True mismatches: .npy (booleans, or a permutation) or Parquet.")
@click.option(
    "--threshold", type=click.FloatRange(0, 1), metavar="P", help="For precision and recall.  [default: the run's]"
)
@column_options
@trust_option
@json_option
def evaluate(paths: tuple[str, ...], truth: str | None, threshold: float | None, as_json: bool, **options: Any) -> None:
    """R@1, 5, 10 both ways and rSum of RUN's model (runs/latest if not given) on DATA.

    Without DATA it is the data that RUN was fitted on: recall is what the model remembers there.

    Where DATA has a column `true_mismatch`, or with --truth: AUROC and average precision of detection, and precision,
    recall and F1 at the threshold. The training data is judged by the labels of the run, other data by its scores; the
    data of a run of `fit --noise-file` by its labels of the pairs that this file mismatched.
    """
    import numpy as np

    from cleanpairs.core.errors import ConfigError, DataError
    from cleanpairs.data import load_pairs
    from cleanpairs.scoring.evaluate import detection

    run_path, data = run_and_data(paths)
    run = existing_run(run_path, options["trusted"])
    model = run.model()
    pairs = run.load_input() if data is None else load_pairs(data, **pick_columns(options))
    figures: dict[str, float | None] = dict(model.evaluate(pairs).to_dict())
    mask = pairs.true_mismatch_mask(truth) if truth is not None or pairs.true_mismatch is not None else None
    noise = (run.info.get("input") or {}).get("noise") or {}
    if noised := noise.get("fingerprint") == pairs.source.fingerprint:
        wrong = noise.get("mismatched_pairs")
        if not isinstance(wrong, list) or not all(type(i) is int for i in wrong):
            raise DataError(
                f"{run.path / 'run.json'} does not say which pairs its noise file mismatched (input.noise."
                "mismatched_pairs, a list of their numbers): fit again"
            )
        own = np.isin(pairs.pair_id, wrong)
        if truth is not None and mask is not None and (mask != own).any():
            raise ConfigError(
                f"{truth} mismatches other pairs than the noise file of {run.path} ({noise.get('file')}), "
                "by whose captions it is judged: leave --truth out"
            )
        mask = own
    if mask is not None:
        trained_on = pairs.source.fingerprint == model.fingerprint_ and (run.path / "scores.parquet").exists()
        if trained_on or noised:
            y, unseen = run.scores().correspondence, None
        else:
            found, y = model.scored(pairs)
            unseen = model.threshold_of(found, y)
        limit = model.applied_threshold(unseen) if threshold is None else threshold
        figures.update(detection(y, mask, limit).to_dict())
    figures = {k: None if v is None else round(v, 6) for k, v in plain(figures).items()}
    if as_json:
        print_json(figures)
        return
    echo(f"{'':<16}{'R@1':>8}{'R@5':>8}{'R@10':>8}")
    for name, prefix in (("image to text", "i2t"), ("text to image", "t2i")):
        echo(f"{name:<16}" + "".join(f"{figures[f'{prefix}_r{k}']:>8.1f}" for k in (1, 5, 10)))
    echo(f"{'rSum':<16}{figures['rsum']:>8.1f}")
    if mask is not None:
        echo()
        for name in ("auroc", "ap", "precision", "recall", "f1"):
            value = figures[name]
            echo(f"{name:<16}{'-' if value is None else f'{value:.3f}':>8}")
