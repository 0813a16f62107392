"""The review as a page on this machine: a server on 127.0.0.1 that answers to who knows its token alone.

The token is the first part of every path. A request whose ``Host`` is another name (DNS rebinding), or whose ``Origin``
is another site, is refused; the page may load from this server alone.
"""

import hmac
import json
import secrets
import socket
import threading
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cleanpairs.audit.sheet import thumbnail
from cleanpairs.core.errors import CleanpairsError, ConfigError, OutputError
from cleanpairs.review.session import Review

POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY, "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store", "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip
FILES = {"": "review.html", "review.js": "review.js", "review.css": "review.css"}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
IMAGE = 900  # longest side, pixels
MOST_ROWS = 500  # of one window
MOST_BODY = 100_000  # bytes
LISTS = 16  # that are remembered
FORGOTTEN = {"error": "this list is forgotten: list anew"}
CHANGES = ("decide", "batch", "undo", "write")  # what is asked by POST
Body = dict[str, Any]
Work = Callable[[Request, Body], Any]


def make_app(review: Review, folder: str | Path, *, token: str, port: int, title: str = "Review") -> Starlette:
    """The application, which writes plan and labels into ``folder``; ``token`` is the first part of every path."""
    pages = _Pages(review, folder, title, token, port)
    work = {
        "": pages.file, "state": pages.state, "list": pages.listing, "rows": pages.rows, "pair/{pair:int}": pages.pair,
        "image/{pair:int}": pages.image, "decide": pages.decide, "batch": pages.batch, "undo": pages.undo,
        "write": pages.write, "{name}": pages.file,
    }  # fmt: skip
    routes = [
        Route("/{token}/" + path, pages.opens(answer), methods=["POST" if path in CHANGES else "GET"])
        for path, answer in work.items()
    ]
    app = Starlette(routes=routes)
    app.router.redirect_slashes = False
    return app


class _Pages:
    """Who may ask; and the answers, each of a request and the object that came with it."""

    def __init__(self, review: Review, folder: str | Path, title: str, token: str, port: int) -> None:
        self.review, self.folder, self.title = review, folder, title
        self._token, self._hosts = token, {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.one = threading.Lock()
        self.lists: OrderedDict[str, np.ndarray] = OrderedDict()

    def opens(self, work: Work) -> Callable[[Request], Awaitable[Response]]:
        """What answers a request by ``work``: one at a time, which knows what other pages have decided, but for files
        and pictures.
        """

        def alone(request: Request, body: Body) -> Any:
            with self.one:
                self.review.refresh()
                return work(request, body)

        run = work if work in (self.file, self.image) else alone

        async def answer(request: Request) -> Response:
            if (problem := self._problem(request)) is not None:
                return PlainTextResponse(problem, 403, HEADERS)
            body = await _body(request) if request.method == "POST" else {}
            try:
                found = await run_in_threadpool(run, request, body)
            except CleanpairsError as error:
                return JSONResponse({"error": str(error)}, 400 if isinstance(error, ConfigError) else 500, HEADERS)
            except (ValueError, TypeError, KeyError) as error:
                return JSONResponse({"error": f"not understood: {error}"[:200]}, 400, HEADERS)
            return found if isinstance(found, Response) else JSONResponse(found, headers=HEADERS)

        return answer

    def _problem(self, request: Request) -> str | None:
        if request.headers.get("host", "") not in self._hosts:
            return "this server answers to 127.0.0.1 alone"
        origin = request.headers.get("origin")
        if origin is not None and origin not in {f"http://{host}" for host in self._hosts}:
            return "requests of other sites are refused"
        if request.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return "requests of other sites are refused"
        given = request.path_params.get("token", "")
        if not hmac.compare_digest(given.encode("utf-8", "replace"), self._token.encode()):
            return "the address lacks its token: open the one that was printed"
        return None

    def file(self, request: Request, body: Body) -> Response:
        name = FILES.get(request.path_params.get("name", ""))
        if name is None:
            return PlainTextResponse("there is no such file", 404, HEADERS)
        text = resources.files("cleanpairs.review").joinpath(name).read_text(encoding="utf-8")
        kind = KINDS[name.rpartition(".")[2]]
        return Response(text, media_type=f"{kind}; charset=utf-8", headers=HEADERS)

    def state(self, request: Request, body: Body) -> Any:
        vectors = self.review.pairs.images.kind != "bytes"
        opened = len(self.review.log.decisions)
        return self.review.progress() | {"title": self.title, "vectors": vectors, "opened": opened}

    def listing(self, request: Request, body: Body) -> Any:
        """The pairs that are asked for, by a name under which their rows are had."""
        asked = request.query_params
        ids = self.review.listing(asked.get("show", "undecided"), asked.get("sort", "asked"), asked.get("q", "")[:200])
        name = secrets.token_hex(8)
        self.lists[name] = ids
        while len(self.lists) > LISTS:
            self.lists.popitem(last=False)
        return {"list": name, "total": len(ids), "rows": self.review.rows(ids[:100])}

    def rows(self, request: Request, body: Body) -> Any:
        asked = request.query_params
        start, count = int(asked.get("start", "0")), int(asked.get("count", "100"))
        if start < 0 or not 0 < count <= MOST_ROWS:
            raise ConfigError(f"a window has 1 to {MOST_ROWS} rows, from 0 on")
        ids = self.lists.get(asked.get("list", ""))
        if ids is None:
            return JSONResponse(FORGOTTEN, 410, HEADERS)
        return {"start": start, "rows": self.review.rows(ids[start : start + count])}

    def pair(self, request: Request, body: Body) -> Any:
        return self.review.pair(request.path_params["pair"])

    def image(self, request: Request, body: Body) -> Response:
        i, pairs = request.path_params["pair"], self.review.pairs
        if not 0 <= i < len(pairs) or pairs.images.kind != "bytes":
            return PlainTextResponse("there is no such image", 404, HEADERS)
        with self.one:
            data = pairs.images.read([int(pairs.image_index[i])])[0]
        small = None if data is None else thumbnail(data, IMAGE)
        if small is None:
            return PlainTextResponse("the image cannot be read", 404, HEADERS)
        return Response(small, media_type="image/jpeg", headers=HEADERS)

    def decide(self, request: Request, body: Body) -> Any:
        donor, caption = body.get("donor"), body.get("caption")
        i = int(body["pair"])
        self.review.decide(
            [i], str(body["action"]), donor=None if donor is None else int(donor),
            caption=None if caption is None else str(caption), page=str(body.get("page", ""))[:64],
            sort=str(body.get("sort", "")),
        )  # fmt: skip
        return self.review.progress() | {"rows": self.review.rows(np.array([i]))}

    def batch(self, request: Request, body: Body) -> Any:
        alike = "alike" in body
        ids = self.review.alike(int(body["alike"])) if alike else self.lists.get(str(body.get("list")))
        if ids is None:
            return JSONResponse(FORGOTTEN, 410, HEADERS)
        made = self.review.decide_alike(ids, str(body["action"]), str(body.get("page", ""))[:64])
        return self.review.progress() | {"changed": 0 if made is None else len(made.pairs)}

    def undo(self, request: Request, body: Body) -> Any:
        made = self.review.undo(str(body.get("page", ""))[:64], int(body.get("opened", 0)))
        changed = [] if made is None else list(made.pairs)
        rows = self.review.rows(np.array(changed[:1], np.int64))
        return self.review.progress() | {"changed": len(changed), "rows": rows}

    def write(self, request: Request, body: Body) -> Any:
        return self.review.write(self.folder)


async def _body(request: Request) -> dict[str, Any]:
    raw = b""
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MOST_BODY:
            raise HTTPException(413, "too much for a decision", HEADERS)
    try:
        return dict(json.loads(raw))
    except (ValueError, TypeError, RecursionError) as error:
        raise HTTPException(400, "no JSON object", HEADERS) from error


def listen() -> socket.socket:
    """A socket on 127.0.0.1, at a port that is free; OutputError: there is none."""
    try:
        return socket.create_server(("127.0.0.1", 0))
    except OSError as error:
        raise OutputError(f"no port of 127.0.0.1 can be listened at: {error.strerror}") from error


def serve(review: Review, folder: str | Path, ready: Callable[[str], None], *, title: str = "Review") -> None:
    """Answer until the process is interrupted; ``ready(address)`` is called when it does."""
    import uvicorn

    at = listen()
    port, token = at.getsockname()[1], secrets.token_urlsafe(24)
    app = make_app(review, folder, token=token, port=port, title=title)
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, server_header=False, timeout_graceful_shutdown=2, lifespan="off"
    )
    with at:
        at.listen()
        ready(f"http://127.0.0.1:{port}/{token}/")
        uvicorn.Server(config).run(sockets=[at])
