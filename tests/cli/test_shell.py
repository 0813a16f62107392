"""What a shell meets: the help's size, completion by click's own classes, errors on one line, JSON, quiet."""

import errno
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import pytest
from click.shell_completion import ShellComplete

from cleanpairs.cli import COMMANDS, SECTIONS, cli, terminal
from cleanpairs.cli.fit import fit
from cleanpairs.cli.terminal import Progress, periodic_progress, print_result
from cleanpairs.core import errors
from cleanpairs.core.plain import plain
from cleanpairs.core.progress import CurrentProgress
from cleanpairs.core.recipe import find_recipes
from cleanpairs.core.registry import BACKBONES, METHODS
from tests.conftest import Command, assert_refused

COMPLETE_VARIABLE = "_CLEANPAIRS_COMPLETE"  # by it a shell asks, as click's scripts do


# -- help -----------------------------------------------------------------------------------------------------------


def test_help_fits_a_screen_and_groups_the_commands(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = command("--help")
    lines = out.splitlines()
    assert code == 0 and len(lines) <= 31 and max(map(len, lines)) <= 80
    wanted = [
        " ".join([section if k == 0 else "", name, summary]).strip()
        for section, commands in SECTIONS.items()
        for k, (name, (_, summary)) in enumerate(commands.items())
    ]
    found = [" ".join(line.split()) for line in lines]
    assert [line for line in found if line in wanted] == wanted
    assert list(COMMANDS) == [name for commands in SECTIONS.values() for name in commands]
    for error in vars(errors).values():
        if isinstance(error, type) and issubclass(error, errors.CleanpairsError):
            assert f"{error.exit_code} " in out.split("Exit codes:")[1]


def test_options_are_few_and_stand_in_groups(command: Command) -> None:
    context = click.Context(cli)
    commands = {name: found for name in COMMANDS if (found := cli.get_command(context, name)) is not None}
    assert sum(isinstance(p, click.Option) for found in commands.values() for p in found.params) <= 170
    for name, titles in {
        "fit": ["Data", "Model", "Training", "Output"],
        "export": ["Repair", "Output"],
        "rematch": ["Data", "Repair", "Output"],
    }.items():
        out = command(name, "--help")[1]
        assert re.findall(r"^(\w[\w ]*):$", out, flags=re.MULTILINE) == [*titles, "Every command"]
        assert "--trust-stored-paths" in out and "--out" in out
    assert all("--out" in p.opts for found in commands.values() for p in found.params if p.name == "out")


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--column", "txt=a"], "'txt=a' is not ROLE=NAME, with a ROLE of image, text, key, score, text-vectors"),
        (["--column", "text="], "'text=' is not ROLE=NAME"),
        (["--column", "key=a", "--column", "key=b"], "key is given twice"),
        (["--set", "encodin=cp1252"], "unknown key 'encodin'; did you mean 'encoding'?"),
        (["--set", "repair.strategy=ot"], "unknown section 'repair'"),
        (["--set", "data.encoding=3"], "data.encoding must be text"),
        (["--allow-urls", "--debu"], "No such option '--debu'"),
    ],
)
def test_settings_of_the_data_that_are_none(in_process: Any, argv: list[str], says: str) -> None:
    assert_refused(in_process("inspect", "data.parquet", *argv), 2, says)


def test_columns_by_their_roles_become_parameters() -> None:
    argv = "d.parquet --column text=title --column text=alt --column text-vectors=a.npy --column captions=c.txt"
    made = fit.make_context("fit", argv.split())
    assert made.params["columns"] == {"text_column": "title,alt", "text_vectors": "a.npy", "captions": "c.txt"}


def test_help_takes_no_scikit_learn() -> None:
    code = "import sys, cleanpairs.cli, cleanpairs.cli.fit, cleanpairs.core.recipe\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"sklearn", "numpy", "torch", "pyarrow"} & {name.split(".")[0] for name in done.stdout.split()}


def test_not_fitted_is_made_when_asked_for() -> None:
    import sklearn.exceptions

    kind = errors.NotFittedError
    assert kind is errors.NotFittedError and issubclass(kind, errors.CleanpairsError)
    assert issubclass(kind, sklearn.exceptions.NotFittedError) and (kind.exit_code, kind.kind) == (2, "unfitted")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        errors.Nothing  # noqa: B018 - the access is the test


# -- completion -----------------------------------------------------------------------------------------------------


def offered(*words: str) -> list[str]:
    """What is offered after these words, the last of which is incomplete."""
    found = ShellComplete(cli, {}, "cleanpairs", COMPLETE_VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def test_commands_options_and_names_are_completed() -> None:
    assert offered("") == list(COMMANDS)
    assert offered("re") == [name for name in COMMANDS if name.startswith("re")]
    assert "--debug" in offered("--")
    assert {"--method", "--backbone", "--json", "--column"} <= set(offered("fit", "--"))
    assert offered("fit", "--method", "") == list(METHODS)
    assert offered("fit", "--method", "c") == [name for name in METHODS if name[0] == "c"] != []
    assert offered("fit", "--backbone", "") == list(BACKBONES)
    assert offered("fit", "--recipe", "crcl-") == [name for name in find_recipes() if name.startswith("crcl-")] != []
    assert offered("fit", "--device", "c") == ["cpu", "cuda"]


def test_a_shell_asks_the_program_itself() -> None:
    """End to end, as bash does it: by environment variables, with one candidate a line."""
    asked = {COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": "cleanpairs fit --method rc", "COMP_CWORD": "3"}
    argv = [sys.executable, "-m", "cleanpairs"]
    done = subprocess.run(argv, env=os.environ | asked, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["plain,rcl"] and done.stderr == ""


# -- errors ---------------------------------------------------------------------------------------------------------

SAID = "f.parquet: no column 'caption'; name it by --column text="
KINDS = [
    (errors.ConfigError, 2, "config"), (errors.DataError, 3, "data"), (errors.OutputError, 4, "output"),
    (errors.OutputExistsError, 5, "exists"), (errors.ResourceError, 6, "limit"), (errors.RefusedError, 7, "refused"),
    (errors.NotFittedError, 2, "unfitted"), (errors.CleanpairsError, 1, "bug"),
]  # fmt: skip
OF_THE_SYSTEM = {
    errno.ENOSPC: "No space left.*free some space", errno.EACCES: "Permission denied.*permissions",
    errno.EROFS: "Read-only.*another path", errno.EXDEV: "cross-device",
}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "code", "wanted"),
    [
        *((error(SAID), code, f"Error [{kind}]: {SAID}\n") for error, code, kind in KINDS),
        *((OSError(k, os.strerror(k), "out.parquet"), 4, says) for k, says in OF_THE_SYSTEM.items()),
    ],
)
def test_an_error_says_its_kind_and_the_remedy(
    command: Command, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, wanted: str
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("cleanpairs.core.recipe.find_recipes", fail)
    found, out, err = command("recipes")
    assert (found, out) == (code, "")
    assert err == wanted or re.match(rf"Error \[output\]: out\.parquet: .*{wanted}", err)


def test_misuse_says_where_the_help_is(command: Command) -> None:
    code, out, err = command("fit", "--epochs", "many")
    assert (code, out) == (2, "") and err.startswith("Error [usage]: ")
    assert err.endswith("'cleanpairs fit --help' for help.\n")


def test_colours_on_request_only(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    assert "\x1b[" not in command("fitt")[2]
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b[31m" in command("fitt")[2]
    monkeypatch.setenv("NO_COLOR", "1")  # the reader's word against colours counts
    assert "\x1b[" not in command("fitt")[2]


# -- JSON -----------------------------------------------------------------------------------------------------------


def strictly(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    assert len(text.splitlines()) == 1
    return json.loads(text, parse_constant=refuse)


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
    assert plain(value) == want
    with click.Context(cli) as ctx:
        ctx.meta["json"] = True
        print_result({**value, "text": "猫\ud800"})
    assert strictly(capsys.readouterr().out) == {**want, "text": "猫\ud800"}
    with pytest.raises(TypeError, match="object has no form"):
        plain([object()])


# -- progress -------------------------------------------------------------------------------------------------------


def test_no_bar_without_a_terminal_unless_asked(capsys: Any, monkeypatch: Any) -> None:
    def show(**how: Any) -> str:
        progress = Progress(**how)
        progress.started("runs/x")
        progress.step(5, 10, 0.5)
        progress.close()
        return capsys.readouterr().err

    monkeypatch.delenv("CLEANPAIRS_PROGRESS", raising=False)
    assert show() == ""
    monkeypatch.setenv("CLEANPAIRS_PROGRESS", "1")
    assert "runs/x" in show() and "50%" in show() and "5/10" not in show() and show(enabled=False) == ""
    monkeypatch.delenv("CLEANPAIRS_PROGRESS")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert "training" not in show()  # not before it has taken 5 s
    assert "training" in show(delay=0.0)


def test_threads_tell_their_own_progress() -> None:
    both, told = threading.Barrier(2), {name: list[int]() for name in (1, 2)}

    def work(name: int) -> None:
        with CurrentProgress.reported_to(SimpleNamespace(advance=lambda *n: told[name].append(n[2]), close=int)):
            both.wait(60)
            CurrentProgress.advance("writing", "pairs", name, 2)
            both.wait(60)

    threads = [threading.Thread(target=work, args=(name,)) for name in told]
    for step in (threading.Thread.start, threading.Thread.join):
        list(map(step, threads))
    assert told == {1: [1], 2: [2]}


def test_on_a_pipe_a_line_now_and_then_says_how_far_it_is(capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delenv("CLEANPAIRS_PROGRESS", raising=False)
    told = threading.Event()
    said: list[str] = []
    monkeypatch.setattr(terminal, "echo", lambda text, err: (said.append(text), told.set()))

    def during(progress: Progress | None) -> str:
        said.clear()
        told.clear()
        if progress is not None:
            progress.step(1_500, 20_000, 0.5)
        assert told.wait(60)
        return said[0]

    with periodic_progress("fit", every=0.01):
        assert re.fullmatch(r"fit, \d+ s so far", during(None))
    with periodic_progress("fit", every=0.01):
        assert re.fullmatch(r"fit: training, 8 %, \d+ s so far", during(Progress()))
    with periodic_progress("fit", every=0.01):
        Progress(enabled=False).step(1, 2, 0.5)
        said.clear()
        threading.Event().wait(0.2)
    assert not said


@pytest.mark.parametrize(
    ("argv", "suggested"),
    [(["--threshold", "0.1"], None), (["--epoch", "1"], "--epochs"), (["--methd", "x"], "--method")],
)
def test_only_what_is_near_is_suggested(in_process: Any, argv: list[str], suggested: str | None) -> None:
    done = in_process("fit", "data.parquet", *argv)
    assert_refused(done, 2, f"No such option '{argv[0]}'", suggested or "")
    assert ("Did you mean" in done.err) == (suggested is not None)
    assert "did you mean" not in in_process("claen")[2]
    for command in ("report", "rematch", "explain"):
        _, _, err = in_process(command, "--run", "runs/x")
        assert "give the directory alone" in err and "Did you mean" not in err


# -- variables ------------------------------------------------------------------------------------------------------


def test_variables_are_named_by_the_options(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what is typed, also where the parameter of the function has another name."""
    monkeypatch.setenv("CLEANPAIRS_METHODS_JSON", "1")
    code, out, err = command("methods")
    assert code == 0 and json.loads(out), err
    monkeypatch.setenv("CLEANPAIRS_EXPORT_OUT", "clean.parquet")
    monkeypatch.setenv("CLEANPAIRS_EXPORT_MAX_WRONG", "0.25")
    monkeypatch.setenv("CLEANPAIRS_FIT_SET", "epochs=2 seed=3")
    context = click.Context(cli, info_name="cleanpairs", auto_envvar_prefix="CLEANPAIRS")
    found: dict[str, dict[str, Any]] = {}
    for name, argv in (("export", []), ("fit", ["d.parquet"])):
        found[name] = cli.get_command(context, name).make_context(name, argv, parent=context).params
    assert found["export"]["out"] == "clean.parquet" and found["export"]["max_wrong"] == 0.25
    assert found["fit"]["overrides"] == ("epochs=2", "seed=3")
