"""The settings of every paper, in its preset and in what is trained."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from cleanpairs import CRCL, RCL
from cleanpairs.core.recipe import Recipe
from cleanpairs.core.registry import METHODS
from cleanpairs.methods.rcl import ComplementaryLoss
from cleanpairs.trainer import TrainingStage
from tests.methods.conftest import strategy_of

PRESETS: dict[str, dict[str, Any]] = {
    "crcl": {"tau": 0.05, "lam": 5.0, "beta": 0.8, "epsilon": 0.1, "freeze": 2, "dim": 1024, "dim_word": 300,
             "lr": 5e-4, "batch_size": 128, "weight_decay": 0.01, "label_pass": "batch", "label_epochs": None},
    "l2rm": {"mass": 0.1, "transport_reg": 0.01, "transport_tau": 0.05, "cost_lr": 2e-6, "backbone": "sgr",
             "epochs": 40, "lr_update": 15, "warm_loss": "rce", "tau": 0.05, "rematch_weight": 0.5},
    "npc": {"encoder": "openai/clip-vit-base-patch32", "tune": "full", "bank_above": 0.9, "warmup": 0, "epochs": 5,
            "batch_size": 256, "encoder_lr": 2e-7, "weight_decay": 0.2, "tau": 0.01},
    "pc2": {"classes": 128, "entropy_weight": 10.0, "epochs": 55, "warmup": 5, "margin": 0.2, "curve": 10.0,
            "reduction": "sum", "tau": 0.07},
    "repair": {"memory": 4096, "neighbours": 32, "eta": 0.25, "noisy_weight": 0.15, "backbone": "sgr", "epochs": 40,
               "lr_update": 30, "warm_loss": "mean", "replace_after": 20, "tau": 0.07},
}  # fmt: skip
# The rate that is left in an epoch; networks, and the mixture that splits.
DECAYS = {
    "cream": {15: 1, 16: 0.1, 26: 0.01}, "in2r": {6: 1, 26: 0.5, 45: 0.00154}, "l2rm": {20: 1, 21: 0.1},
    "ncr": {35: 1, 36: 0.1}, "pc2": {35: 1, 36: 0.1}, "repair": {35: 1, 36: 0.1},
}  # fmt: skip
SPLITS = {"bicro": (2, "beta"), "l2rm": (1, "beta"), "ncr": (2, "gaussian")}


@pytest.mark.parametrize("name", "bicro crcl cream decl gsc in2r l2rm mscn ncr npc pc2 rcl repair".split())
def test_the_papers_settings(name: str) -> None:
    paper, told = METHODS.load(name).paper(), PRESETS.get(name, {})
    assert {key: getattr(paper, key) for key in told} == told
    assert (paper.exclude_duplicates, paper.near_duplicates) == (False, False)
    assert METHODS.load(name).paper(tau=0.3).tau == 0.3
    for epoch, rate in DECAYS.get(name, {}).items():
        assert paper._stages()[0].decay(epoch) == pytest.approx(rate, rel=1e-2)
    if name == "mscn":
        return  # its strategy needs a meta set
    strategy: Any = paper._make_strategy(range(4))
    assert name not in SPLITS or (strategy.networks, strategy.mixture) == SPLITS[name]
    objective = getattr(strategy, "warm_objective", None) or strategy.objective
    if hasattr(strategy, "pair_objective"):
        assert strategy.tau == paper.tau  # of the labels
    if not hasattr(objective, "negatives"):  # a triplet has none
        assert objective.tau == (paper.evidence_tau if name == "decl" else paper.tau)


def test_the_stages_of_crcl_and_the_epochs_whose_labels_count() -> None:
    assert CRCL(refine_epochs=(3, 4), epochs=9)._stages() == [TrainingStage(3), TrainingStage(4), TrainingStage(9, 6)]
    assert CRCL(refine_epochs=(), epochs=9, lr_update=2)._stages() == [TrainingStage(9, 2)]
    assert CRCL.paper()._stages() == [TrainingStage(7), TrainingStage(7), TrainingStage(7), TrainingStage(32, 15)]
    of_paper, own = (strategy_of(kind, 3) for kind in (CRCL.paper, CRCL))
    assert (of_paper.label_pass, of_paper.guard) == ("batch", False)
    assert (own.label_pass, own.guard) == ("eval", True)
    assert [of_paper.wants(epoch) for epoch in (1, 7, 32)] == [False, True, True]


def test_rcl_takes_its_form_and_its_epochs_over() -> None:
    strategy = strategy_of(RCL, 5, tau=0.2, kind="gce", start=2, label_epochs=4, epochs=9)
    assert strategy.objective == ComplementaryLoss(tau=0.2, kind="gce") and strategy.labels().tolist() == [1.0] * 5
    assert [strategy.wants(epoch) for epoch in range(1, 7)] == [False] + [True] * 3 + [False] * 2
    short = strategy_of(RCL, 5, start=9, label_epochs=None, epochs=3)  # it ends before the start
    assert short.wants(3) and not short.wants(2)


PAPERS_TABLES = {
    "CRCL": "1 2 3 4 5 6 7", "REPAIR": "I II III IV V VI", "PC2": "1 2 3 4 5 6 7 8 9", "L2RM": "1 2 3 4 5 6 7 8 9",
}  # fmt: skip


def test_every_table_of_the_four_papers_has_its_command_whose_settings_exist() -> None:
    text = (Path(__file__).parents[2] / "docs" / "papers.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\w+) ([\w, ]+?)(?:, figures? [\w, ]+)? \|.*\| .+ \|$", text, re.MULTILINE)
    for paper, numbers in PAPERS_TABLES.items():
        told = {number for name, tables in rows if name == paper for number in tables.split(", ")}
        assert told >= set(numbers.split()), paper
    recipes = re.findall(r"\*fit (\w+-\w+)\*|recipes show (\w+-\w+)", text)
    assert len(recipes) > 8
    for names in recipes:
        Recipe.resolve("".join(names))
    settings = re.findall(r"\b(\w+)\.(\w+)=([^`\s]+)", text)
    assert len(settings) > 25
    for name, key, value in settings:
        METHODS.load(name).paper(**{key: yaml.safe_load(value)})._validate()
