"""What a run, a plan, a manifest or a model names is not followed to where the user has not sent us."""

import hashlib
import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from cleanpairs import PairCleaner, RepairPlan, load_pairs
from cleanpairs.commands.export import export_plan, push_run
from cleanpairs.commands.run import Run
from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.data import remember_user_path
from cleanpairs.data.recorded import TRUST
from cleanpairs.estimators.persistence import FORMAT
from cleanpairs.export import push_export
from cleanpairs.export.manifest import open_export
from cleanpairs.verification import verify_path
from tests import helpers
from tests.helpers import assert_raises, picture, write_pictures, write_table


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A folder of a stranger's, with data that names images; beside it what is nobody's business."""
    private, folder = tmp_path / "home" / "private", tmp_path / "home" / "bundle"
    for place, number in ((folder / "images", 50), (folder, 100), (private, 200)):
        place.mkdir(parents=True, exist_ok=True)
        (place / "a.png").write_bytes(picture(number))
    write_table(folder / "data.parquet", {"image": ["a.png"] * 3, "caption": ["one red", "two red", "three red"]})
    return folder


def plan_of(data: str | Path, out: Path, options: Any, *, known: Any = None) -> Path:
    """A plan that keeps all pairs, as a stranger may write it: right in all but what he wants to be read."""
    pairs = load_pairs(data, **(options if known is None else known))
    helpers.plan_of(pairs, settings={"data": str(data), "columns": options}).save(out)
    return out


def pictures(out: Path) -> set[bytes | None]:
    """What was written of the images."""
    return set(load_pairs(out).images.read(range(3)))


@pytest.mark.parametrize("root", ["../private", "..", "/", "images/../../private", "link"])
def test_a_plan_does_not_choose_where_images_are(bundle: Path, tmp_path: Path, root: str) -> None:
    (bundle / "link").symlink_to(bundle.parent / "private")
    out = tmp_path / "out"
    plan = plan_of(bundle / "data.parquet", tmp_path / "plan.parquet", {"image_root": str(bundle / root)})
    with pytest.raises(ConfigError, match=rf"plan\.parquet has images read from .*{TRUST}"):
        export_plan(plan, out, format="webdataset")
    assert not out.exists()
    if root.endswith(("private", "link")):
        export_plan(plan, out, format="webdataset", trusted=True)
        assert pictures(out) == {picture(200)}  # it would have been read


def test_images_below_the_data_or_named_by_the_user_are_read(bundle: Path, tmp_path: Path, monkeypatch: Any) -> None:
    data, private = bundle / "data.parquet", str(bundle.parent / "private")
    monkeypatch.chdir(bundle)
    remember_user_path("data.parquet", {"image_root": "../private", "text_column": "caption"})
    for k, (root, number) in enumerate(((None, 100), (str(bundle / "images"), 50), (str(bundle), 100), (private, 200))):
        plan = plan_of(data, tmp_path / f"{k}.parquet", {} if root is None else {"image_root": root})
        export_plan(plan, tmp_path / f"out{k}", format="webdataset")
        assert pictures(tmp_path / f"out{k}") == {picture(number)}
    other = plan_of(data, tmp_path / "other.parquet", {"image_root": str(bundle.parent)})
    assert_raises(ConfigError, "nobody has named it", export_plan, other, tmp_path / "out", format="webdataset")


def test_a_plan_of_other_data_and_of_odd_options_opens_nothing_of_it(bundle: Path, tmp_path: Path) -> None:
    """The fingerprint is what says that the maker of the plan had the data before him."""
    other, data, given = bundle.parent / "private" / "data.parquet", bundle / "data.parquet", tmp_path / "plan.parquet"
    write_table(other, {"image": ["a.png"] * 3, "caption": ["a", "b", "c"]})
    plan = RepairPlan.load(plan_of(data, given, {}))
    for fingerprint in (plan.fingerprint, ""):
        RepairPlan(plan.table, 0.5, 0.5, fingerprint, {"data": str(other), "columns": {}}).save(given, overwrite=True)
        assert_raises(DataError, "made for other data", export_plan, given, tmp_path / "out", format="webdataset")
    for options in ({"nonsense": 1}, {"image_root": 3}, {"limit": "3"}, {"allow_urls": "yes"}, ["a"], {"limit": True}):
        given.unlink()
        plan_of(data, given, options, known={})
        assert_raises(DataError, "does not say which data", export_plan, given, tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What was asked of the network, or would have been."""
    asked: list[Any] = []

    def ask(*args: Any, **kwargs: Any) -> Any:
        asked.append(args)
        raise OSError(f"asked {args}")

    monkeypatch.setattr(socket, "getaddrinfo", ask)
    monkeypatch.setattr(socket.socket, "connect", ask)
    return asked


URLS = ("http://127.0.0.1:1/a.parquet", "https://example.org/a.parquet", "memory://bucket/a.parquet",
        "simplecache::http://127.0.0.1:1/a.parquet", "local:///etc/hostname", "hf://owner/name", "s3://bucket/a.parquet",
        "file:///etc/hostname", "ftp://example.org/a.parquet", "hf://datasets/owner/name@main")  # fmt: skip


@pytest.mark.parametrize("options", [{}, {"allow_urls": True}])
def test_nothing_that_a_file_names_is_fetched(bundle: Path, tmp_path: Path, network: list[Any], options: Any) -> None:
    fsspec.filesystem("memory").pipe("/bucket/a.parquet", (bundle / "data.parquet").read_bytes())
    plan = RepairPlan.load(plan_of(bundle / "data.parquet", tmp_path / "plan.parquet", {}))
    given, run = tmp_path / "p.parquet", tmp_path / "run"
    run.mkdir()
    for url in URLS:
        told = {"data": url, "columns": options}
        RepairPlan(plan.table, 0.5, 0.5, plan.fingerprint, told).save(given, overwrite=True)
        with pytest.raises(ConfigError, match=r"p\.parquet names the data .* nobody has named it here"):
            export_plan(given, tmp_path / "out.parquet")
        told = {"data": url, "options": options, "fingerprint": plan.fingerprint}
        (run / "run.json").write_text(json.dumps({"status": "complete", "method": "auto", "input": told}))
        assert_raises(ConfigError, r"run\.json names the data", Run.open(run).load_input)
    for told in (None, 3, {}, {"data": 3, "options": {}}, {"data": "x"}, {"options": {}}):
        (run / "run.json").write_text(json.dumps({"status": "complete", "input": told}))
        assert_raises(DataError, r"run\.json", Run.open(run).load_input)
    assert network == [] and not (tmp_path / "cache" / "remote").exists()


@pytest.mark.parametrize("role", ["encoder", "text_encoder"])
def test_a_model_that_names_the_hub_has_nothing_fetched(tmp_path: Path, network: list[Any], role: str) -> None:
    pytest.importorskip("transformers")
    state = {"noise_rate_": None, "noise_rate_interval_": [None] * 2, "noise_rate_bound_": None, "threshold_": 0.5}
    state |= {"better_than_random_": None, "_image_encoder": "auto", "_image_size": 64, "tau_": 0.07}
    config = {
        "format": FORMAT, "method": "infonce", "parameters": {role: "someone/some-model"}, "encoders": {},
        "text_encoder": "someone/some-model" if role == "text_encoder" else None,
        "state": {**state, "_fingerprint": "f", "random_state_": 0, "_counts_similar": False},
    }  # fmt: skip
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    with pytest.raises(DataError, match=r"never fetched.*hf download someone/some-model"):
        PairCleaner.from_pretrained(tmp_path / "model")
    assert network == []


# -- manifests --------------------------------------------------------------------------------------------------------


def test_a_manifest_does_not_lead_out_of_its_folder(bundle: Path, tmp_path: Path) -> None:
    out, far = tmp_path / "out" / "clean.parquet", tmp_path / "far" / "ledger.parquet"
    far.parent.mkdir()
    export_plan(plan_of(bundle / "data.parquet", tmp_path / "plan.parquet", {}), out, ledger=far)
    assert open_export(out).ledger.path.resolve() == far  # an export of the user's own put it there
    assert verify_path(out).ok
    shutil.rmtree(tmp_path / "cache")
    assert_raises(DataError, r"outside of its folder.*--ledger", open_export, out)
    open_export(out, far)
    found = verify_path(out)
    assert not found.ok and "outside of its folder" in str(found)
    secret = bundle.parent / "private" / "a.png"
    manifest = out.with_name("clean.parquet.manifest.json")
    noted = json.loads(manifest.read_text())
    digest = hashlib.sha256(secret.read_bytes()).hexdigest()
    for name in (str(secret), os.path.relpath(secret, out.parent), "link.png"):
        entry = {"role": "out", "sha256": digest, "bytes": secret.stat().st_size}
        manifest.write_text(json.dumps(noted | {"files": noted["files"] | {name: entry}}))
        (out.parent / "link.png").unlink(missing_ok=True)
        (out.parent / "link.png").symlink_to(secret)
        assert_raises(DataError, "outside of its folder", open_export, out, far)


def test_a_link_is_not_pushed(bundle: Path, tmp_path: Path, monkeypatch: Any, network: list[Any]) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_none")
    secret = bundle.parent / "private" / "a.png"
    plan = plan_of(bundle / "data.parquet", tmp_path / "plan.parquet", {})
    export_plan(plan, tmp_path / "out" / "clean.parquet")
    (tmp_path / "out" / "clean.parquet.card.md").symlink_to(secret)
    assert_raises(DataError, "outside of its folder", push_export, tmp_path / "out" / "clean.parquet", "owner/name")
    model = tmp_path / "run" / "model"
    model.mkdir(parents=True)
    for file in (model.with_name("run.json"), model / "config.json"):
        file.write_text("{}")
    (model / "more.json").symlink_to(secret)
    assert_raises(DataError, "outside of its folder", push_run, tmp_path / "run", "owner/name")
    assert network == []


# -- An image column that names files reads those under its root, and nothing else: no other file, no network ---------


HOSTILE = [
    "http://127.0.0.1/x.png", "http://localhost:8000/x.png", "http://169.254.169.254/latest/meta-data/", "ftp://a/b.png",
    "http://[::1]/x.png", "http://10.0.0.1/x.png", "https://example.org/x.png", "s3://bucket/x.png",
]  # fmt: skip
LEAVING = [
    "../outside.png", "leaving.png", "up/outside.png", "/etc/passwd", "a/../../outside.png", "a\0b", "/x/leaving.png",
    "/x/../../outside.png", "../outside", "outside.png|x/../../outside.png",
]  # fmt: skip
FILES = ["file:///etc/passwd", "FILE:///etc/passwd", "file:/etc/passwd", "file://a/etc/pass%77d", "file:../outside.png"]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with one image, a link that stays and one that leaves, links in circles, and an image outside."""
    (tmp_path / "outside.png").write_bytes(picture(0))
    root = write_pictures(tmp_path / "root", ["good.png"])
    for name, to in {
        "within.png": "good.png", "leaving.png": "../outside.png", "up": "..", "circle": "circle", "there": "back",
        "back": "there",
    }.items():  # fmt: skip
        (root / name).symlink_to(to)
    return root


def test_no_row_reaches_the_network_or_another_file(root: Path, network: list[Any]) -> None:
    os.mkfifo(root / "pipe")
    hostile = [
        *HOSTILE, *FILES, *LEAVING, "pipe", "C:\\..\\outside.png", "missing.png", "circle", "circle/good.png", "there",
        "there/../back/good.png", "x" * 5000, "up", None,
    ]  # fmt: skip
    names = ["good.png", str(root / "within.png"), *hostile]
    table = pa.table({"image": names, "caption": ["a caption"] * len(names)})
    pairs = load_pairs(write_table(root.parent / "d.parquet", table), image_root=str(root))
    assert sorted(pairs.reasons) == list(range(2, len(hostile) + 2))
    assert all("image" in reason for reason in pairs.reasons.values())
    assert all("URL" in pairs.reasons[k + 2] for k in range(len(HOSTILE)))
    found = pairs.images.read(range(len(pairs.images)))
    assert [data is not None for data in found] == [True, True, *[False] * len(hostile)] and network == []
