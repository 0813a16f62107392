"""The temperature of every paper, in its preset and in what is trained."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cleanpairs.core.recipe import Recipe
from cleanpairs.core.registry import METHODS

TAU = {
    "crcl": 0.05, "l2rm": 0.05, "rcl": 0.05, "repair": 0.07, "pc2": 0.07, "ncr": 0.07, "bicro": 0.07, "gsc": 0.07,
    "npc": 0.01, "cream": 0.07, "in2r": 0.05, "decl": 0.07, "mscn": 0.07,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TAU))
def test_the_papers_temperature(name: str) -> None:
    paper = METHODS.load(name).paper()
    assert paper.tau == TAU[name]
    assert METHODS.load(name).paper(tau=0.3).tau == 0.3
    if name == "mscn":
        return  # its procedure needs a meta set
    procedure: Any = paper._procedure(range(4))
    objective = getattr(procedure, "warm_objective", None) or procedure.objective
    if hasattr(procedure, "pair_objective"):
        assert procedure.tau == TAU[name]  # of the labels
    if not hasattr(objective, "negatives"):  # a triplet has none
        assert objective.tau == (paper.evidence_tau if name == "decl" else TAU[name])


@pytest.mark.parametrize("name", sorted(TAU))
def test_no_paper_takes_duplicates_out_of_the_negatives(name: str) -> None:
    paper = METHODS.load(name).paper()
    assert (paper.exclude_duplicates, paper.near_duplicates) == (False, False)


PAPERS_TABLES = {
    "CRCL": "1 2 3 4 5 6 7", "REPAIR": "I II III IV V VI", "PC2": "1 2 3 4 5 6 7 8 9", "L2RM": "1 2 3 4 5 6 7 8 9",
}  # fmt: skip


def test_every_table_of_the_four_papers_has_its_command() -> None:
    text = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) ([\w, ]+?)(?:, figures? [\w, ]+)? \|.*\| (.+) \|$", text, re.MULTILINE)
    for paper, numbers in PAPERS_TABLES.items():
        told = {number for name, tables, _ in rows if name == paper for number in tables.split(", ")}
        assert told >= set(numbers.split()), paper
    recipes = re.findall(r"\*fit (\w+-\w+)\*|recipes show (\w+-\w+)", text)
    assert len(recipes) > 8
    for names in recipes:
        Recipe.resolve("".join(names))


def test_every_setting_of_the_page_of_tables_exists() -> None:
    text = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    found = re.findall(r"\b(\w+)\.(\w+)=([^`\s]+)", text)
    assert len(found) > 25
    for name, key, value in found:
        METHODS.load(name).paper(**{key: yaml.safe_load(value)})._validate()
