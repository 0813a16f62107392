"""Inputs behind URLs: memory:// for fsspec, a server of our own for HTTP; addresses that are refused."""

import hashlib
import io
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fsspec.exceptions import FSTimeoutError
from fsspec.implementations.memory import MemoryFile

from cleanpairs.benchmarking import Bench
from cleanpairs.core.errors import ConfigError, DataError, OutputError
from cleanpairs.core.hub import without_hub
from cleanpairs.core.plain import without_secrets
from cleanpairs.data import load_pairs, open_source
from cleanpairs.data.formats import remote
from cleanpairs.data.formats.remote import fetch, is_public, is_url
from cleanpairs.data.inspection import inspect_pairs
from cleanpairs.data.readers import iter_tables
from cleanpairs.data.recorded import check_recorded
from tests.helpers import Handler, assert_not_loaded, assert_raises, serving, vector_column, write_table


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
    with pytest.raises(ConfigError, match=r"memory://bucket/a.parquet is a URL, and nothing is fetched.*--allow-urls"):
        load_pairs("memory://bucket/a.parquet")
    assert load_pairs("memory://bucket/a.parquet", allow_urls=True).captions == ["a"]
    assert_raises(ConfigError, "give its path", fetch, "file:///etc/passwd", True)
    assert not is_url("hf://owner/name") and fetch("a/b.parquet", False) == "a/b.parquet"


def test_one_file_a_folder_a_glob_and_braces(bucket: fsspec.AbstractFileSystem) -> None:
    for name in "abc":
        bucket.pipe(f"/bucket/{name}.parquet", parquet(name))
    bucket.pipe("/bucket/notes.txt", b"of no use")
    names = {"": "abc", "/": "abc", "/*.parquet": "abc", "/{a,c}.parquet": "ac", "/b.parquet": "b"}
    for url, found in names.items():
        assert load_pairs(f"memory://bucket{url}", allow_urls=True).captions == list(found), url
    for url, words in (("/nothing.parquet", "no such input"), ("/*.tar", "names no file")):
        assert_not_loaded(words, f"memory://bucket{url}", allow_urls=True)


def test_a_folder_whose_files_are_in_sub_folders(bucket: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    for k in range(2):
        for side in ("img_emb", "text_emb"):
            np.save(tmp_path / "part.npy", np.full((3, 4), k, np.float32))
            bucket.pipe(f"/bucket/{side}/{side}_{k}.npy", (tmp_path / "part.npy").read_bytes())
        write_table(tmp_path / "part.parquet", {"caption": [f"a {k} {i}" for i in range(3)]})
        bucket.pipe(f"/bucket/metadata/metadata_{k}.parquet", (tmp_path / "part.parquet").read_bytes())
        bucket.pipe(
            {f"/parts/half={k}/0.parquet": parquet(f"half {k}"), "/parts/.old/0.parquet": b"", "/parts/../a.json": b""}
        )
    pairs = load_pairs("memory://bucket/", allow_urls=True)
    assert pairs.source.kind == "clip-retrieval" and pairs.images.array()[:, 0, 0].tolist() == [0, 0, 0, 1, 1, 1]
    assert inspect_pairs(pairs, decode="none")["files"][-1] == "memory://bucket/metadata/metadata_1.parquet"
    assert load_pairs("memory://parts/", allow_urls=True).captions == ["half 0", "half 1"]
    bucket.rm("/parts/half=0/0.parquet")
    assert load_pairs("memory://parts/", allow_urls=True).captions == ["half 1"]


def test_what_is_there_already_is_fetched_again_only_if_it_changed(bucket: fsspec.AbstractFileSystem) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("old"))
    path = Path(fetch("memory://bucket/a.parquet", True))
    before = path.stat()
    assert Path(fetch("memory://bucket/a.parquet", True)).stat().st_ino == before.st_ino
    bucket.pipe("/bucket/a.parquet", parquet("new one"))
    assert load_pairs("memory://bucket/a.parquet", allow_urls=True).captions == ["new one"]
    bucket.pipe("/bucket/b.parquet", parquet("b"))
    assert load_pairs("memory://bucket/", allow_urls=True).captions == ["new one", "b"]
    bucket.rm("/bucket/a.parquet")
    assert load_pairs("memory://bucket/", allow_urls=True).captions == ["b"]


# -- Parquet in place --------------------------------------------------------------------------------------------------


@pytest.fixture
def large(bucket: fsspec.AbstractFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, list[int]]:
    """13 MB in 20 row groups, most of them pictures, as a local file and in the bucket; and bytes read of it."""
    rng, n = np.random.default_rng(0), 2000
    vectors = vector_column(rng.standard_normal((n, 384), np.float32))
    columns = {"caption": [f"a {i}" for i in range(n)], "image": [rng.bytes(4500) for _ in range(n)]}
    write_table(tmp_path / "large.parquet", {**columns, "image_features": vectors}, row_group_size=100)
    bucket.pipe("/bucket/large.parquet", (tmp_path / "large.parquet").read_bytes())
    came: list[int] = []

    def read(file: MemoryFile, size: int = -1) -> bytes:
        found = io.BytesIO.read(file, size)
        came.append(len(found))
        return found

    monkeypatch.setattr(MemoryFile, "read", read, raising=False)
    return tmp_path / "large.parquet", came


def test_parquet_is_read_where_it_lies(large: tuple[Path, list[int]]) -> None:
    local, came = large
    size, url = local.stat().st_size, "memory://bucket/large.parquet"
    some = load_pairs(url, allow_urls=True, limit=50)
    assert sum(came) < size / 10, "the first row groups"
    expected = load_pairs(local, limit=50)
    assert some.captions == expected.captions and np.array_equal(some.images.array(), expected.images.array())
    came.clear()
    every = load_pairs(url, allow_urls=True)
    assert every.captions == load_pairs(local).captions
    assert np.array_equal(every.images.array(), load_pairs(local).images.array())
    assert size / 5 < sum(came) < size / 2, "captions and vectors, and not one of the pictures"
    came.clear()
    assert list(every.images.read([1990])) == list(load_pairs(local).images.read([1990]))
    assert sum(came) < size / 10, "the pictures of one row group"
    assert inspect_pairs(some, decode="none")["files"] == [url]
    assert inspect_pairs(some, decode="none")["bytes"] == size


def test_parquet_that_changes_while_it_is_read_in_place(bucket: fsspec.AbstractFileSystem) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a"))
    url = "memory://bucket/a.parquet"
    source = load_pairs(url, allow_urls=True).source
    bucket.pipe("/bucket/a.parquet", parquet("b"))
    assert_raises(DataError, f"{url} has changed since it was opened", next, iter_tables(source))
    assert load_pairs(url, allow_urls=True).source.fingerprint != source.fingerprint
    bucket.rm("/bucket/a.parquet")
    assert_raises(DataError, f"{url} is not there any more", next, iter_tables(source))


def test_equal_bytes_that_are_uploaded_again_are_the_same_data(
    bucket: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts_of = type(bucket).info

    def info(system: fsspec.AbstractFileSystem, path: str) -> dict[str, object]:
        return {**facts_of(system, path), "ETag": hashlib.md5(system.store[path].getvalue()).hexdigest()}  # as S3

    monkeypatch.setattr(type(bucket), "info", info)
    found = []
    for caption in "aab":
        bucket.pipe("/bucket/a.parquet", parquet(caption))
        found.append(load_pairs("memory://bucket/a.parquet", allow_urls=True).source.fingerprint)
    assert found[0] == found[1] != found[2]


def test_errors_of_a_file_system_name_the_url(bucket: fsspec.AbstractFileSystem, monkeypatch: Any) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a")[:-8])
    with pytest.raises(DataError, match=r"^memory://bucket/a.parquet cannot be read as Parquet"):
        load_pairs("memory://bucket/a.parquet", allow_urls=True)

    def refused(*_: object) -> bytes:
        raise RuntimeError("no credentials")  # these file systems have errors of their own

    bucket.pipe("/bucket/b.parquet", parquet("b"))
    monkeypatch.setattr(MemoryFile, "read", refused, raising=False)
    with pytest.raises(DataError, match=r"^memory://bucket/b.parquet cannot be read.*no credentials"):
        load_pairs("memory://bucket/b.parquet", allow_urls=True)


def test_what_a_store_refuses_and_a_bucket_that_is_missing(bucket: fsspec.AbstractFileSystem, monkeypatch: Any) -> None:
    url = "memory://bucket/a.parquet"
    bucket.pipe("/bucket/a.parquet", parquet("a"))
    load_pairs(url, allow_urls=True)

    def says(error: Exception) -> Any:
        def refuse(*_: object, **__: object) -> object:
            raise error

        return refuse

    forbidden = PermissionError(13, "Forbidden")  # of s3fs, all that S3 tells of a file that may be listed alone
    for name in ("open", "info"):
        with monkeypatch.context() as patch:
            patch.setattr(type(bucket), name, says(forbidden))
            assert_not_loaded(f"{url} may not be read with these credentials.*: Forbidden$", url, allow_urls=True)
    monkeypatch.setattr(type(bucket), "info", says(FileNotFoundError("The specified bucket does not exist")))
    assert_not_loaded(f"^no such input: the bucket of {url}$", url, allow_urls=True)


@pytest.mark.parametrize("silent", [True, False])
def test_a_server_that_falls_silent_is_told(bucket: fsspec.AbstractFileSystem, monkeypatch: Any, silent: bool) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a"))

    def read(*_: object) -> object:
        try:
            raise FSTimeoutError from TimeoutError("Read timeout on endpoint")
        except TimeoutError as error:
            if silent:
                return error.args[0]  # as s3fs does
        return ()[0]

    monkeypatch.setattr(MemoryFile, "read", read, raising=False)
    words = "Read timeout on endpoint" if silent else "tuple index out of range"
    assert_not_loaded(f"a.parquet cannot be read as Parquet: {words}$", "memory://bucket/a.parquet", allow_urls=True)


def test_a_store_that_never_answers_is_asked_once_by_us(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its client tries five times by itself, of which there is one try here. Each takes 15 seconds otherwise."""
    s3fs = pytest.importorskip("s3fs", reason="s3fs is not installed")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "MAX_ATTEMPTS"):
            monkeypatch.setenv(f"AWS_{name}", "1")
        monkeypatch.setattr(s3fs.S3FileSystem, "read_timeout", 0.2)
        assert_not_loaded("cannot be reached: Read timeout", "s3://bucket/a.parquet", allow_urls=True)
        silent.settimeout(0)
        silent.accept()[0].close()
        assert_raises(BlockingIOError, "unavailable", silent.accept)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"img,cap\n1.jpg,a\n", "has no column of captions"),
        ("a.npy", b"nonsense", "cannot be read as an array"),
        ("a.arrow", b"nonsense", "is cut short"),
    ],
)
def test_errors_about_a_fetched_file_name_the_url(
    bucket: fsspec.AbstractFileSystem, name: str, content: bytes, words: str
) -> None:
    bucket.pipe(f"/bucket/{name}", content)
    assert_not_loaded(rf"^memory://bucket/{name} {words}", f"memory://bucket/{name}", allow_urls=True)


def test_a_full_disk_is_no_fault_of_the_url(bucket: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket.pipe("/bucket/a.csv", b"image,caption\n")

    def opened(*_: object) -> object:
        return open("/dev/full", "wb", buffering=0)

    monkeypatch.setattr(remote, "open", opened, raising=False)
    with pytest.raises(OutputError, match=r"a\.csv cannot be written: No space left on device"):
        fetch("memory://bucket/a.csv", True)


def test_a_file_of_a_stranger_does_not_stand_for_a_url(bucket: fsspec.AbstractFileSystem, tmp_path: Path) -> None:
    bucket.pipe("/bucket/a.parquet", parquet("a"))
    stand_in = Path(fetch("memory://bucket/a.parquet", True))
    assert stand_in.stat().st_size < 300
    (tmp_path / "remote" / "x").mkdir(parents=True)
    other = tmp_path / "remote" / "x" / "a.parquet"
    other.write_bytes(stand_in.read_bytes())
    assert_not_loaded(r"cannot be read as Parquet", other, allow_urls=True)


def test_a_url_that_is_none_and_a_name_that_no_file_here_can_have(bucket: fsspec.AbstractFileSystem) -> None:
    for url in ("http://[::1/x.parquet", "memory://bucket/%00.parquet", "http://:x/a.parquet"):
        assert_not_loaded(r"cannot be fetched|no such input", url, allow_urls=True)
    bucket.pipe(f"/bucket/{'a' * 300}.jsonl", b'{"caption": "one", "features": [1.0, 2.0]}\n')
    assert load_pairs(f"memory://bucket/{'a' * 300}.jsonl", allow_urls=True).captions == ["one"]


def test_a_signature_in_an_address_is_not_shown() -> None:
    for url in ("https://me:word@example.org/a b.parquet?X-Sig=1#2", "HTTPS://example.org/a.parquet?X=@"):
        assert without_secrets(url) == url.replace("me:word@", "").split("?")[0]
    for name in ("s3://bucket/a?b@c.parquet", "/a?b@c.parquet", "abfs://box@account.net/a:b@c.npy"):
        assert without_secrets(name) == name
    assert without_secrets("s3://me:word@bucket/a.npy") == "s3://bucket/a.npy"
    assert_raises(ConfigError, "^s3://bucket/a.npy was given with a password", fetch, "s3://me:word@bucket/a.npy", True)
    url = "https://example.org/a.parquet?X-Sig=1.5&sig=2"
    stranger = "^run.json names the data 'https://example.org/a.parquet', which would be fetched"
    assert_raises(ConfigError, stranger, check_recorded, url, {}, "run.json")
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


@pytest.fixture
def server() -> Iterator[str]:
    _Server.asked = []
    with serving(_Server) as url:
        yield url


def test_this_machine_is_never_asked(server: str) -> None:
    for host in ("127.0.0.1", "localhost", "0.0.0.0", "127.1", "2130706433", "[::1]", "[::ffff:127.0.0.1]"):
        with pytest.raises(DataError, match=r"private address|cannot be fetched"):
            load_pairs(server.replace("127.0.0.1", host) + "/a.parquet", allow_urls=True)
    assert _Server.asked == []


def test_a_public_server_is_read_but_not_its_redirect_inside(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    public = server.replace("127.0.0.1", "localhost")  # stands for a server on the internet; 127.0.0.2 for one inside
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
        ("/nothing.parquet", "HTTP Error 404"),
        ("/to/file:///etc/passwd.parquet", "cannot be fetched"),
        ("/short.parquet", "cut short|cannot be fetched"),
        ("/nothing.parquet?X-Sig=1", r"/nothing\.parquet cannot be fetched"),
    ):
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
    assert [address for address in PRIVATE if is_public(address)] == []
    assert [address for address in PUBLIC if not is_public(address)] == []


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
        found = [
            {"type": "file", "path": name, "size": len(data), "oid": f"{len(data):040}"}
            for name, data in self.files.items()
        ]
        if path.endswith("/tree/main"):
            found = [{"type": "directory", "path": "data", "oid": "0" * 40}]
        if "/tree/" in path:
            return self.tell(found)
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


def test_it_is_not_asked_for_what_a_file_names(hub: type[Hub]) -> None:
    with without_hub(), pytest.raises(ConfigError, match="name it yourself"):
        load_pairs("hf://me/big/data/*.parquet")
    assert_not_loaded("me/other", "hf://me/other/data/*.parquet")
