"""The report: counts that add up, text that cannot act, pages that load nothing."""

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from cleanpairs import InfoNCE, Pairs, write_report
from cleanpairs.core.errors import CleanpairsError, OutputExistsError
from cleanpairs.data.text import visible
from cleanpairs.report.outcome import outcome_of
from cleanpairs.report.page import MAX_BYTES
from tests.helpers import assert_raises, encoded

from .conftest import plan_of, png

EVIL = (
    '<script>alert("x")</script> <img src=x onerror=alert(1)> {{ 7 * 7 }} '
    "\u202edrowssap\u202c \x1b[31m $\\frac{1}$ \ud800"
)


def corpus(n: int = 12) -> Pairs:
    images: list[bytes | None] = [png(i) for i in range(n)]
    if n > 2:
        images[1], images[2] = images[1][:40], None
    captions = [EVIL if i == 3 else f"caption number {i}" for i in range(n)]
    pairs = Pairs.from_arrays(captions, images=images, keys=[f"k{i}" for i in range(n)])
    truth = np.arange(n) % 3 == 0
    return replace(pairs, true_mismatch=truth, true_key=[f"k{(i + 3 * t) % max(n, 1)}" for i, t in enumerate(truth)])


@pytest.fixture
def case() -> dict[str, Any]:
    pairs, y = corpus(), np.linspace(0.9, 0.01, 12)
    y[[0, 3, 6, 9, 2]] = 0.05, 0.04, 0.03, 0.02, np.nan
    other = {0: "rematch_text", 3: "rematch_text", 6: "rematch_image", 9: "drop", 2: "quarantine", 11: "drop"}
    plan = plan_of(pairs, y, [other.get(i, "keep") for i in range(12)], {0: 9, 3: 0, 6: 7})
    metrics = [{"stage": 1, "epoch": e, "loss": 1 / (1 + e), "val_rsum": 100.0 + e} for e in range(3)]
    told = {"title": "A run", "scores": y, "threshold": 0.06, "metrics": metrics}
    return {**told, "pairs": pairs, "plan": plan, "truth": pairs.true_mismatch}


class Page(HTMLParser):
    """Tags, attributes and text of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in {"meta", "img", "br", "link", "input"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not {"style", "script"} & set(self.open):
            self.text += data

    def count(self, kind: str) -> int:
        return int(re.findall(rf">{kind}</td><td class=\"n\">([\d,]+)</td>", self.source)[0].replace(",", ""))


def test_nothing_is_loaded_and_only_our_script_can_run(case: dict[str, Any], tmp_path: Path) -> None:
    info = {EVIL: EVIL, "input": {"data": "https://example.org/a.parquet?signature=secret"}}
    page = Page(write_report(tmp_path / "r.html", info=info, summary={EVIL: 1}, **(case | {"title": EVIL})))
    assert not {tag for tag, _ in page.tags} & {"iframe", "link", "object", "embed", "form", "base"}
    assert [tag for tag, _ in page.tags].count("script") == 1
    for tag, attributes in page.tags:
        assert not [a for a in attributes if a.startswith("on") or a == "style"], tag
        assert (attributes.get("src") or "data:image/").startswith("data:image/")
        assert (attributes.get("href") or "#").startswith("#")
    assert "49" not in re.findall(r"<h1>(.*?)</h1>", page.source)[0]  # the title is no template
    assert '<script>alert("x")</script>' in page.text  # shown as it was written
    for hidden in ("\u202e", "\u202c", "\x1b"):
        assert hidden not in page.source
    assert "⟨U+202E⟩drowssap" in page.text
    assert "https://example.org/a.parquet" in page.text and "secret" not in page.source


def test_a_page_of_every_kind_of_pair(case: dict[str, Any], tmp_path: Path) -> None:
    page = Page(write_report(tmp_path / "r.html", **case))
    assert page.open == [] and len(page.source) < 3_000_000
    counts = {kind: page.count(kind) for kind in ("kept", "repaired", "dropped", "quarantined")}
    assert counts == {"kept": 6, "repaired": 3, "dropped": 2, "quarantined": 1} and page.count("input") == 12

    policy = next(a["content"] for t, a in page.tags if a.get("http-equiv") == "Content-Security-Policy") or ""
    assert policy.startswith("default-src 'none'; img-src data:; ") and "unsafe" not in policy
    for tag in ("style", "script"):
        (body,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page.source, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy

    assert "<del><bdi>caption number 0</bdi></del>" in page.source and ">0.050</span>" in page.source
    assert "<ins><bdi>caption number 9</bdi></ins>" in page.source and ">0.900</b>, from pair 9<" in page.source
    # caption 9 is of k0, caption 0 of k3; image 7 comes under a caption of k9
    assert [page.text.count(f"repaired with {whose} partner") for whose in ("its own", "a wrong")] == [2, 1]
    assert "truth: mismatched" in page.text and "truth: matched before" not in page.text
    assert "the image cannot be read" in page.text

    words = case["pairs"].text_group.copy()
    words[6] = words[7]  # image 7 came with the words of caption 6
    table = case["plan"].table.drop(["repair_score", "reason"]).append_column("repair_score", pa.nulls(12))
    moved = replace(case["plan"], table=table.append_column("reason", [["displaced: by a row"] * 12]))
    told = case | {"pairs": replace(case["pairs"], text_group=words), "plan": moved}
    page = Page(write_report(tmp_path / "r2.html", **told))
    assert page.text.count("repaired with its own partner") == 3 and "a wrong partner" not in page.text
    assert "3 of 3, evenly spread." in page.text and "from pair 9; displaced: by a row" in page.text


def test_galleries_show_each_dropped_pair_once_per_gallery_and_the_worst_first(tmp_path: Path) -> None:
    told = {"title": "t", "scores": np.linspace(0.0, 1.0, 40), "threshold": 0.5, "pairs": corpus(40), "count": 12}
    page = Page(write_report(tmp_path / "r.html", **told))
    sections = {s.split("</h2>")[0].split("</span>")[-1]: s for s in page.source.split("<h2>")[1:] if "<article" in s}
    assert {name: [int(i) for i in re.findall(r"pair (\d+), ", s)] for name, s in sections.items()} == {
        "Kept, though doubtful": list(range(20, 32)), "Kept: the best": list(range(39, 31, -1)),
        "Flagged: the worst": list(range(12)), "Flagged, though doubtful": list(range(19, 11, -1)),
    }  # fmt: skip


def test_same_input_same_bytes_and_no_overwriting_unasked(case: dict[str, Any], tmp_path: Path) -> None:
    a, b, other = tmp_path / "a.html", tmp_path / "b.html", case | {"title": "other"}
    first = write_report(a, **case).read_bytes()
    assert write_report(b, **case).read_bytes() == first
    assert_raises(OutputExistsError, "a.html", write_report, a, **other)
    assert a.read_bytes() == first != write_report(a, overwrite=True, **other).read_bytes()
    assert sorted(tmp_path.iterdir()) == [a, b]


@pytest.mark.parametrize(("n", "with_truth"), [(0, False), (0, True), (1, True), (2, False)])
def test_tiny_corpora(n: int, with_truth: bool, tmp_path: Path) -> None:
    pairs = corpus(n)
    told = {"scores": np.linspace(0, 1, n), "truth": pairs.true_mismatch if with_truth else None}
    page = Page(write_report(tmp_path / "r.html", title="t", threshold=0.5, pairs=pairs, **told))
    assert page.count("input") == n
    assert page.count("flagged" if n else "dropped") == (1 if n else 0)


@pytest.mark.parametrize(("fill", "truth"), product([0.0, 1.0, np.nan], [True, False]))
def test_all_alike(fill: float, truth: bool, tmp_path: Path) -> None:
    about = {"truth": np.full(50, truth), "metrics": [{"loss": None}], "scores": np.full(50, fill)}
    page = Page(write_report(tmp_path / "r.html", title="t", threshold=0.1, pairs=corpus(50), **about))
    assert page.count("input") == 50 and not re.search(r"\bnan\b", page.text.lower())
    assert "AUROC" not in page.text  # one kind of pair: not defined


def test_a_scores_table_in_any_order_with_nulls_is_the_same_as_its_columns(tmp_path: Path) -> None:
    y = np.array([0.9, np.nan, 0.02, 0.5])
    order = [2, 0, 3, 1]
    scores = pa.array(y[order], pa.float32(), from_pandas=True)
    table = pa.table({"pair_id": order, "correspondence": scores, "reason": [None] * 3 + ["the caption is empty"]})
    outcome = outcome_of(table, 0.1, None, None)
    assert outcome.kind.tolist() == ["kept", "quarantined", "flagged", "kept"]
    assert outcome.reasons() == [("quarantined", "the caption is empty", 1)]
    why = [f"the image file '{i}.jpg' is missing" if i != 1 else None for i in range(4)]
    gone = replace(outcome, kind=np.array(["quarantined", "dropped", "quarantined", "quarantined"]), reason=why)
    assert gone.reasons() == [("quarantined", f"for example {why[0]}", 3), ("dropped", "not given", 1)]
    np.testing.assert_allclose(outcome.correspondence, y, rtol=1e-6)
    for same in (y, SimpleNamespace(correspondence=y), SimpleNamespace(correspondence_=y)):  # as `score_pairs` gives it
        np.testing.assert_array_equal(outcome_of(same, 0.1, None, None).correspondence, y)
    page = Page(write_report(tmp_path / "r.html", title="t", scores=table, threshold=0.1, pairs=corpus(4)))
    assert "the caption is empty" in page.text


def test_parts_that_do_not_belong_together_are_refused(case: dict[str, Any], tmp_path: Path) -> None:
    out, y = tmp_path / "r.html", case["scores"]
    for change in (
        {"truth": np.zeros(3, bool)}, {"scores": y[:5], "truth": None}, {"scores": y[:5], "truth": None, "plan": None},
        {"scores": pa.table({"x": [1.0]})}, {"scores": pa.table({"pair_id": [0, 0], "correspondence": [0.1, 0.2]})},
        {"plan": SimpleNamespace(table=case["plan"].table.slice(0, 11))}, {"truth": ["False"] * len(y)},
        {"why": [None] * 3}, {"threshold": 2}, {"count": -1}, {"scores": InfoNCE()},
    ):  # fmt: skip
        with pytest.raises(CleanpairsError):
            write_report(out, **(case | change))
    assert not out.exists()


def test_visible() -> None:
    for text, shown in (
        ("two\nlines\tand a tab\u2028end", "two lines and a tab end"), ("a\u202eb", "a⟨U+202E⟩b"),
        ("\x00\x1b\ufeff\u200b", "⟨U+0000⟩⟨U+001B⟩⟨U+FEFF⟩⟨U+200B⟩"), ("\ud800\U000e0041", "⟨U+D800⟩⟨U+E0041⟩"),
        ("می\u200cروم 👨\u200d👩 é ß", "می\u200cروم 👨\u200d👩 é ß"), ("", ""), ("x" * 10_000_000, "x" * 280 + " …"),
    ):  # fmt: skip
        assert visible(text) == shown


@pytest.mark.slow
def test_many_pairs_are_a_page_of_ten_megabytes_at_most(tmp_path: Path) -> None:
    n, m = 40_000, 400
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (160, 160, 3), dtype=np.uint8) for _ in range(8)]  # hardly compresses
    images = [encoded(Image.fromarray(np.roll(noise[i % 8], i, axis=0)), "JPEG", quality=95) for i in range(m)]
    index = rng.integers(0, m, n)
    captions = [f"caption {i} of a large corpus" for i in range(n)]
    small = Pairs.from_arrays(captions[:m], images=images)
    pairs = replace(
        small, captions=captions, image_index=index, row=np.arange(n), position=np.zeros(n, np.int64),
        keys=[str(i) for i in range(n)], text_group=rng.integers(0, 36_000, n),
        precomputed_scores={"clip": rng.random(n).astype(np.float32)}, reasons={},
    )  # fmt: skip
    y = rng.beta(2, 2, n)
    y[:500] = np.nan
    about = {"title": "large", "scores": y, "threshold": 0.3, "truth": y < 0.25, "count": 200}
    out = write_report(tmp_path / "r.html", pairs=pairs, **about)
    page = out.read_text(encoding="utf-8")
    assert 1_000_000 < out.stat().st_size <= MAX_BYTES
    shown = re.findall(r'<p class="note">(\d+) of ([\d,]+), the lowest correspondence of all\.', page)
    assert shown and int(shown[0][0]) < 200 and int(shown[0][1].replace(",", "")) > 8_000  # a sample, and says so
    assert "50 of 500, in the order of the input" in page
