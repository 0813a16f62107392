"""The server: who may ask, what it answers, and that two pages lose nothing."""

import http.client
import io
import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from PIL import Image

from cleanpairs.review.server import FILES

from .conftest import QUARANTINED, Case, N, served


class Client:
    def __init__(self, address: str) -> None:
        self.port, self.token = urlsplit(address).port, urlsplit(address).path.strip("/")
        self.own = {"Host": f"127.0.0.1:{self.port}"}

    def ask(self, path: str, body: Any = None, headers: dict[str, str] | None = None) -> tuple[int, Any, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=900)
        raw = body if isinstance(body, bytes | None) else json.dumps(body).encode()
        connection.request("GET" if body is None else "POST", path, raw, {**self.own, **(headers or {})})
        answer = connection.getresponse()
        data, kind = answer.read(), answer.headers.get("content-type", "")
        connection.close()
        return answer.status, answer.headers, json.loads(data) if kind == "application/json" else data

    def get(self, path: str, body: Any = None) -> Any:
        status, _, found = self.ask(f"/{self.token}/{path}", body)
        assert status == 200, found
        return found


@pytest.fixture
def client(case: Case, tmp_path: Path) -> Iterator[Client]:
    with served(case.open(tmp_path), tmp_path) as address:
        yield Client(address)


def test_only_who_knows_the_token_and_calls_it_by_its_name(client: Client) -> None:
    for path in ("/", "/state", f"/{client.token[:-1]}/state", f"/{client.token}x/state", "/%c3%a9%ff/state"):
        assert client.ask(path)[0] in (403, 404)
    good = f"/{client.token}/state"
    assert client.ask(good)[0] == 200
    local = f"localhost:{client.port}"
    assert client.ask(good, headers={"Host": local, "Origin": f"http://{local}"})[0] == 200
    for host in ("evil.example", f"evil.example:{client.port}", "127.0.0.1", f"127.0.0.1.evil.example:{client.port}"):
        assert client.ask(good, headers={"Host": host})[0] == 403
    for origin in ("http://evil.example", "null", f"https://127.0.0.1:{client.port}", "http://127.0.0.1:1"):
        assert client.ask(good, headers={"Origin": origin})[0] == 403
        status = client.ask(f"/{client.token}/decide", {"pair": 1, "action": "drop"}, {"Origin": origin})[0]
        assert status == 403 and client.get("queue")["answered"] == []
    assert client.ask(good, headers={"Sec-Fetch-Site": "cross-site"})[0] == 403


def test_nothing_else_is_served(client: Client) -> None:
    for path in ("../state", "..%2f..%2fetc%2fpasswd", "%2e%2e/%2e%2e/etc/passwd", "session.py", "page.js/../log.py",
                 "image/-1", "image/1.5", f"image/{N}", "image/x", "/etc/passwd", "\\etc\\passwd"):  # fmt: skip
        status, _, found = client.ask(f"/{client.token}/{path}")
        assert status in (400, 403, 404), path
        assert b"root:" not in bytes(str(found), "utf-8") and b"import" not in bytes(str(found), "utf-8")
    for name in FILES:
        status, headers, _ = client.ask(f"/{client.token}/{name}")
        assert status == 200 and headers["x-content-type-options"] == "nosniff"
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'") and "unsafe" not in policy and "http" not in policy
    page = client.ask(f"/{client.token}/")[2].decode() + client.ask(f"/{client.token}/page.css")[2].decode()
    assert "http" not in page and "//" not in page.replace("<!doctype", "")


def test_a_picture_is_drawn_anew_also_beside_vectors(case: Case, client: Client, tmp_path: Path) -> None:
    status, headers, data = client.ask(f"/{client.token}/image/7")
    assert (status, headers["content-type"]) == (200, "image/jpeg")
    assert Image.open(io.BytesIO(data)).size == (320, 240)
    review, vectors = case.open(tmp_path), np.ones((len(case.pairs.images), 1, 4), np.float32)
    review.pairs = replace(case.pairs, images=case.pairs.images.with_vectors(vectors))
    with served(review, tmp_path) as address:
        assert Client(address).ask(f"/{Client(address).token}/image/7")[2] == data


def test_queues_and_questions(client: Client) -> None:
    found = client.get("queue?show=all&words=")
    assert found["total"] == N - 1 and found["pairs"] == list(range(N - 1)) and found["answered"] == []
    assert client.get("queue?show=all&words=click")["total"] == 6
    made = client.get("decide_all", {"show": "all", "words": "click", "action": "keep"})
    assert client.get("decide_all", {"alike": 40, "action": "drop"}) == {"name": None, "changed": 0}
    assert made["changed"] == 6 and client.get("undo", {"name": made["name"]})["pairs"] == list(range(40, 46))
    assert client.get("state") == {"title": "Review", "blind": False, "damaged": 0}
    assert client.get("question/7")["key"] == "k007"
    for path, status in (
        ("queue?show=nothing", 400), ("queue?odd=1", 400), (f"question/{N}", 400), (f"question/{QUARANTINED}", 400),
        ("question/x", 404), ("decide", 405),
    ):  # fmt: skip
        assert client.ask(f"/{client.token}/{path}")[0] == status, path


NO_ANSWERS = (
    b"", b"[]", b"{", b"\xff", b"[" * 90_000, b'{"pair": 1}', b'{"action": "keep"}', b'{"pair": 1, "action": "burn"}',
    b'{"pair": 1, "action": "quarantine"}', b'{"pair": 1, "action": "drop", "donor": [1], "odd": 1}',
    b'{"pair": 1, "action": "rematch_text"}', b'{"pair": 1, "action": "recaption"}',
    *(b'{"pair": %s, "action": "drop"}' % pair for pair in b'"x" true Infinity 1e999 -1 119 120'.split()),
    *(b'{"pair": 1, "action": "rematch_text", "donor": %s}' % donor for donor in (b"1", b"119", b"-Infinity")),
    *(b'{"pair": 1, "action": "recaption", "caption": %s}' % text
      for text in (b"7", b'" \\n"', b'"\\u0000"', b'"a\\ud800b"', b'"%s"' % (b"x" * 10_001))),
)  # fmt: skip


def test_what_is_no_answer(client: Client) -> None:
    for body in NO_ANSWERS:
        assert client.ask(f"/{client.token}/decide", body)[0] == 400, body
    assert client.get("queue")["answered"] == []


@pytest.mark.parametrize(("request_", "status"), [
    (b"POST /x HTTP/1.1\r\nHost: evil\r\nContent-Length: -1\r\n\r\n", b"400"),
    (b"GET /x HTTP/1.1\r\nHost: evil\r\nContent-Length: abc\r\n\r\n", b"400"),
    (b"POST /x HTTP/1.1\r\nHost: evil\r\nContent-Length: 2000000000\r\n\r\nx", b"403"),
    (b"POST /TOKEN/decide HTTP/1.1\r\nHost: HOST\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", b"400"),
    (b"POST /TOKEN/decide HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100090\r\n\r\n" + b"x" * 100_090, b"413"),
    (b"POST /TOKEN/decide HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n30000\r\n" + b"x" * 0x30000,
     b"413"),
    (b"DELETE /TOKEN/decide HTTP/1.1\r\nHost: HOST\r\n\r\n", b"405"),
    (b"GET /TOKEN/state HTTP/1.1\r\nHost: HOST\r\nHost: evil\r\n\r\n", b"400"),
    (b"\x16\x03\x01 no HTTP at all\r\n\r\n", b"400"),
])  # fmt: skip
def test_a_hostile_request_is_answered_once_and_closed(client: Client, request_: bytes, status: bytes) -> None:
    raw = request_.replace(b"TOKEN", client.token.encode()).replace(b"HOST", client.own["Host"].encode())
    smuggled = f"GET /{client.token}/state HTTP/1.1\r\nHost: {client.own['Host']}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", client.port), timeout=900) as connection:
        connection.sendall(raw)
        answer = connection.recv(12)
        assert answer == b"HTTP/1.1 " + status
        with suppress(OSError):  # the other end may have closed it
            connection.sendall(smuggled)
            while part := connection.recv(65536):
                answer += part
    assert answer.count(b"HTTP/1.1 ") == 1 and b'"title"' not in answer
    assert client.get("queue")["answered"] == []


def test_two_servers_of_one_run_lose_nothing_of_each_other(case: Case, tmp_path: Path, client: Client) -> None:
    with served(case.open(tmp_path), tmp_path) as address:
        other = Client(address)
        for i in range(10):
            name = (client, other)[i % 2].get("decide", {"pair": i, "action": "drop"})["name"]
        client.get("decide", {"pair": 3, "action": "keep"})
        assert all(page.get("queue?show=answered")["pairs"] == list(range(10)) for page in (client, other))
        assert other.get("question/3")["answer"]["action"] == "keep"
        assert client.get("undo", {"name": name})["pairs"] == [9]  # of the other
        written = other.get("write", {})["text"]
    assert Path(written).exists() and client.get("queue?show=answered")["total"] == 9
