"""Parquet of a dataset on the hub is read where it lies, by ranges, from a small hub of the test's own on 127.0.0.1."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cleanpairs.core.errors import ConfigError, DataError
from cleanpairs.core.hub import without_hub
from cleanpairs.data import load_pairs, open_source
from cleanpairs.data.readers import iter_tables


class Hub(BaseHTTPRequestHandler):
    files: dict[str, bytes]
    sent: int

    def log_message(self, *args: object) -> None:
        pass

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        if "/resolve/main/" in path:
            data = self.files[path.split("/resolve/main/")[1]]
            first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            part = data[first : last + 1]
            type(self).sent += len(part)
            return self.answer(part, 206)
        found = [
            {"type": "file", "path": name, "size": len(data), "oid": f"{len(data):040}"}
            for name, data in self.files.items()
        ]
        if path.endswith("/tree/main"):
            found = [{"type": "directory", "path": "data", "oid": "0" * 40}]
        if "/tree/" in path:
            return self.answer(found)
        return self.answer({"id": "me/big", "sha": "0" * 40, "siblings": []} if "me/big" in path else None)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer([])

    def answer(self, value: object, status: int = 200) -> None:
        raw = value if isinstance(value, bytes) else json.dumps(value).encode()
        self.send_response(404 if value is None else status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Hub]]:
    from huggingface_hub import HfFileSystem

    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", url)
    template = "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", url + template)
    HfFileSystem.clear_instance_cache()
    rng, Hub.files, Hub.sent = np.random.default_rng(0), {}, 0
    for k in range(2):
        images = pa.array([{"bytes": rng.bytes(500_000), "path": None} for _ in range(20)])
        table = pa.table({"caption": [f"text {k} {i}" for i in range(20)], "image": images})
        pq.write_table(table, tmp_path / "part.parquet", compression="none")
        Hub.files[f"data/train-{k}.parquet"] = (tmp_path / "part.parquet").read_bytes()
    yield Hub
    HfFileSystem.clear_instance_cache()
    server.shutdown()
    server.server_close()
    thread.join()


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
    with pytest.raises(DataError, match="has changed since it was opened"):
        list(iter_tables(source, 8, ["caption"]))


def test_it_is_not_asked_for_what_a_file_names(hub: type[Hub]) -> None:
    with without_hub(), pytest.raises(ConfigError, match="name it yourself"):
        load_pairs("hf://me/big/data/*.parquet")
    with pytest.raises(DataError, match="me/other"):
        load_pairs("hf://me/other/data/*.parquet")
