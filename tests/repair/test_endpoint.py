"""Captions from a server: a real one in a thread, which is busy, wrong, silent, or refers to another."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cleanpairs.core.errors import CleanpairsError, ConfigError, DataError
from cleanpairs.repair.chat import ChatSettings, ChatWriter
from cleanpairs.repair.endpoint import Endpoint
from cleanpairs.repair.plan import RepairPlan
from cleanpairs.repair.recaption import recaption
from tests import helpers
from tests.repair.test_chat import completion, seen_by
from tests.repair.test_recaption import by_colour, corpus

Reply = tuple[int, dict[str, str], bytes] | None  # status, headers, body. None: the connection is closed
SECRET = "sk-secret-123"


def good(request: dict[str, Any]) -> Reply:
    return 200, {}, json.dumps(completion(seen_by({"body": request}))).encode()


@contextmanager
def serving(reply: Callable[[int, dict[str, Any]], Reply]) -> Iterator[tuple[str, list[Any]]]:
    """The address of a server, and the (path, key) of what it was asked. ``reply`` is given the request's number."""
    asked: list[Any] = []

    class Handler(helpers.Handler):
        def do_POST(self) -> None:
            asked.append((self.path, self.headers.get("Authorization")))
            found = reply(len(asked), json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if found is None:
                self.close_connection = True
            else:
                self.answer(*found)

    with helpers.serving(Handler) as url:
        yield f"{url}/v1", asked


def run(url: str, cache: Path | None = None, n: int = 12, **how: Any) -> tuple[RepairPlan, ChatWriter]:
    pairs, plan = corpus(n)
    settings = ChatSettings(**{"model": "tiny-vl", "concurrency": 1, "backoff": 0.0, "attempts": 3, **how})
    writer = ChatWriter(settings, url=url, cache=cache)
    return recaption(pairs, plan, writer, by_colour), writer


def test_a_stopped_run_goes_on_and_the_key_is_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", SECRET)
    cache, refusal = tmp_path / "answers.jsonl", f"no {SECRET} here".encode()
    with serving(lambda k, request: good(request) if k <= 3 else (401, {}, refusal)) as (url, asked):
        helpers.assert_raises(ConfigError, r"refuses the key.*no \*\*\* here", run, url, cache)
    assert asked[0] == ("/v1/chat/completions", f"Bearer {SECRET}") and len(asked) == 4
    with cache.open("a") as file:
        file.write('\n{"custom_id": "half a li')  # as a kill leaves it
    with serving(lambda k, request: good(request)) as (url, asked):
        plan, _ = run(url, cache, concurrency=4)
        assert plan.summary().recaptioned == 6 and len(asked) == 3
        assert run(url, cache)[0].table.equals(plan.table) and len(asked) == 3
        assert run(url, cache, model="another")[0].summary().recaptioned == 6 and len(asked) == 9
    assert SECRET not in cache.read_text() + json.dumps(plan.settings)
    from_file = ChatWriter(ChatSettings(), [cache])  # the cache has the form of a batch's answers
    assert recaption(*corpus(), from_file, by_colour).summary().recaptioned == 6


BUSY = (429, {"Retry-After": "0"}, b"slow down")


@pytest.mark.parametrize(("first", "requests", "problem"), [
    ([BUSY, BUSY], 8, ""), ([(503, {"Content-Type": "text/html; charset=hex"}, b"<html>"), None], 8, ""),
    ([BUSY, None, BUSY], 8, "errors (1), such as the pair captioned 'purple': status 429: slow down"),
    ([(400, {}, b"too large")], 6, "errors (1), such as the pair captioned 'purple': status 400: too large"),
    ([(200, {}, b"<html>")], 6, "answers of another form (1), such as the pair captioned 'purple'"),
    ([(200, {}, json.dumps(completion("")).encode())], 6, "empty answers (1)"),
])  # fmt: skip
def test_what_is_answered_first(first: Sequence[Reply], requests: int, problem: str, tmp_path: Path) -> None:
    cache = tmp_path / "answers.jsonl"
    with serving(lambda k, request: first[k - 1] if k <= len(first) else good(request)) as (url, asked):
        plan, writer = run(url, cache)
        assert len(asked) == requests and plan.summary().recaptioned == (5 if problem else 6)
        assert (f"  {problem}" in writer.report()) if problem else not writer.problems
        again, _ = run(url, cache)  # a failure is asked again, an empty answer is one
        assert again.summary().recaptioned == (5 if "empty" in problem else 6)


def test_a_server_that_hangs_is_left() -> None:
    over = threading.Event()

    def reply(k: int, request: dict[str, Any]) -> Reply:
        if k > 1:
            return good(request)
        over.wait(60)
        return None

    with serving(reply) as (url, asked):
        plan, _ = run(url, timeout=0.2, attempts=100)
        over.set()
    assert plan.summary().recaptioned == 6 and len(asked) > 6


@pytest.mark.parametrize(("reply", "error", "says", "requests"), [
    ((403, {}, b"no"), ConfigError, "OPENAI_API_KEY", 1), (None, DataError, "cannot be asked: .*disconnected", 3),
    ((400, {}, b"too large"), DataError, "10 requests in a row have failed.*400: too large.*resumes", 10),
])  # fmt: skip
def test_what_ends_it(reply: Reply, error: type[CleanpairsError], says: str, requests: int, tmp_path: Path) -> None:
    with serving(lambda k, request: reply) as (url, asked), pytest.raises(error, match=f"(?s){says}"):
        run(url, tmp_path / "answers.jsonl", n=30)
    assert len(asked) == requests
    with serving(lambda k, request: reply) as (url, _), pytest.raises(error, match=f"(?s){says}"):
        run(url, tmp_path / "more.jsonl", n=60, concurrency=8, timeout=2)  # requests that it stops do not hide why


def test_no_other_host_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(lambda k, request: good(request)) as (other, asked):
        monkeypatch.setenv("HTTP_PROXY", other)
        with serving(lambda k, request: (307, {"Location": other + "/chat/completions"}, b"")) as (url, _):
            helpers.assert_raises(ConfigError, "which is not asked", run, url)
        assert not asked
    helpers.assert_raises(DataError, "cannot be asked", run, other)  # nobody is there any more


def test_an_address_that_is_none() -> None:
    for url in ("localhost:8000", "ftp://a/v1", "http://", "http://me:word@localhost/v1", "http://a/v1?k=word", ""):
        with pytest.raises(ConfigError, match="must be like") as error:
            Endpoint(url, concurrency=1, attempts=1, timeout=1, backoff=0)
        assert "word" not in str(error.value)
