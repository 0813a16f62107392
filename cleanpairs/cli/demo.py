"""``cleanpairs demo``."""

import resource
from contextlib import closing

import click

from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.printing import json_option, print_result
from cleanpairs.cli.progress import Progress, progress_option, quiet_option
from cleanpairs.cli.terminal import echo


@click.command(cls=PathsCommand)
@click.option("--out", type=Writes(), default="demo", metavar="DIR", help="Where everything goes.")
@click.option("--noise", type=float, default=0.3, help="Share of pairs to wrong.")
@click.option("--seed", type=int, default=0)
@click.option("--images", is_flag=True, help="Train from the pixels (a small CNN) instead of frozen features.")
@quiet_option("No progress bar.")
@progress_option
@json_option
def demo(out: str, noise: float, seed: int, images: bool, quiet: bool, progress: bool, as_json: bool) -> None:
    """Wrong 30 % of the clip art's pairs, find them, repair them, and measure what that does for retrieval."""
    from cleanpairs.commands.demo import run_demo

    say = (lambda line: None) if as_json else echo
    with closing(Progress(enabled=not (quiet or as_json), asked=progress)) as bar:
        result = run_demo(out, noise=noise, seed=seed, images=images, say=say, progress=bar)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = f"\n{result['seconds']:.0f} s, {peak:,.0f} MB at the peak"
    print_result({**result, "peak_mb": round(peak), "out": out}, as_json, text)
