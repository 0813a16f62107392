"""The dataset card: a header that the hub takes, the counts, and nothing about whose machine it was made on."""

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from huggingface_hub import DatasetCard

from cleanpairs.export import CardFacts, export_pairs
from cleanpairs.export.formats import FORMATS

from .conftest import named

FACTS = CardFacts(
    license="cc-by-4.0", method="crcl", flagged=3, fitted=7, noise="About 25.0 % of them.", versions={"torch": "2.13.0"}
)


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_card_of_every_format(name: str, make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    pairs, made, out = make_pairs(7, struct=True), FORMATS.load(name), tmp_path / named("photos", name)
    card = out / "README.md" if made.directory else tmp_path / "card.md"
    more: Any = {"dropped": tmp_path / "gone.parquet", "all_captions": name not in ("uids", "csv"), "about": FACTS}
    given = None if made.directory else card
    summary = export_pairs(pairs, make_plan(pairs, mixed), out, format=name, card=given, **more)
    assert summary.rows == made.count(out) == (4 if made.selection else 6)
    assert summary.kept + summary.repaired + summary.dropped == summary.pairs == 7
    assert out.is_dir() == made.directory == (out / "README.md").exists()
    manifest = json.loads((listed := out.with_name(out.name + ".manifest.json")).read_text())
    assert manifest["format"] == name and manifest["counts"]["pairs"] == 7
    others = {tmp_path / "cache", tmp_path / "data"}
    there = {p for p in tmp_path.rglob("*") if p.is_file() and not others & set(p.parents)}
    assert there - {tmp_path / path for path in manifest["files"]} == {listed}
    loaded = DatasetCard(text := card.read_text()).data
    assert loaded.license == "cc-by-4.0" and loaded.size_categories == "n<1K" and "cleanpairs" in loaded.tags
    for words in (
        "| pairs in the input | 7 | 100.0 % |", f"{summary.rows:,} rows are in this dataset", "3 of 7 pairs (42.9 %)",
        f"| dropped | {summary.dropped} |", "method: crcl", "- About 25.0 %", "strategy ot", "torch 2.13.0",
    ):  # fmt: skip
        assert words in text
    assert ("- `all_captions`: " in text) == more["all_captions"]
    assert ("cleanpairs restore" in text) == (name in ("parquet", "datasets"))
    assert "/secret" not in text and str(tmp_path) not in text and text.startswith("---\n")
    assert ("configs" in yaml.safe_load(text.split("---\n")[1])) == (name not in ("uids", "csv", "lance"))


# webdataset leaves the tars that it read to the garbage collector
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_code_for_loading_runs(make_pairs: Any, make_plan: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    pairs = make_pairs(3, struct=True)
    for name in ("webdataset", "datasets", "csv", "uids", "parquet"):
        out, card = Path(named(f"out-{name}", name)), Path("card.md")
        beside = not FORMATS.load(name).directory
        export_pairs(pairs, make_plan(pairs), out, format=name, card=card if beside else None, overwrite=True)
        code = (card if beside else out / "README.md").read_text().split("```python\n")[1].split("```")[0]
        found: dict[str, Any] = {}
        if name != "parquet":  # of which the cache was chosen at import
            exec(code, found)
            rows: Any = found.get("data", found.get("uids"))
            assert len(list(rows.values if name == "csv" else rows)) == 3
    assert 'data_files="out-parquet.parquet"' in code


def test_what_is_not_known_is_said_and_what_a_run_says_is_text(make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs, card = make_pairs(0), tmp_path / "card.md"
    export_pairs(pairs, make_plan(pairs), tmp_path / "out.parquet", card=card)
    assert DatasetCard(text := card.read_text()).data.license == "unknown" and "licence is unknown" in text
    assert "| pairs in the input | 0 |  |" in text and "method" not in text.split("## What was done")[1].split("##")[0]
    evil = "<script>alert(1)</script>\n# Title\n[x](javascript:1) ![i](http://e/i.png) `c` a|b \x1b[31m"
    pairs, about = make_pairs(3), CardFacts(method=evil, versions={evil: evil})
    plan = replace(make_plan(pairs), settings={"strategy": evil, "take_from": "trusted"})
    export_pairs(pairs, plan, tmp_path / "an out.parquet", card=card, about=about, overwrite=True)
    text = card.read_text()
    assert "\\<script\\>alert(1)" in text and "take_from trusted" in text
    assert not re.search(r"(?<!\\)[<\[]", text.split("---")[2].replace("](", "")) and "\n# Title" not in text
    assert "\x1b" not in text and "(`cleanpairs methods" not in text and "restore 'an out.parquet' " in text


@pytest.mark.parametrize("name", list(FORMATS))
def test_croissant_metadata(name: str, make_pairs: Any, make_plan: Any, mixed: Any, tmp_path: Path) -> None:
    """They are written where a card is named like a JSON file."""
    large = {} if name == "csv" else {"photo": pa.array([b""] * 7, pa.large_binary())}
    pairs, card = make_pairs(7, struct=True, **large), tmp_path / "croissant.json"
    export_pairs(pairs, make_plan(pairs, mixed), tmp_path / named("photos", name), format=name, card=card, about=FACTS)
    told = json.loads(card.read_text())
    assert told["license"] == "cc-by-4.0" and told["conformsTo"].endswith("croissant/1.0")
    for file in told["distribution"]:
        data = (tmp_path / file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(data).hexdigest() and file["contentSize"] == f"{len(data)} B"
    fields = {field["name"]: field["dataType"] for part in told.get("recordSet", []) for field in part["field"]}
    images = {"parquet": "sc:ImageObject", "csv": "sc:Text"}
    assert fields.get("image") == images.get(name) and ("caption" in fields) == (name in images)
    assert fields.get("photo") == (images[name] if name == "parquet" else None)
