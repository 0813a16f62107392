"""``cleanpairs demo``."""

import resource
from contextlib import closing

import click

from cleanpairs.cli.options import option
from cleanpairs.cli.paths import PathsCommand, Writes
from cleanpairs.cli.progress import Progress, flag
from cleanpairs.cli.terminal import print_result, say


@click.command(cls=PathsCommand, flags=[flag("quiet", "No progress bar."), flag("progress")])
@option("--out", Writes(), "Where everything goes.", default="demo", metavar="DIR")
@option("--noise", float, "Share of pairs to wrong.", default=0.3)
@option("--seed", int, default=0)
@option("--images", None, "Train from the pixels (a small CNN) instead of frozen features.")
def demo(out: str, noise: float, seed: int, images: bool) -> None:
    """Wrong 30 % of the clip art's pairs, find them, repair them, and measure what that does for retrieval."""
    from cleanpairs.commands.demo import run_demo

    with closing(Progress()) as bar:
        result = run_demo(out, noise=noise, seed=seed, images=images, say=say, progress=bar)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    text = f"\n{result['seconds']:.0f} s, {peak:,.0f} MB at the peak"
    print_result({**result, "peak_mb": round(peak), "out": out}, text)
