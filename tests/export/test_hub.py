"""Pushing: what huggingface_hub really sends, to a small hub of the test's own on 127.0.0.1."""

import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from cleanpairs import InfoNCE, Pairs
from cleanpairs.commands.export import push_run
from cleanpairs.core.errors import ConfigError, DataError, OutputError
from cleanpairs.export import CardFacts, export_pairs, push_export
from cleanpairs.export.formats import FORMATS
from cleanpairs.export.pushing import check_push, model_card, push_files, push_model
from tests import helpers
from tests.helpers import assert_raises

from .conftest import named


@dataclass
class Hub:
    """A hub: repositories as {(kind, name): {path: bytes}}; ``refuse`` is a status to answer everything with."""

    url: str = ""
    repos: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    private: dict[str, bool] = field(default_factory=dict)
    tokens: set[str | None] = field(default_factory=set)
    commits: list[list[str]] = field(default_factory=list)
    refuse: int = 0


class Handler(helpers.Handler):
    hub: Hub

    def tell(self, value: Any, status: int = 200) -> None:
        self.answer(status, {"Content-Type": "application/json"}, json.dumps(value).encode())

    def do_GET(self) -> None:
        _, _, kinds, owner, name, *_ = self.path.split("?")[0].split("/")
        files = self.hub.repos.get((kinds[:-1], f"{owner}/{name}"))
        if self.hub.refuse or files is None:
            return self.tell({"error": "no"}, self.hub.refuse or 404)
        return self.tell([{"type": "file", "path": p, "size": len(b), "oid": "0" * 40} for p, b in files.items()])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.hub.tokens.add(self.headers.get("Authorization"))
        if self.hub.refuse:
            return self.tell({"error": "no"}, self.hub.refuse)
        if self.path == "/api/repos/create":
            asked = json.loads(body)
            kind, name = asked.get("type") or "model", f"{asked['organization']}/{asked['name']}"
            url, known = f"{self.hub.url}/{'datasets/' * (kind == 'dataset')}{name}", (kind, name) in self.hub.repos
            if not known:
                self.hub.repos[kind, name] = {".gitattributes": b""}
                self.hub.private[name] = asked.get("private", asked.get("visibility") == "private")
            return self.tell({"url": url} | ({"error": "exists"} if known else {}), 409 if known else 200)
        if self.path == "/api/validate-yaml":
            assert yaml.safe_load(json.loads(body)["content"].split("---\n")[1])["license"]
            return self.tell({"errors": [], "warnings": []})
        _, _, kinds, owner, name, action, _ = self.path.split("?")[0].split("/")
        files = self.hub.repos[kinds[:-1], f"{owner}/{name}"]
        if action == "preupload":
            told = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
            return self.tell({"files": [{"path": f["path"], **told} for f in json.loads(body)["files"]]})
        assert action == "commit"
        lines = [json.loads(line) for line in body.decode().splitlines()]
        for line in lines:
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "deletedFile":
                del files[line["value"]["path"]]
        self.hub.commits.append([line["key"] for line in lines])
        url = f"{self.hub.url}/{'datasets/' * (kinds == 'datasets')}{owner}/{name}/commit/{'0' * 40}"
        return self.tell({"commitUrl": url, "commitOid": "0" * 40, "success": True})


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    Handler.hub = Hub()
    with helpers.serving(Handler) as Handler.hub.url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", Handler.hub.url)
        yield Handler.hub


def test_a_webdataset_and_its_successor(hub: Hub, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(5)
    out = tmp_path / "shards"
    export_pairs(pairs, make_plan(pairs), out, format="webdataset", shard_size=2)
    pushed = push_export(out, "me/clean")
    files = hub.repos["dataset", "me/clean"]
    assert hub.private == {"me/clean": True} and pushed.private and hub.tokens == {"Bearer hf_ours"}
    assert set(files) == {".gitattributes"} | {p.name for p in out.iterdir()} == {".gitattributes", *pushed.files}
    assert all(files[p.name] == p.read_bytes() for p in out.iterdir())
    assert hub.commits == [["header", *["file"] * 7]]  # one commit: a reader finds all of it or nothing

    files["notes.txt"] = b"mine"
    export_pairs(pairs, make_plan(pairs), out, format="webdataset", shard_size=5, overwrite=True)
    again = push_export(out, "me/clean", private=False)
    assert set(again.removed) == {"00001.tar", "00001.parquet", "00002.tar", "00002.parquet"} and "notes.txt" in files
    assert hub.private == {"me/clean": True} and len(hub.commits) == 2


def test_of_an_earlier_upload_nothing_is_left(hub: Hub, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs = make_pairs(3, struct=True)
    theirs = {"notes.txt", "data/test-00000-of-00001.parquet", "test-00000.tar", "test.arrow", "_versions/old.txt"}
    for i, name in enumerate([*FORMATS, *FORMATS, "lance", "lance"]):
        out, made = tmp_path / str(i) / named("out", name), FORMATS.load(name)
        export_pairs(pairs, make_plan(pairs), out, format=name, card=None if made.directory else f"{out}.card.md")
        pushed = push_export(out, "me/clean")
        files = hub.repos["dataset", "me/clean"]
        files.update(dict.fromkeys(theirs, b"theirs"))
        assert set(files) == {".gitattributes", *theirs, *pushed.files}, name
        # What the card reads as the split train.
        assert {path in theirs for path in files if fnmatch(path, made.loads or "README.md")} == {False}, name


def test_what_has_no_card_or_is_edited_is_not_pushed(hub: Hub, make_pairs: Any, make_plan: Any, tmp_path: Path) -> None:
    pairs, uids = make_pairs(3), tmp_path / "kept.npy"
    export_pairs(pairs, make_plan(pairs), tmp_path / "shards", format="webdataset")
    with open(tmp_path / "shards" / "00000.tar", "ab") as tar:
        tar.write(b"\0")
    assert_raises(DataError, r"00000\.tar is not the file", push_export, tmp_path / "shards", "me/clean")
    assert_raises(DataError, "no file", push_export, tmp_path / "nothing", "me/clean")
    export_pairs(pairs, make_plan(pairs), uids, card=tmp_path / "card.md")
    assert_raises(ConfigError, r"no dataset card .*kept\.npy\.card\.md", push_export, uids, "me/uids")
    assert hub.repos == {}
    push_export(uids, "me/uids", card=tmp_path / "card.md")
    assert hub.repos["dataset", "me/uids"]["uids.npy"] == uids.read_bytes()


def test_a_model_and_its_card(hub: Hub, tmp_path: Path) -> None:
    run, info = tmp_path / "run", {"method": "crcl", "input": {"data": "/home/me/secret.parquet"}}
    (run / "model" / "image_encoder").mkdir(parents=True)
    (run / "model" / "config.json").write_text("{}")
    (run / "model" / "image_encoder" / "model.safetensors").write_bytes(b"\1" * 10)
    (run / "recipe.yaml").write_text("data: /home/me/secret.parquet")
    info |= {"versions": {"torch": "2.13.0"}, "result": {"flagged": 12, "pairs": 100, "noise_rate": 0.123}}
    (run / "run.json").write_text(json.dumps(info))
    pushed, files = push_run(run, "me/model", license="apache-2.0", private=False), hub.repos["model", "me/model"]
    assert set(files) == {*pushed.files, ".gitattributes"}
    assert set(pushed.files) == {"README.md", "config.json", "image_encoder/model.safetensors"}
    card = files["README.md"].decode()
    header = yaml.safe_load(card.split("---\n")[1])
    assert header["license"] == "apache-2.0" and header["library_name"] == "cleanpairs"
    for text in ("12 of them as wrong (12.0 %)", "About 12.3 %", "fitted on 100 pairs", "torch 2.13.0", "me/model"):
        assert text in card
    assert "secret" not in card and hub.private == {"me/model": False}
    assert "licence is unknown" in model_card("me/x", CardFacts())
    (run / "model" / "config.json").unlink()
    assert_raises(DataError, r"config\.json", push_model, run / "model", "me/model", about=CardFacts())


def test_a_name_that_is_none_is_not_asked_for_and_a_refusal_is_told(hub: Hub) -> None:
    push = partial(push_files, files={"a": b""}, kind="model", message="m")
    for repo in ("clean", "a/b/c", "me/", "me/cl ean", "-me/x", ""):
        assert_raises(ConfigError, r"is OWNER/NAME: (Repo id|there is no OWNER|Cannot)", push, repo)
    assert hub.tokens == set()
    for status, error, words in (
        (401, ConfigError, "right to write"), (403, ConfigError, "right to write"), (500, OutputError, "500"),
    ):  # fmt: skip
        hub.refuse = status
        assert_raises(error, words, push, "me/x")


def test_no_network_no_token_and_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setenv("HF_TOKEN", "hf_ours")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # discard: nobody listens
    with pytest.raises(OutputError, match=r"cannot be pushed.*whole on disk.*cleanpairs push"):
        push_files("me/x", {"a": b""}, kind="model", message="m")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert_raises(OutputError, "HF_HUB_OFFLINE is set", check_push, "me/x")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", "/nonexistent/token")
    assert_raises(ConfigError, r"no token.*HF_TOKEN", check_push, "me/x")
    # Which a token would not mend.
    assert_raises(DataError, "is no model directory", push_model, "/nonexistent", "me/x", about=CardFacts())


def test_a_model_is_pushed_and_loaded_by_its_name(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    pairs = Pairs.from_arrays([f"w{i % 7} w{i % 5}" for i in range(40)], features=rng.normal(size=(40, 6)))
    small = {"backbone": "mlp", "dim": 8, "dim_word": 4, "epochs": 1, "batch_size": 8, "eval_group_size": 8}
    model = InfoNCE(**small, device="cpu", require_dependence=False).fit(pairs)
    model.push_to_hub("us/model", license="mit")
    pushed = hub.repos["model", "us/model"]
    assert hub.private["us/model"] and b'from_pretrained("us/model")' in pushed["README.md"]
    assert f"torch {version('torch')}".encode() in pushed["README.md"] and b"not known" not in pushed["README.md"]
    assert np.isnan(model.noise_rate_) and b"nan" not in pushed["README.md"]

    def snapshot(name: str, *, revision: str | None, allow_patterns: list[str], local_files_only: bool) -> str:
        assert name == "us/model" and not local_files_only
        for path, content in pushed.items():
            if any(fnmatch(path, pattern) for pattern in allow_patterns):
                (tmp_path / "cache" / path).parent.mkdir(parents=True, exist_ok=True)
                (tmp_path / "cache" / path).write_bytes(content)
        return str(tmp_path / "cache")

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
    np.testing.assert_array_equal(InfoNCE.from_pretrained("us/model").score_pairs(pairs), model.score_pairs(pairs))
    assert_raises(DataError, "no directory", InfoNCE.from_pretrained, tmp_path / "nowhere" / "model")
