"""What a shell meets: the size of the help, completion, errors on one line, JSON, variables."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import click
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

from cleanpairs.cli import COMMANDS, SECTIONS, cli
from cleanpairs.cli.fit import fit
from cleanpairs.cli.terminal import print_result
from cleanpairs.core import METHODS, errors, jsonable
from cleanpairs.core.recipe import find_recipes
from tests.conftest import Command, assert_refused

# -- help -----------------------------------------------------------------------------------------------------------


def test_settings_of_the_data_that_are_none(in_process: Command) -> None:
    for argv, says in (
        ("--column txt=a", "'txt=a' is not ROLE=NAME, with a ROLE of image, text, key, score, text-vectors"),
        ("--set encodin=cp1252", "unknown key 'encodin'; did you mean 'encoding'?"),
    ):
        assert_refused(in_process("inspect", "data.parquet", *argv.split()), 2, says)


def test_columns_by_their_roles_become_parameters() -> None:
    argv = "d.parquet --column text=title --column text=alt --column text-vectors=a.npy --column captions=c.txt"
    made = fit.make_context("fit", argv.split())
    assert made.params["columns"] == {"text_column": "title,alt", "text_vectors": "a.npy", "captions": "c.txt"}


# -- completion -----------------------------------------------------------------------------------------------------


def test_a_shell_asks_the_program_itself() -> None:
    """End to end, as bash does it: by environment variables, with one candidate a line."""
    for words, wanted in (
        ("re", [f"plain,{name}" for name in COMMANDS if name.startswith("re")]),
        ("fit --backb", ["plain,--backbone"]),
        ("fit --method rc", ["plain,rcl"]),
    ):
        asked = {"_CLEANPAIRS_COMPLETE": "bash_complete", "COMP_WORDS": f"cleanpairs {words}"}
        env = os.environ | asked | {"COMP_CWORD": str(len(words.split()))}
        done = subprocess.run([sys.executable, "-m", "cleanpairs"], env=env, capture_output=True, text=True, check=True)
        assert done.stdout.split() == wanted and done.stderr == ""


# -- errors ---------------------------------------------------------------------------------------------------------

MESSAGE = "f.parquet: no column 'caption'; name it by --column text="
KINDS = [
    (errors.ConfigError, 2, "config"), (errors.DataError, 3, "data"), (errors.OutputError, 4, "output"),
    (errors.OutputExistsError, 5, "exists"), (errors.ResourceError, 6, "limit"), (errors.RefusedError, 7, "refused"),
    (errors.NotFittedError, 2, "unfitted"), (errors.CleanpairsError, 1, "bug"),
]  # fmt: skip
OF_THE_SYSTEM = {errno.ENOSPC: "No space left.*free some space", errno.EXDEV: "cross-device"}


@pytest.mark.parametrize(
    ("error", "code", "wanted"),
    [
        *((error(MESSAGE), code, f"Error [{kind}]: {MESSAGE}\n") for error, code, kind in KINDS),
        *((OSError(k, os.strerror(k), "out.parquet"), 4, says) for k, says in OF_THE_SYSTEM.items()),
    ],
)
def test_an_error_says_its_kind_and_remedy(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, wanted: str
) -> None:
    monkeypatch.setattr("cleanpairs.core.recipe.find_recipes", Mock(side_effect=error))
    found, out, err = command("recipes")
    assert (found, out) == (code, "")
    assert err == wanted or re.match(rf"Error \[output\]: out\.parquet: .*{wanted}", err)


def test_not_fitted_is_scikit_learns_too() -> None:
    assert issubclass(errors.NotFittedError, NotFittedError)


# -- JSON -----------------------------------------------------------------------------------------------------------


def strictly(text: str) -> Any:
    assert len(text.splitlines()) == 1
    return json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON"))


def test_lists_as_json(command: Command) -> None:
    methods = strictly(command("methods", "--json")[1])
    assert [m["name"] for m in methods] == list(METHODS) and all("settings" not in m for m in methods)
    (named,) = strictly(command("methods", "crcl", "--settings", "--json")[1])
    assert named["name"] == "crcl" and named["settings"]["tokenizer"] == "words"
    assert command("methods", "crlc").code == 2
    recipes = strictly(command("recipes", "--json")[1])
    assert [r["name"] for r in recipes] == list(find_recipes()) and all("expected" in r for r in recipes)


def test_plain_knows_numpy_paths_and_nothing_that_is_not_finite(capsys: pytest.CaptureFixture[str]) -> None:
    value = {
        "a": np.float32("nan"), "b": [np.int64(3), float("inf"), np.bool_(True)], 1: Path("x/y"), "s": {"b", "a"},
        "m": np.array([[1.5, np.nan]]), "n": None,
    }  # fmt: skip
    want = {"a": None, "b": [3, None, True], "1": "x/y", "s": ["a", "b"], "m": [[1.5, None]], "n": None}
    assert jsonable(value) == want
    with click.Context(cli) as ctx:
        ctx.meta["json"] = True
        print_result({**value, "text": "猫\ud800"})
    assert strictly(capsys.readouterr().out) == {**want, "text": "猫\ud800"}
    with pytest.raises(TypeError, match="object has no form"):
        jsonable([object()])


# -- variables ------------------------------------------------------------------------------------------------------


def test_variables_are_named_by_the_options(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is typed, also where the parameter of the function has another name."""
    for variable, text in (("METHODS_JSON", "1"), ("EXPORT_MAX_WRONG", "0.25"), ("FIT_SET", "epochs=2 seed=3")):
        monkeypatch.setenv(f"CLEANPAIRS_{variable}", text)
    assert json.loads(command("methods").out)
    context = click.Context(cli, info_name="cleanpairs", auto_envvar_prefix="CLEANPAIRS")
    export = cli.get_command(context, "export").make_context("export", ["--out", "a"], parent=context)
    fitting = cli.get_command(context, "fit").make_context("fit", ["d.parquet"], parent=context)
    assert export.params["max_wrong"] == 0.25 and fitting.params["overrides"] == ("epochs=2", "seed=3")


def test_help_fits_a_screen_and_names_all_exit_codes(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("--help")
    lines = out.splitlines()
    assert code == 0 and len(lines) <= 31 and max(map(len, lines)) <= 80
    for commands in SECTIONS.values():
        assert all(f"{name} {summary}" in " ".join(out.split()) for name, (_, summary) in commands.items())
    for kind, number, _ in KINDS:
        assert issubclass(kind, errors.CleanpairsError) and f"{number} " in out.split("Exit codes:")[1]


def test_options_are_few_and_described() -> None:
    context = click.Context(cli)
    params = [param for name in COMMANDS for param in cli.get_command(context, name).params]
    options = [param for param in params if isinstance(param, click.Option)]
    assert len(options) <= 170 and all("--out" in option.opts for option in options if option.name == "out")
    assert all(option.help and " RANGE" not in option.make_metavar(context) for option in options)
