"""``cleanpairs doctor``."""

from __future__ import annotations

import sys
from dataclasses import asdict

import click

from cleanpairs.cli.printing import json_option, print_json
from cleanpairs.cli.terminal import echo


@click.command(short_help="Check the installation, and say what mends it.")
@json_option
def doctor(as_json: bool) -> None:
    """Check the installation and the machine: versions, extras, GPU, threads, FAISS, disk space.

    What could be better comes with the command that mends it. Exit code 1 only if cleanpairs cannot run.
    """
    from cleanpairs.commands.doctor import diagnose
    from cleanpairs.core.errors import CleanpairsError

    checks = diagnose()
    ok = all(check.state != "broken" for check in checks)
    if as_json:
        print_json({"ok": ok, "checks": [asdict(check) for check in checks]})
    else:
        echo("\n".join(map(str, checks)))
    if not ok:
        sys.exit(CleanpairsError.exit_code)
