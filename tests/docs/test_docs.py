"""The documentation says what is so: names, codes, figures and links; and the site builds without a warning."""

import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from runpy import run_path
from typing import Any

import click
import pytest
import yaml

import cleanpairs
from cleanpairs.cli import COMMANDS, cli
from cleanpairs.core import METHODS, errors
from cleanpairs.core.recipe import find_recipes
from cleanpairs.estimators import PairCleaner
from cleanpairs.repair.plan import PLAN_SCHEMA, RepairPlan

REPO = Path(__file__).resolve().parents[2]
DOCS = REPO / "docs"
PAGES = sorted(p.relative_to(DOCS).as_posix() for p in DOCS.rglob("*.md"))
EVERY_PAGE = [REPO / "README.md", *DOCS.rglob("*.md")]


def read(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def table(text: str, heading: str) -> list[dict[str, str]]:
    """The rows of the first table below a heading, by column."""
    lines = [line for line in text.split(heading, 1)[1].splitlines() if line.startswith("|")]
    names = cells(lines[0])
    rows = []
    for line in lines[2:]:
        if len(cells(line)) != len(names) or set(line) <= set("|-"):
            break
        rows.append(dict(zip(names, cells(line), strict=True)))
    return rows


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def occurrences(pattern: str | re.Pattern[str], files: Iterable[Path]) -> list[Any]:
    """What the pattern finds in the files."""
    return [found for file in files for found in re.findall(pattern, file.read_text(encoding="utf-8"))]


# -- the site -------------------------------------------------------------------------------------------------------


def pages_of(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    return [page for part in (nav if isinstance(nav, list) else nav.values()) for page in pages_of(part)]


def test_every_page_is_in_the_navigation_once() -> None:
    assert sorted(pages_of(yaml.safe_load((REPO / "mkdocs.yml").read_text(encoding="utf-8"))["nav"])) == PAGES


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed (the docs extra)")
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPO, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "WARNING" not in done.stderr, done.stderr
    api = (tmp_path / "site" / "api" / "index.html").read_text(encoding="utf-8")
    for name, home in cleanpairs._HOME.items():
        assert f'id="{home}.{name}"' in api, name
    assert f'id="{cleanpairs._HOME["PairCleaner"]}.PairCleaner.fit"' in api
    built = list((tmp_path / "site").rglob("*.html"))
    assert len(built) > len(PAGES)
    assert not occurrences(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]*', built)
    assert not occurrences(r'<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//[^"]*', built)


def test_links_between_pages_and_from_the_readme_lead_somewhere() -> None:
    checked = 0
    for file in EVERY_PAGE:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", file.read_text(encoding="utf-8"), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if not target.startswith(("http", "#", "mailto")):
                assert (file.parent / target.split("#")[0]).exists(), f"{file.name}: {target}"
                checked += 1
    assert checked > 50


# -- what the pages say ---------------------------------------------------------------------------------------------


def test_tests_that_pages_name_and_what_docstrings_refer_to_are_there() -> None:
    named = set(occurrences(r"tests/[\w/]+\.py", [*EVERY_PAGE, *REPO.glob("*.md"), *REPO.glob("tools/*.py")]))
    assert len(named) > 5 and not [name for name in named if not (REPO / name).exists()]
    modules = Path(cleanpairs.__file__).parent.rglob("*.py")
    found = set(occurrences(r":(?:mod|class|func|data|meth|attr):`(cleanpairs[\w.]*)`", modules))
    assert len(found) > 60
    for name in sorted(found):
        pkgutil.resolve_name(name)


def test_every_public_name_and_what_docs_and_notebooks_import_is_in_the_reference() -> None:
    listed = set(re.findall(r"^::: (\S+)$", read("api.md"), flags=re.MULTILINE))
    assert {f"{home}.{name}" for name, home in cleanpairs._HOME.items()} <= listed
    for name in listed:
        pkgutil.resolve_name(name)
    shown = {name.rpartition(".")[2] for name in listed}
    lines = occurrences(r"from cleanpairs[\w.]* import ([\w, ]+)", [*EVERY_PAGE, *(REPO / "notebooks").glob("*.ipynb")])
    used = {name.split(" as ")[0].strip() for names in lines for name in names.split(",")}
    assert len(used) > 20 and used <= shown, used - shown


def test_the_table_of_errors_is_the_exceptions() -> None:
    rows = table(read("errors.md"), "# Errors and exit codes")
    documented = {row["exception"].strip("`").split("`")[0]: row for row in rows if row["exception"].startswith("`")}
    kinds = {errors.NotFittedError, errors.CleanpairsError, *errors.CleanpairsError.__subclasses__()}
    ours = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len(ours) == 8
    for kind in ours:
        told = documented[kind.__name__]["code"], documented[kind.__name__]["printed as"]
        assert told == (str(kind.exit_code), f"`Error [{kind.kind}]`")
    codes = [int(row["code"]) for row in rows]
    assert codes == sorted(codes) and set(codes) == {*range(8), 129, 130, 143}


def test_the_table_of_methods_is_of_the_registry() -> None:
    listed = table(read("methods/index.md"), "# Methods")
    rows = {re.findall(r"\[(\S+)\]", row["method"])[0]: row for row in listed}  # one that somebody adds needs none
    assert list(rows) == [name for name in METHODS if name in rows] and len(rows) >= 18
    headings = re.sub(r"[^a-z0-9\n#-]", "", read("methods/others.md").lower())
    for name, row in rows.items():
        assert row["paper"] == METHODS[name].source
        assert (row["needs"] == "nothing") == (not METHODS[name].needs), name
        page, _, section = re.findall(r"\]\(([\w.#-]+)\)", row["method"])[0].partition("#")
        assert (DOCS / "methods" / page).exists()
        assert not section or (section == name and f"##{name}\n" in headings), name


def test_the_parameters_of_all_methods_and_the_columns_of_a_plan_are_described_in_the_class() -> None:
    shared = set(inspect.signature(PairCleaner).parameters)
    assert shared == set(re.findall(r"^(\w+) : ", str(PairCleaner.__doc__), re.M)) and len(shared) > 30
    assert [name for name in PLAN_SCHEMA.names if f"``{name}``" not in str(RepairPlan.__doc__)] == []


def test_the_page_of_recipes_names_what_ships() -> None:
    text = read("recipes.md")
    for name in find_recipes():
        method = next(m for m in sorted(METHODS, key=len, reverse=True) if name.startswith(m))
        corpus = name[len(method) + 1 :]
        assert f"`{corpus}`" in text or f"`{name}`" in text, name
        assert method in text


def test_the_tables_of_the_pages_are_those_of_the_results() -> None:
    tool = run_path(str(REPO / "tools" / "doc_tables.py"))
    for page in tool["PAGES"]:
        text = page.read_text(encoding="utf-8")
        assert tool["filled"](text) == text, f"{page.name}: run python tools/doc_tables.py"
    assert len(occurrences(tool["MARKED"], tool["PAGES"])) > 20
    assert {row["method"] for row in tool["read"]("methods_photographs")} <= set(METHODS)


def test_commands_and_options_that_the_docs_name_exist() -> None:
    """``cleanpairs COMMAND`` in every page and in the README, with the long options behind it."""
    context, swept = click.Context(cli), 0
    shared = {option for parameter in cli.params for option in parameter.opts} | {"--help"}
    for name, rest in occurrences(r"\bcleanpairs ([a-z]+)\b([^\n`|#;)]*)", EVERY_PAGE):
        if name not in COMMANDS:
            continue
        known = {option for parameter in cli.get_command(context, name).params for option in parameter.opts} | shared
        used = set(re.findall(r"(?<=\s)--[a-z-]+[a-z]", rest.split("&&")[0]))
        assert used <= known, f"cleanpairs {name}{rest}: {used - known}"
        swept += 1
    assert swept > 60
    commands = re.findall(r"^    (\S.*)$", EVERY_PAGE[0].read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert commands[:2] == ["make demo", "make test"]  # with which the README begins
