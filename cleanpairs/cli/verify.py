"""``cleanpairs verify`` and ``cleanpairs doctor``."""

import sys

import click

from cleanpairs.cli.options import option
from cleanpairs.cli.paths import PathsCommand
from cleanpairs.cli.progress import flag
from cleanpairs.cli.terminal import asked, print_result, say


@click.command(cls=PathsCommand, flags=[flag("quiet", "Print only what is wrong.")])
@click.argument("path", metavar="PATH", type=click.Path())
@option("--data", "PATH", "The input of the export PATH, where it lies in another folder.")
def verify(path: str, data: str | None) -> None:
    """Check PATH against what it says of itself, and name what is wrong: file, row group, row, column.

    PATH is the cleaned data of an export (or its manifest), a run directory, a saved model, a Parquet file, or a
    directory of such. Of an export: sizes and SHA-256 of the manifest, the page checksums, every pair of the input
    exactly once, and every value against the input, where that is still as it was. Of a run: its files, their SHA-256,
    the scores' rows and ranges, and that the model loads.

    Exit code 3 if anything is wrong.
    """
    from cleanpairs.core.errors import DataError
    from cleanpairs.verification import verify_path

    found = verify_path(path, data)
    if asked("json"):
        print_result({**vars(found), "ok": found.ok})
    elif not asked("quiet"):
        say(str(found) + (f"\n{len(found.checked)} checks, nothing wrong" if found.ok else ""))
    elif not found.ok:
        say("\n".join(map(str, found.problems)))
    if not found.ok:
        sys.exit(DataError.exit_code)


@click.command(cls=PathsCommand)
def doctor() -> None:
    """Check the installation and the machine: versions, extras, GPU, threads, FAISS.

    What could be better comes with the command that mends it. Exit code 1 only if cleanpairs cannot run.
    """
    from cleanpairs.commands.doctor import diagnose
    from cleanpairs.core.errors import CleanpairsError

    checks = diagnose()
    ok = all(check.state != "broken" for check in checks)
    print_result({"ok": ok, "checks": checks}, "\n".join(map(str, checks)))
    if not ok:
        sys.exit(CleanpairsError.exit_code)
