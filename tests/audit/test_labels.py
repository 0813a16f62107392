"""The labels: a CSV that spreadsheets open, with pictures beside it, and the way back."""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cleanpairs.audit import AuditSample, draw_sample, read_labels, update_labels, write_labels
from cleanpairs.core.errors import DataError, OutputExistsError
from cleanpairs.data.pairs import Pairs
from tests.helpers import picture

EVIL = '</script><script>alert("x")</script> <img src=x onerror=alert(1)> {{ 7 }} \u202eoof\x1b[31m\nline two \ud800'
N = 40


@pytest.fixture
def pairs() -> Pairs:
    images: list[bytes | None] = [picture(i, size=(500, 300)) for i in range(N)]
    images[1] = picture(1)[:40]
    captions = [f"caption {i}, with a comma" for i in range(N)]
    captions[2], captions[3], captions[4], captions[5] = EVIL, "=1+1", "-2 degrees", "'quoted'"
    keys = [f"k{i}" for i in range(N)]
    keys[6], keys[7], keys[8], keys[9] = "=HYPERLINK(1)", "007", "12345678901234567", "'tis"
    return Pairs.from_arrays(captions, images=images, keys=keys)


@pytest.fixture
def scores() -> np.ndarray:
    return np.linspace(0, 1, N)


@pytest.fixture
def drawn(scores: np.ndarray) -> AuditSample:
    return draw_sample(scores, N, threshold=0.3)


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def save(path: Path, table: list[dict[str, str]], delimiter: str = ",", encoding: str = "utf-8") -> Path:
    with open(path, "w", encoding=encoding, newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(table)
    return path


def test_the_csv(tmp_path: Path, pairs: Pairs, drawn: AuditSample) -> None:
    folder = write_labels(tmp_path / "audit", drawn, pairs).parent
    assert (folder / "labels.csv").read_bytes().startswith(b"\xef\xbb\xbf")
    assert len(list(folder.glob("images/*.jpg"))) == N - 1
    found = {int(r["pair_id"]): r for r in rows(folder / "labels.csv")}
    assert len(found) == N and all(r["matched"] == "" for r in found.values())
    assert [found[i]["caption"] for i in (3, 4, 5)] == ["'=1+1", "'-2 degrees", "''quoted'"]
    assert found[6]["key"] == "'=HYPERLINK(1)"
    assert "⟨U+202E⟩" in found[2]["caption"] and "\n" not in found[2]["caption"]
    assert found[1]["image"] == ""
    with Image.open(folder / found[0]["image"]) as small:
        assert small.format == "JPEG" and max(small.size) == 360
    assert not [p for p in tmp_path.rglob(".cleanpairs*")]


def test_labels_are_not_overwritten(tmp_path: Path, pairs: Pairs, drawn: AuditSample) -> None:
    folder = tmp_path / "audit"
    write_labels(folder, drawn, pairs)
    with pytest.raises(OutputExistsError, match=r"exists; --overwrite \(overwrite=True\) replaces it"):
        write_labels(folder, drawn, pairs)
    write_labels(folder, drawn, pairs, overwrite=True)
    (folder / "thesis.tex").write_text("years", encoding="utf-8")
    with pytest.raises(OutputExistsError, match=r"'thesis\.tex', which is no part of what would be written"):
        write_labels(folder, drawn, pairs, overwrite=True)
    assert (folder / "thesis.tex").read_text(encoding="utf-8") == "years"


WORDS = ["1", "0", "yes", "No", "TRUE", "false", "y", "N", "Matched", "mismatched", "", "?", " unsure ", "1.0", "0,0"]
MEANS = [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, np.nan, np.nan, np.nan, 1, 0]


@pytest.mark.parametrize(("delimiter", "encoding"), [(",", "utf-8-sig"), (";", "utf-8"), ("\t", "utf-16")])
def test_there_and_back(
    tmp_path: Path, pairs: Pairs, drawn: AuditSample, scores: np.ndarray, delimiter: str, encoding: str
) -> None:
    table = rows(write_labels(tmp_path / "audit", drawn, pairs))
    for k, row in enumerate(table):
        row["matched"] = WORDS[k % len(WORDS)]
    got = read_labels(save(tmp_path / "l.csv", table, delimiter, encoding), keys=pairs.keys, correspondence=scores)
    assert np.array_equal(got.matched, [MEANS[k % len(WORDS)] for k in range(N)], equal_nan=True)
    for name in ("pair_id", "stratum", "edges", "weight", "correspondence"):
        assert np.allclose(getattr(got, name), getattr(drawn, name)), name


def test_what_a_spreadsheet_does(tmp_path: Path, pairs: Pairs, drawn: AuditSample, scores: np.ndarray) -> None:
    """Sorts, drops rows and columns, adds its own, eats zeros and digits of keys, leaves empty lines."""
    table = sorted(rows(write_labels(tmp_path / "audit", drawn, pairs)), key=lambda r: r["caption"])[3:]
    mangled = {"007": "7", "12345678901234567": "1.23457E+16"}
    table = [
        {"note": "", "Matched": "1", "pair_id": r["pair_id"] + ".0", "key": mangled.get(r["key"], r["key"]),
         "stratum": r["stratum"]}
        for r in table
    ]  # fmt: skip
    path = save(tmp_path / "l.csv", table, ";")
    path.write_text("sep=;\n" + path.read_text(encoding="utf-8") + "\n;;;;\n", encoding="utf-8")
    got = read_labels(path, keys=pairs.keys, correspondence=scores)
    assert len(got) == N - 3 and got.labelled.all()
    assert np.isclose(got.weight.sum(), N)  # the others of a stratum stand for those that went


def test_an_update_keeps_the_sample_and_has_the_labels(
    tmp_path: Path, pairs: Pairs, drawn: AuditSample, scores: np.ndarray
) -> None:
    path = write_labels(tmp_path / "audit", drawn, pairs)
    before = rows(path)
    update_labels(path, replace(drawn, matched=np.where(np.arange(N) < 2, [1.0, 0.0] * (N // 2), np.nan)), pairs)
    assert [row | {"matched": ""} for row in rows(path)] == before and len(list(path.parent.iterdir())) == 2
    np.testing.assert_array_equal(read_labels(path, keys=pairs.keys, correspondence=scores).matched[:3], [1, 0, np.nan])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: t[4].update(matched="maybe"), ["line 6", "column matched", "'maybe'"]),
        (lambda t: t[0].update(pair_id="x"), ["line 2", "column pair_id", "'x'", "0 to 39"]),
        (lambda t: t[0].update(pair_id="40"), ["line 2", "column pair_id", "another run"]),
        (lambda t: t[2].update(key="another"), ["line 4", "column key", "'another'", "another run"]),
        (lambda t: t.append(dict(t[1])), ["line 42", "line 3 already"]),
        (lambda t: t[0].update(stratum="low"), ["line 2", "column stratum", "'low'"]),
        (lambda t: t[0].update(stratum="0 to 0.000001"), ["line 2", "column stratum", "scores are others"]),
        (lambda t: [r.pop("stratum") for r in t], ["line 1", "stratum is missing"]),
        (lambda t: t.clear() or t.append({"pair_id": "", "matched": "", "key": "", "stratum": ""}), ["no row"]),
    ],
)
def test_errors_name_line_and_column(
    tmp_path: Path,
    pairs: Pairs,
    drawn: AuditSample,
    scores: np.ndarray,
    change: Callable[..., object],
    words: list[str],
) -> None:
    table = rows(write_labels(tmp_path / "audit", drawn, pairs))
    order = np.argsort(drawn.pair_id)[::-1]
    table = [table[k] for k in order]  # the first rows have high scores
    change(table)
    with pytest.raises(DataError) as caught:
        read_labels(save(tmp_path / "l.csv", table), keys=pairs.keys, correspondence=scores)
    assert all(w in str(caught.value) for w in words), str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    for content, words in ((b"caf\xe9", "UTF-8"), (b"", "no row"), (b'pair_id,key\n"' + b"x" * 200_000, "missing")):
        path = tmp_path / "l.csv"
        path.write_bytes(content)
        with pytest.raises(DataError, match=words):
            read_labels(path, keys=["a"], correspondence=[0.5])
    with pytest.raises(DataError, match="cannot be read"):
        read_labels(tmp_path / "none.csv", keys=[], correspondence=[])
