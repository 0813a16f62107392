"""The scripts behind the tables: a corpus out of a download, a table of rows that marks what is apart."""

from __future__ import annotations

import importlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from cleanpairs import load_pairs

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def jpeg(side: int, value: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (side * 2, side), (value, value, 0)).save(out, "JPEG")
    return out.getvalue()


CAPTIONS = {k: [f'A "{k}" , shown {n} times .' for n in range(2)] for k in ("a1", "b2", "c3", "d4")}


def flickr8k(folder: Path) -> None:
    (folder / "Images").mkdir(parents=True)
    for k in CAPTIONS:
        (folder / "Images" / f"{k}.jpg").write_bytes(jpeg(30, 10))
    text = "".join(f"{k}.jpg#{n}\t{text}\n" for k, texts in CAPTIONS.items() for n, text in enumerate(texts))
    (folder / "Flickr8k.token.txt").write_text(text, encoding="utf-8")


def stamps(folder: Path) -> None:
    folder.mkdir()
    for k in CAPTIONS:
        Image.new("RGBA", (20, 10), (0, 0, 0, 0)).save(folder / f"{k}.png")
        (folder / f"{k}.txt").write_text(f"A shirt, {k}\nde.utf8=Ein Hemd\n", encoding="utf-8")


@pytest.mark.parametrize("source", ["token", "stamps"])
def test_a_corpus_has_the_rows_of_its_keys_in_their_order(
    source: str, script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpora, name = script("corpora"), "photos" if source == "token" else source
    down, out, keys = tmp_path / "down", tmp_path / "out", tmp_path / "keys"
    keys.mkdir()
    (flickr8k if name == "photos" else stamps)(down)
    texts = CAPTIONS if name == "photos" else {k: [f"A shirt, {k}"] for k in CAPTIONS}
    wanted = {"train": ["c3", "a1"], "val": ["d4"], "test": ["b2"]}
    digests = {split: corpora.digest_of([{"captions": texts[k]} for k in ks]) for split, ks in wanted.items()}
    for split, ks in wanted.items():
        digest = "0" * 64 if split == "test" else digests[split]
        (keys / f"{name}_{split}.txt").write_text(f"{digest}\n{' '.join(ks)}\n", encoding="ascii")
    monkeypatch.setattr(corpora, "KEYS", keys)
    monkeypatch.setattr(sys, "argv", ["corpora.py", name, str(down), str(out)])
    corpora.main()
    told = capsys.readouterr().out.splitlines()
    assert ["NOT" in line for line in told] == [False, False, True]  # the captions' digest is looked at
    pairs = load_pairs(str(out / f"{name}_train.parquet"))
    assert pairs.captions == [text for k in wanted["train"] for text in texts[k]]
    few = {"photos": "photos1"}.get(name, name)
    assert load_pairs(str(out / f"{few}_train.parquet")).captions == [texts[k][0] for k in wanted["train"]]
    stored = pq.read_table(out / f"{name}_train.parquet")["image"].to_pylist()[0]["bytes"]
    image = Image.open(io.BytesIO(stored))
    assert image.size == (224, 224)
    if source == "stamps":
        assert image.getpixel((3, 3)) == (255, 255, 255)  # what is transparent lies on white
    next(down.rglob("d4.*g")).unlink()
    with pytest.raises(SystemExit, match=r"no row of val|1 keys are not in.*d4"):
        corpora.main()


def test_the_keys_that_ship_are_of_disjoint_splits() -> None:
    sizes_of = {
        "photos": (1600, 200, 200), "fashion": (20000, 1000, 2000), "stamps": (629, 78, 78), "emoji": (1529, 191, 191)
    }  # fmt: skip
    for name, sizes in sizes_of.items():
        files = [BENCHMARKS / "keys" / f"{name}_{split}.txt" for split in ("train", "val", "test")]
        keys = [file.read_text().split()[1:] for file in files]
        assert tuple(map(len, keys)) == sizes and len(set().union(*keys)) == sum(sizes)


def test_bold_is_what_is_above_every_other_row_by_more_than_the_spread_of_the_difference(script: Any) -> None:
    rows = script("rows")
    first = {"a": (0.9, 100.0), "b": (0.8, 99.0), "evidence": (0.85, float("nan"))}
    second = {"a": (0.92, 104.0), "b": (0.81, 101.0), "evidence": (0.85, float("nan"))}
    lines = rows.table("corpus", [first, second]).splitlines()
    assert lines[0] == "| corpus, 2 seeds | AUROC | test rSum |"
    assert lines[2] == "| a | **0.910 ± 0.014** | **102.0 ± 2.8** |"
    assert lines[4] == "| evidence | 0.850 ± 0.000 | - |"
    near = {k: (v[0], 97.0 if k == "a" else v[1]) for k, v in first.items()}
    assert rows.table("corpus", [near, second]).splitlines()[2] == "| a | **0.910 ± 0.014** | 100.5 ± 4.9 |"
    harder = {k: (v[0] - 0.3, v[1] - 60) for k, v in second.items()}  # a seed on which all are lower
    assert rows.table("corpus", [first, harder]).splitlines()[2].count("**") == 4
    assert not set("*±") & set(rows.table("corpus", [first]))  # of one seed no spread is known


def test_rows_combine_fits_and_go_on_where_they_stopped(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = script("rows")
    rng = np.random.default_rng(0)
    both = rng.normal(size=(400, 16)).astype(np.float32)
    np.save(tmp_path / "x_image.npy", both)
    np.save(tmp_path / "x_text.npy", both + 1.5 * rng.normal(size=both.shape).astype(np.float32))
    corpus = rows.Corpus(tmp_path / "x_image.npy", 0.4, 1, "mlp", tmp_path / "out")
    corpus.settings |= {"epochs": 2}
    found = corpus.rows(["crcl"], [])
    assert {"cosine", "normalised cosine", "LEMoN", "evidence alone"} < set(found)
    assert found["cosine"][0] > 0.9 and np.isnan(found["cosine"][1])  # the vectors do tell

    def fits_again(name: str) -> Any:
        raise AssertionError(f"{name} was trained a second time")

    monkeypatch.setattr(rows.METHODS, "load", fits_again)
    again = rows.Corpus(tmp_path / "x_image.npy", 0.4, 1, "mlp", tmp_path / "out").rows(["crcl"], [])
    assert again.keys() == found.keys()
    np.testing.assert_equal(list(again.values()), list(found.values()))
    assert found["crcl + evidence"][0] > found["crcl"][0]
    assert min(found[row][1] for row in ("2 x crcl", "ridge alone")) > 100  # rSum by chance: 80
    assert found["2 x crcl + evidence"][1] != found["2 x crcl"][1]  # with the regression


def test_rows_retrieve_as_the_model_does_where_it_compares_words_with_regions(script: Any, tmp_path: Path) -> None:
    rows, rng = script("rows"), np.random.default_rng(0)
    for split, n in (("train", 120), ("dev", 30), ("test", 40)):
        kind = rng.integers(0, 8, n)
        regions = np.eye(8)[kind][:, None] + 0.3 * rng.normal(size=(n, 3, 8))
        np.save(tmp_path / f"{split}_ims.npy", regions.astype(np.float32))
        (tmp_path / f"{split}_caps.txt").write_text("".join(f"a w{k} thing\n" for k in kind), encoding="utf-8")
    corpus = rows.Corpus(tmp_path, 0.2, 0, "sgr", tmp_path / "out", "words")
    corpus.settings |= {"dim": 16, "epochs": 2, "require_dependence": False}
    S = corpus.fit("infonce", 0)[1]
    model = rows.METHODS.load("infonce")(**corpus.settings, device="cpu", random_state=0)
    expected = model.fit(corpus.pairs, val=corpus.val).evaluate(corpus.test)
    assert rows.recall_of_similarity(S, corpus.test.image_index).rsum == pytest.approx(expected.rsum)
