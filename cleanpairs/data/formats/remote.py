"""Inputs behind a URL: they are fetched into the cache directory for their readers.

Parquet of an object store is read in place. A small file in the cache directory stands for it: a JSON object of
its URL, its size and its mark (ETag, time of change). The mark tells whether the file is still the same. A file
in another folder, or a fetched one, is no such file: a stranger's data cannot make this machine use the network.

``http(s)://``, and of what fsspec knows the object stores (see :func:`fetch`): others would reach this machine's files,
its network, or another protocol behind their own. For HTTP the addresses are checked when the connection is made,
also behind a redirect: this machine, the local network and a cloud's metadata service are never contacted.
"""

import hashlib
import http.client
import ipaddress
import json
import os
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from cleanpairs.core import error_text, read_json, reading, without_secrets
from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError, MissingInputError
from cleanpairs.core.hub import hub_allowed
from cleanpairs.data.atomic import staged_file
from cleanpairs.data.formats.file_names import expand_braces
from cleanpairs.data.source import cache_dir, cache_folder, digest_of, read_cached, write_cached

HUB = "hf://"  # of a whole dataset: the reader of `datasets` fetches it itself
FOLDER = "remote"  # of the cache directory
NOTE = ".source"  # suffix of the file's name: its origin


class _Remote(NamedTuple):
    """One file: its mark, its contents piece by piece, the contents of its stand-in where it is not copied, and the
    sub-folder where it is in one of the folder that was named.
    """

    url: str
    mark: str
    pieces: Callable[[], Iterator[bytes]]
    stand_in: bytes | None = None
    subfolder: str = ""


def is_url(data: str) -> bool:
    """Whether ``data`` is the URL of files, and no path, and not the name of a dataset on the hub."""
    of_files = data.startswith(f"{HUB}buckets/") or data.endswith(".parquet") or any(c in data for c in "*?[{")
    return "://" in data and (of_files or not data.startswith(HUB))


def fetch(data: str, allow_urls: bool) -> str:
    """The local path of what ``data`` names, as it is where that is no URL: one file, several by braces or (but for
    HTTP) a glob, or a folder. Of several arrays or Parquet files it is a glob. Fetched again only if its mark has
    changed. Raises ConfigError: URLs are not allowed, or the protocol's package is not installed. DataError: it cannot
    be fetched, or its address is private.
    """
    if not is_url(data):
        return data
    scheme = data.split("://", 1)[0].lower()
    if scheme == "file":
        raise ConfigError(f"{data} is on this machine: give its path")
    if scheme == "hf":
        allow_urls = hub_allowed.get()  # as for a whole dataset, whose name allows it
        data = data if re.match(rf"{HUB}(datasets|buckets)/", data) else data.replace(HUB, f"{HUB}datasets/", 1)
    protocols = ("http", "https", "hf", "s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "memory")
    if scheme not in protocols or (scheme not in ("http", "https") and "::" in data):
        known = ", ".join(protocols)
        raise ConfigError(f"{data} has a protocol that is not known, or one behind another (known: {known})")
    if re.match(r"\w+://[^/?#]*:[^/?#]*@", data):
        raise ConfigError(f"{data} was given with a password: leave it out. A store takes environment variables")
    if not allow_urls:
        if scheme == "hf":
            raise ConfigError(f"{data} is on the hub, which is not asked for what a file names: name it yourself")
        raise ConfigError(f"{data} is a URL, and nothing is fetched unless allowed: add --allow-urls (allow_urls)")
    wanted: set[Path] = set()
    with reading(data, "fetched", ValueError):  # a URL that is none
        files_of = _http_files if scheme in ("http", "https") else _store_files
        remotes = [remote for url in expand_braces(data) for remote in files_of(url)]
        if not remotes:
            raise MissingInputError(f"no such input: {data} names no file")
        folder = cache_folder(f"{FOLDER}/{hashlib.sha256(data.encode()).hexdigest()[:32]}")
        for remote in remotes:
            name = Path(unquote(urlsplit(remote.url).path) if scheme.startswith("http") else remote.url).name
            if not name or name.startswith("."):
                raise DataError(f"{remote.url} does not end in the name of a file")
            if len(name.encode()) > 200:  # a file system takes 255 bytes, with a suffix of ours
                name = hashlib.sha256(name.encode()).hexdigest() + Path(name).suffix[:20]
            target = folder / remote.subfolder / name
            if target in wanted:
                raise DataError(f"{data} names two files {name!r}")
            wanted.add(target)
            target.parent.mkdir(exist_ok=True)
            _update(target, remote)
    for old in folder.rglob("[!.]*"):  # a file that the URL no longer names must not be read with the rest
        if old.is_file() and old not in wanted and old.with_suffix("") not in wanted:
            old.unlink()
    if len(wanted) == 1 and not data.endswith("/"):
        return str(*wanted)
    ending = Path(data).suffix
    return f"{folder}/*{ending}" if ending in (".npy", ".parquet") else str(folder)


def _update(target: Path, remote: _Remote) -> None:
    """Fetch a file, or write its stand-in, unless it is cached with the present mark."""
    note = target.with_name(target.name + NOTE)
    recorded = {"url": remote.url, "mark": remote.mark, "copied": remote.stand_in is None}
    if target.exists() and remote.mark and _read_note(note) == {**recorded, "sha256": digest_of(target).hex()}:
        return
    note.unlink(missing_ok=True)
    with staged_file(target, overwrite=True) as staged, open(staged, "wb") as out:
        out.writelines(_fetched(remote) if remote.stand_in is None else [remote.stand_in])
    write_cached(note, json.dumps({**recorded, "sha256": digest_of(target).hex()}).encode())


def _fetched(remote: _Remote) -> Iterator[bytes]:
    """The contents of a file. Raises DataError where it cannot be fetched, and not where a piece cannot be written."""
    with reading(remote.url, "fetched", Exception):
        yield from remote.pieces()


def _read_note(note: Path) -> dict[str, Any]:
    """The note of a fetched file. Empty where the note is missing or damaged."""
    return dict(json.loads(read_cached(note) or b"{}"))


def _store_files(url: str) -> list[_Remote]:
    """The files of a URL that fsspec knows: itself, a glob, or those of a folder."""
    import fsspec

    try:
        system, path = fsspec.core.url_to_fs(url)
        system.retries = 1  # s3fs asks five times, and its client each time five: a silent store would take minutes
        if any(c in path for c in "*?["):
            paths = sorted(system.glob(path))
        elif system.isdir(path):
            endings = (".parquet", ".tar", ".csv", ".tsv", ".jsonl", ".json", ".arrow", ".npy")
            for depth in (1, 2):  # as of a folder here: sub-folders are searched if it holds no file itself
                found = sorted(p for p in system.find(path, maxdepth=depth) if "/." not in p.removeprefix(path))
                paths = [(p, p.count("/") - path.rstrip("/").count("/")) for p in found if p.endswith(endings)]
                if any(not p.endswith("/dataset_dict.json") for p, _ in paths):  # which only names the sub-folders
                    return [_of_fsspec(system, p, url)._replace(subfolder=p.split("/")[-2] * (k - 1)) for p, k in paths]
            return []
        else:
            paths = [path]
        return [_of_fsspec(system, p, url) for p in paths]
    except ImportError as error:
        raise ConfigError(f"{url} needs a package that is not installed: {error}") from error
    except FileNotFoundError as error:
        what = "the bucket of " if "bucket does not exist" in str(error) else ""
        raise MissingInputError(f"no such input: {what}{url}") from error
    except PermissionError as error:
        raise _refused(url, error) from error
    except Exception as error:  # each of these file systems raises its own
        raise DataError(f"{url} cannot be reached: {error_text(error)}") from error


def _of_fsspec(system: Any, path: str, url: str) -> _Remote:
    def pieces() -> Iterator[bytes]:
        with system.open(path, "rb") as file:
            yield from iter(lambda: file.read(1 << 20), b"")

    facts = system.info(path)
    vars(system).pop("retries", None)  # it answers
    full_url, mark = f"{url.split('://', 1)[0]}://{path.lstrip('/')}", _mark_of(facts)
    stand_in = json.dumps({"in place": {"url": full_url, "path": path, "size": facts["size"], "mark": mark}}) + "\n"
    return _Remote(full_url, mark, pieces, stand_in.encode() if mark and path.endswith(".parquet") else None)


def _mark_of(facts: dict[str, Any]) -> str:
    """A mark of a file's version, from fsspec's facts. Empty where these do not suffice."""
    others = "etag generation LastModified last_modified mtime created updated blob_id xet_hash".split()
    marks = ["ETag"] if facts.get("ETag") else others  # of S3: the same if the same bytes are uploaded again
    values = [str(facts[name]) for name in marks if facts.get(name) is not None]
    return "|".join([str(facts.get("size")), *values]) if values else ""


def _note_beside(path: str) -> dict[str, Any]:
    """The note of a file that was fetched, or of a stand-in. Empty where ``path`` is an ordinary file."""
    name = os.path.abspath(path)
    fetched = Path(name).is_relative_to(os.path.abspath(cache_dir() / FOLDER))
    return _read_note(Path(name + NOTE)) if fetched else {}


def _stand_in(path: str) -> dict[str, Any] | None:
    """The remote file of a local stand-in. None where ``path`` is another file."""
    if _note_beside(path).get("copied", True):  # a fetched file may look like a stand-in
        return None
    return dict(read_json(path)["in place"])


def location(path: str) -> str:
    """The URL that a file came from or stands for, as :func:`without_secrets` shows it. Else the path as it is."""
    return without_secrets(str(_note_beside(path).get("url", path)))


@contextmanager
def urls_in_errors() -> Iterator[None]:
    """Within the block, or the function, an error names a fetched file by its URL."""
    try:
        yield
    except CleanpairsError as error:
        text = re.sub(rf"(?<!\S)\S*/{FOLDER}/[0-9a-f]{{32}}/[^\s,:;']+", lambda path: location(path[0]), str(error))
        if text == str(error):
            raise
        raise type(error)(text) from error


def bytes_of(path: str) -> int:
    """The size of a file in bytes, of a stand-in that of its remote file."""
    stand_in = _stand_in(path)
    return Path(path).stat().st_size if stand_in is None else int(stand_in["size"])


def open_remote(path: str) -> Any:
    """Open the remote file of a stand-in. None where ``path`` is an ordinary file. Raises DataError: it has changed."""
    stand_in = _stand_in(path)
    if stand_in is None:
        return None
    import fsspec

    try:
        system, _ = fsspec.core.url_to_fs(stand_in["url"])
        system.invalidate_cache(stand_in["path"])
        file = system.open(stand_in["path"], "rb", cache_type="none")
        facts = getattr(file, "details", None) or system.info(stand_in["path"])  # opening has asked for them mostly
        if _mark_of(facts) != stand_in["mark"]:
            file.close()
            raise DataError(f"{stand_in['url']} has changed since it was opened: run the command again")
        return file
    except FileNotFoundError as error:
        raise DataError(f"{stand_in['url']} is not there any more") from error
    except PermissionError as error:
        raise _refused(stand_in["url"], error) from error


def _refused(url: str, error: PermissionError) -> DataError:
    """The error where a store refuses a file, whose answer may be one word."""
    return DataError(f"{url} may not be read with these credentials, or without any: {error_text(error)}")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the internet, not of this machine, a local network or a cloud's inside.

    So must be an IPv4 address that is embedded in another (RFC 4291, 6052). Tunnels (6to4, Teredo, ISATAP) are not.
    """
    ip = ipaddress.ip_address(address.split("%")[0])

    def within(*networks: str) -> bool:
        return any(ip in ipaddress.ip_network(network) for network in networks)

    if isinstance(ip, ipaddress.IPv4Address):  # the last one is Azure's own, at an address that looks public
        return ip.is_global and not ip.is_multicast and not within("192.0.0.0/24", "192.88.99.0/24", "168.63.129.16/32")
    if ip.ipv4_mapped is not None or within("64:ff9b::/96"):  # NAT64
        return is_public(str(ipaddress.IPv4Address(int(ip) & (2**32 - 1))))
    tunnel = ip.sixtofour or ip.teredo or (int(ip) >> 32) & 0xFDFFFFFF == 0x5EFE
    # All that is handed out, without ::/96, fec0::/10, and what is for documentation: Python's tables lack that yet.
    return within("2000::/3") and ip.is_global and not tunnel and not within("3fff::/20")


def _connect(address: tuple[str, int], *args: Any, **kwargs: Any) -> socket.socket:
    """``socket.create_connection``, to public addresses only: no change is possible between check and connection."""
    host, port = address
    addresses = [str(peer[0]) for *_, peer in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    public = [ip for ip in addresses if is_public(ip)]
    if not public:
        raise OSError(f"{host} is at {addresses[0]}, a private address: these are never fetched from")
    for ip in public[:-1]:
        with suppress(OSError):
            return socket.create_connection((ip, port), *args, **kwargs)
    return socket.create_connection((public[-1], port), *args, **kwargs)


class _PublicHandler(urllib.request.HTTPHandler, urllib.request.HTTPSHandler):
    def do_open(self, http_class: Any, req: urllib.request.Request, **http_conn_args: Any) -> Any:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            made = http_class(*args, **kwargs)
            made._create_connection = _connect
            return made

        return super().do_open(guarded, req, **http_conn_args)


def _http_files(url: str) -> list[_Remote]:
    """The file of an ``http(s)://`` URL. No proxy is used: it would be the one to connect."""
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.UnknownHandler, _PublicHandler, urllib.request.HTTPDefaultErrorHandler,
        urllib.request.HTTPRedirectHandler, urllib.request.HTTPErrorProcessor,
    ):  # fmt: skip
        opener.add_handler(handler())

    def opened(method: str) -> Any:
        request = urllib.request.Request(url, method=method, headers={"User-Agent": "cleanpairs"})
        try:
            return opener.open(request, timeout=60.0)  # seconds without an answer
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            raise

    def pieces() -> Iterator[bytes]:
        came = 0
        with opened("GET") as answer:
            for piece in iter(lambda: answer.read(1 << 20), b""):
                came += len(piece)
                yield piece
            length = answer.headers.get("Content-Length")
        if length is not None and came != int(length):
            raise OSError(f"it was cut short: {came} of {length} bytes came")

    headers: list[str | None] = [None, None]
    with suppress(OSError, http.client.HTTPException, ValueError), opened("HEAD") as answer:  # GET raises the error
        headers = [answer.headers.get(name) for name in ("ETag", "Last-Modified", "Content-Length")]
    return [_Remote(url, "|".join(map(str, headers)) if any(headers[:2]) else "", pieces)]
