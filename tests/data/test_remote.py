"""Inputs behind URLs: memory:// for fsspec, a server of our own for HTTP; addresses that are refused."""

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict
from fsspec.implementations.memory import MemoryFile

from cleanpairs.benchmarking import Bench
from cleanpairs.core import ConfigError, DataError, OutputError, without_secrets
from cleanpairs.core.hub import without_hub
from cleanpairs.data import load_pairs, open_source
from cleanpairs.data.formats import remote
from cleanpairs.data.formats.remote import fetch, is_public, is_url
from cleanpairs.data.inspection import inspect_pairs
from cleanpairs.data.readers import iter_tables
from cleanpairs.data.recorded import check_recorded
from tests.helpers import Handler, assert_not_loaded, assert_raises, serving, vector_column, write_table

URL = "memory://bucket/a.parquet"


def parquet(*captions: str) -> bytes:
    sink = io.BytesIO()
    vectors = pa.array([[float(i), 1.0] for i in range(len(captions))], pa.list_(pa.float32()))
    pq.write_table(pa.table({"caption": list(captions), "image_features": vectors}), sink)
    return sink.getvalue()


@pytest.fixture
def bucket() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.pseudo_dirs[:] = [""]
    yield system
    system.store.clear()


def test_nothing_is_fetched_unless_it_is_allowed(bucket: fsspec.AbstractFileSystem) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a"))
    assert_raises(ConfigError, f"{URL} is a URL, and nothing is fetched.*--allow-urls", load_pairs, URL)
    assert load_pairs(URL, allow_urls=True).captions == ["a"]
    assert_raises(ConfigError, "give its path", fetch, "file:///etc/passwd", True)
    assert not is_url("hf://owner/name") and fetch("a/b.parquet", False) == "a/b.parquet"


def test_one_file_a_folder_a_glob_and_braces(bucket: fsspec.AbstractFileSystem) -> None:
    for name in "#abc":
        bucket.pipe(f"/bucket/{name}.parquet", parquet(name))
    bucket.pipe("/bucket/notes.txt", b"of no use")
    names = {"": "#abc", "/": "#abc", "/*.parquet": "#abc", "/{#,a}.parquet": "#a", "/b.parquet": "b"}
    for url, found in names.items():
        assert load_pairs(f"memory://bucket{url}", allow_urls=True).captions == list(found), url
    for url, words in (
        ("memory://bucket/nothing.parquet", "no such input"), ("memory://bucket/*.tar", "names no file"),
        ("memory://bucket/%00.parquet", "no such input"), ("http://[::1/x.parquet", "cannot be fetched"),
        ("http://:x/a.parquet", "cannot be fetched"),
    ):  # fmt: skip
        assert_not_loaded(words, url, allow_urls=True)


def test_a_folder_whose_files_are_in_sub_folders(bucket: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for k in range(2):
        for side in ("img_emb", "text_emb"):
            np.save(tmp_path / "part.npy", np.full((3, 4), k, np.float32))
            bucket.pipe(f"/bucket/{side}/{side}_{k}.npy", (tmp_path / "part.npy").read_bytes())
        write_table(tmp_path / "part.parquet", {"caption": [f"a {k} {i}" for i in range(3)]})
        bucket.pipe(f"/bucket/metadata/metadata_{k}.parquet", (tmp_path / "part.parquet").read_bytes())
        bucket.pipe(f"/parts/half={k}/0.parquet", parquet(f"half {k}"))
    bucket.pipe({"/parts/.old/0.parquet": b"", "/parts/../a.json": b""})
    pairs = load_pairs("memory://bucket/", allow_urls=True)
    assert pairs.source.kind == "clip-retrieval" and pairs.images.array()[:, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert inspect_pairs(pairs, decode="none")["files"][-1] == "memory://bucket/metadata/metadata_1.parquet"
    assert load_pairs("memory://parts/", allow_urls=True).captions == ["half 0", "half 1"]
    bucket.rm("/parts/half=0/0.parquet")
    assert load_pairs("memory://parts/", allow_urls=True).captions == ["half 1"]
    DatasetDict(half=Dataset.from_dict({"caption": ["a"], "image_features": [[1.0]]})).save_to_disk(tmp_path / "saved")
    bucket.put(str(tmp_path / "saved"), "/saved", recursive=True)
    assert load_pairs("memory://saved", split="half", allow_urls=True).captions == ["a"]


def test_a_file_is_fetched_again_only_if_it_changed(bucket: fsspec.AbstractFileSystem) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("old"))
    before = Path(fetch(URL, True)).stat()
    assert Path(fetch(URL, True)).stat().st_ino == before.st_ino
    bucket.pipe("/bucket/a.parquet", parquet("new one"))
    assert load_pairs(URL, allow_urls=True).captions == ["new one"]
    bucket.pipe("/bucket/b.parquet", parquet("b"))
    assert load_pairs("memory://bucket/", allow_urls=True).captions == ["new one", "b"]
    bucket.rm("/bucket/b.parquet")
    assert load_pairs("memory://bucket/", allow_urls=True).captions == ["new one"]


# -- Parquet in place --------------------------------------------------------------------------------------------------


def test_parquet_that_changes_while_it_is_read_in_place(bucket: fsspec.AbstractFileSystem) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a"))
    source = load_pairs(URL, allow_urls=True).source
    bucket.pipe("/bucket/a.parquet", parquet("b"))
    assert_raises(DataError, f"{URL} has changed since it was opened", next, iter_tables(source))
    assert load_pairs(URL, allow_urls=True).source.fingerprint != source.fingerprint
    bucket.rm("/bucket/a.parquet")
    assert_raises(DataError, f"{URL} is not there any more", next, iter_tables(source))


def test_errors_of_a_store_name_the_url(bucket: fsspec.AbstractFileSystem, monkeypatch: Any) -> None:
    for name, content, words in (
        ("a.parquet", parquet("a")[:-8], "cannot be read as Parquet"),
        ("a.csv", b"img,cap\n1.jpg,a\n", "has no column of captions"),
    ):
        bucket.pipe(f"/bucket/{name}", content)
        assert_not_loaded(rf"^memory://bucket/{name} {words}", f"memory://bucket/{name}", allow_urls=True)
    bucket.pipe("/bucket/a.parquet", parquet("a"))

    def says(error: Exception) -> Any:
        def refuse(*_: object, **__: object) -> object:
            raise error

        return refuse

    forbidden = PermissionError(13, "Forbidden")  # of s3fs, all that S3 tells of a file that may be listed alone
    denied, gone = f"{URL} may not be read with these credentials.*: Forbidden$", "The specified bucket does not exist"
    for target, name, refuse, words in (
        (MemoryFile, "read", says(RuntimeError("no credentials")), f"^{URL} cannot be read.*no credentials"),
        (type(bucket), "open", says(forbidden), denied), (type(bucket), "info", says(forbidden), denied),
        (type(bucket), "info", says(FileNotFoundError(gone)), f"^no such input: the bucket of {URL}$"),
    ):  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(target, name, refuse, raising=False)
            assert_not_loaded(words, URL, allow_urls=True)


def test_a_full_disk_is_no_fault_of_the_url(bucket: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pipe("/bucket/a.csv", b"image,caption\n")
    monkeypatch.setattr(remote, "open", lambda *_: io.FileIO("/dev/full", "w"), raising=False)
    assert_raises(OutputError, r"a\.csv cannot be written: No space left on", fetch, "memory://bucket/a.csv", True)


def test_a_file_of_a_stranger_does_not_stand_for_a_url(bucket: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a"))
    stand_in = Path(fetch("memory://bucket/a.parquet", True))
    assert stand_in.stat().st_size < 300
    other = tmp_path / "a.parquet"
    other.write_bytes(stand_in.read_bytes())
    assert_not_loaded(r"cannot be read as Parquet", other, allow_urls=True)


def test_a_signature_in_an_address_is_not_shown() -> None:
    for url in ("https://me:word@example.org/a b.parquet?X-Sig=1#2", "HTTPS://example.org/a.parquet?X=@"):
        assert without_secrets(url) == url.replace("me:word@", "").split("?")[0]
    for name in ("s3://bucket/a?b@c.parquet", "/a?b@c.parquet", "abfs://box@account.net/a:b@c.npy"):
        assert without_secrets(name) == name
    assert without_secrets("s3://me:word@bucket/a.npy") == "s3://bucket/a.npy"
    for url in ("s3://bucket/a.npy", "https://bucket/a.npy"):
        assert_raises(ConfigError, f"^{url} was given with a password", fetch, url.replace("://", "://me:word@"), True)
    url = "https://example.org/a.parquet?X-Sig=1.5&sig=2"
    stranger = "^run.json names the data 'https://example.org/a.parquet', which would be fetched"
    assert_raises(ConfigError, stranger, check_recorded, url, {}, "run.json")
    assert len(str(DataError("a" * 1_000_000))) == 1_000_000
    assert str(DataError(f"{url}, and ({url}): {url}.")) == ", and ".join([a := url[:29], f"({a}): {a}."])
    assert Bench(url).directory == Path("runs/bench-a")


# -- HTTP -------------------------------------------------------------------------------------------------------------


class _Server(Handler):
    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        self.asked.append(f"{self.command} {self.path}")
        if self.path.startswith("/to/"):
            self.answer(302, {"Location": self.path.removeprefix("/to/")}, b"")
        elif self.path in ("/a.parquet", "/short.parquet"):
            body = parquet("a")
            told = len(body) + (self.path == "/short.parquet") * 9
            self.answer(200, {"ETag": '"1"', "Content-Length": str(told)}, body)
        else:
            self.send_error(404)

    do_HEAD = do_GET


def test_a_public_server_is_read_and_this_machine_is_never_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    _Server.asked = []
    with serving(_Server) as server:
        for host in ("127.0.0.1", "localhost", "0.0.0.0", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"):
            url = server.replace("127.0.0.1", host) + "/a.parquet"
            assert_not_loaded(r"private address|cannot be fetched", url, allow_urls=True)
        assert _Server.asked == []
        public = server.replace("127.0.0.1", "localhost")  # a server on the internet, and 127.0.0.2 one inside
        inside = server.replace("127.0.0.1", "127.0.0.2") + "/a.parquet"
        monkeypatch.setattr(remote, "is_public", lambda address: address in ("127.0.0.1", "::1"))
        for path in ("/a.parquet", "/a.parquet", "/to//a.parquet"):
            pairs = load_pairs(public + path, allow_urls=True)
            assert pairs.captions == ["a"] and inspect_pairs(pairs, decode="none")["files"] == [public + path]
        assert _Server.asked[:4] == ["HEAD /a.parquet", "GET /a.parquet", "HEAD /a.parquet", "HEAD /to//a.parquet"]
        _Server.asked = []
        assert_not_loaded(r"127\.0\.0\.2, a private address", f"{public}/to/{inside}", allow_urls=True)
        assert all(line.endswith(inside) for line in _Server.asked)  # our server was asked, the one inside was not
        for path, words in (
            ("/nothing.parquet", "HTTP Error 404"), ("/to/file:///etc/passwd.parquet", "cannot be fetched"),
            ("/short.parquet", "cut short|cannot be fetched"),
            ("/nothing.parquet?X-Sig=1", r"/nothing\.parquet cannot be fetched"),
        ):  # fmt: skip
            assert_not_loaded(words, public + path, allow_urls=True)


PRIVATE = """
127.0.0.1 127.255.255.254 10.0.0.1 172.16.0.1 172.31.255.255 192.168.1.1 169.254.169.254 100.64.0.1 100.100.100.200
0.0.0.0 0.1.2.3 192.0.0.192 192.0.2.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.1.2.3 240.0.0.1 255.255.255.255
168.63.129.16 :: ::1 ::127.0.0.1 ::10.0.0.1 ::8.8.8.8 ::ffff:127.0.0.1 ::ffff:169.254.169.254 ::ffff:0:127.0.0.1
64:ff9b::a9fe:a9fe 64:ff9b::127.0.0.1 64:ff9b::10.1.2.3 64:ff9b:1::1 64:ff9b:1::8.8.8.8 2002:7f00:1:: 2002:a00:1::
2002:a9fe:a9fe::1 2002:c0a8:101::1 2001:0:7f00:1::1 2001:0:4136:e378:8000:63bf:80ff:fffe 2001:0:808:808:0:0:f7f7:f7f7
2002:808:808::1 2600:1::5efe:808:808
fe80::1 fe80::1%lo febf::1 fec0::1 feff::1 fc00::1 fd00:ec2::254 fdff::1 ff02::1 ff0e::1 2001:db8::1 2001:10::1
2001:2::1 100::1 5f00::1 3fff::1 2600:1::5efe:7f00:1 2600:1::200:5efe:10.0.0.1 4000::1 8000::1 1000::1 ::2 200::1
""".split()
PUBLIC = """
8.8.8.8 1.1.1.1 93.184.216.34 172.32.0.1 100.63.255.255 2606:4700::1111 2a00:1450:4001:81b::200e 2001:4860:4860::8888
::ffff:8.8.8.8 64:ff9b::8.8.8.8 2620:fe::fe
""".split()


def test_addresses_of_the_internet_and_others() -> None:
    assert [ip for ip in PRIVATE if is_public(ip)] == [ip for ip in PUBLIC if not is_public(ip)] == []


@pytest.mark.usefixtures("bucket")
def test_a_protocol_that_is_not_one_of_ours() -> None:
    for url in (
        "simplecache::http://127.0.0.1/a.parquet", "local:///etc/hostname", "filecache::memory://bucket/a.parquet",
        "memory://bucket/a.parquet::http://127.0.0.1/", "s3://b/{x,y::local:///etc/hostname}", "nonsense://a/b.parquet",
        "dir::memory://bucket/a.parquet", "reference://x", "{http,local}://a/b.parquet", "ftp://localhost/a.parquet",
        "LOCAL:///etc/hostname", "data://text/plain,a", "github://o:r@main/a.parquet", "zip://a::local:///b.zip",
    ):  # fmt: skip
        for allowed in (True, False):
            assert_raises(ConfigError, "protocol that is not known", fetch, url, allowed)


# -- Parquet of a dataset on the hub is read where it lies, by ranges, from a small hub of the test's own --


class Hub(Handler):
    files: dict[str, bytes]
    sent: int

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if "/resolve/main/" in path:
            data = self.files[path.split("/resolve/main/")[1]]
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            type(self).sent += len(part)
            return self.answer(206, {}, part)
        if path.endswith("/tree/main"):
            return self.tell([{"type": "directory", "path": "data", "oid": "0" * 40}])
        if "/tree/" in path:
            sizes = {name: len(data) for name, data in self.files.items()}
            return self.tell([{"type": "file", "path": p, "size": n, "oid": f"{n:040}"} for p, n in sizes.items()])
        return self.tell({"id": "me/big", "sha": "0" * 40, "siblings": []} if "me/big" in path else None)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.tell([])

    def tell(self, value: object) -> None:
        self.answer(404 if value is None else 200, {}, json.dumps(value).encode())


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    from huggingface_hub import HfFileSystem

    HfFileSystem.clear_instance_cache()
    rng, Hub.files, Hub.sent = np.random.default_rng(0), {}, 0
    for k in range(2):
        images = pa.array([{"bytes": rng.bytes(500_000), "path": None} for _ in range(20)])
        table = pa.table({"caption": [f"text {k} {i}" for i in range(20)], "image": images})
        pq.write_table(table, tmp_path / "part.parquet", compression="none")
        Hub.files[f"data/train-{k}.parquet"] = (tmp_path / "part.parquet").read_bytes()
    with serving(Hub) as url:
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
        template = "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + template)
        yield Hub
    HfFileSystem.clear_instance_cache()


@pytest.mark.parametrize("name", ["hf://me/big/data/*.parquet", "hf://datasets/me/big/data/train-{0,1}.parquet"])
def test_captions_are_read_without_the_images(hub: type[Hub], name: str, tmp_path: Path) -> None:
    source = open_source(name)
    captions = [c for batch in iter_tables(source, 8, ["caption"]) for c in batch.column("caption").to_pylist()]
    assert captions == [f"text {k} {i}" for k in range(2) for i in range(20)]
    whole = sum(map(len, hub.files.values()))
    assert hub.sent < whole / 10
    assert sum(p.stat().st_size for p in (tmp_path / "cache").rglob("*.parquet")) < 1000
    assert load_pairs(name).images.read([0])[0] is not None and hub.sent > whole / 10
    hub.files["data/train-0.parquet"] += b" "
    assert_raises(DataError, "has changed since it was opened", list, iter_tables(source, 8, ["caption"]))
    with without_hub():  # it is not asked for what a file names
        assert_raises(ConfigError, "name it yourself", load_pairs, "hf://me/big/data/*.parquet")
    assert_not_loaded("me/other", "hf://me/other/data/*.parquet")


def test_parquet_is_read_where_it_lies(bucket: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: Any) -> None:
    """13 MB in 20 row groups, most of them pictures."""
    rng, n, came = np.random.default_rng(0), 2000, list[int]()
    columns = {"caption": [f"a {i}" for i in range(n)], "image": [rng.bytes(4500) for _ in range(n)]}
    columns |= {"image_features": vector_column(rng.standard_normal((n, 384), np.float32))}
    local, url = write_table(tmp_path / "large.parquet", columns, row_group_size=100), "memory://bucket/large.parquet"
    bucket.pipe("/bucket/large.parquet", local.read_bytes())

    def read(file: MemoryFile, size: int = -1) -> bytes:
        found = io.BytesIO.read(file, size)
        came.append(len(found))
        return found

    monkeypatch.setattr(MemoryFile, "read", read, raising=False)
    size, expected = local.stat().st_size, load_pairs(local)
    some = load_pairs(url, allow_urls=True, limit=50)
    assert sum(came) < size / 10, "the first row groups"
    assert some.captions == expected.captions[:50]
    assert np.array_equal(some.images.array(), expected.images.array()[:50])
    came.clear()
    every = load_pairs(url, allow_urls=True)
    assert every.captions == expected.captions and np.array_equal(every.images.array(), expected.images.array())
    assert size / 5 < sum(came) < size / 2, "captions and vectors, and not one of the pictures"
    came.clear()
    assert list(every.images.read([1990])) == list(expected.images.read([1990]))
    assert sum(came) < size / 10, "the pictures of one row group"
    found = inspect_pairs(some, decode="none")
    assert found["files"] == [url] and found["bytes"] == size
