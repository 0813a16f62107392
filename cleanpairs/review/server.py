"""The labelling page on this machine: a server on 127.0.0.1 that answers only to those who know its token.

The token begins every path. A request whose ``Host`` is another name (DNS rebinding), or whose ``Origin`` is another
site, is refused before its body is read. The page may load from this server alone.
"""

import hmac
import json
import secrets
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cleanpairs.core import CleanpairsError, ConfigError
from cleanpairs.data.decoding import thumbnail
from cleanpairs.review.session import Session

FILES = {name: Path(__file__).with_name(name or "page.html") for name in ("", "page.js", "page.css")}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip


class LabelServer:
    """Serve the page of a session at ``address``, while :meth:`serve` runs.

    Parameters
    ----------
    session : Session
    finish : callable
        What the button at the top does. The page shows the text that it returns.
    title : str
    """

    def __init__(self, session: Session, finish: Callable[[], str], *, title: str = "Review") -> None:
        self.session, about = session, {"title": title, "blind": session.blind}
        self.lock = threading.Lock()  # a session answers one request at a time
        self._socket = socket.create_server(("127.0.0.1", 0))
        port, token = self._socket.getsockname()[1], secrets.token_urlsafe(24)
        hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
        self.address = f"http://{hosts[0]}/{token}/"
        routes = [
            *(Route(f"/{name}", lambda _, file=file: FileResponse(file)) for name, file in FILES.items()),
            Route("/image/{pair:int}", self._image),
            Route("/state", self._endpoint(lambda: {**about, "damaged": session.log.damaged})),
            Route("/queue", self._endpoint(self._queue)),
            Route("/question/{pair:int}", self._endpoint(session.question)),
            Route("/decide", self._endpoint(self._answer), methods=["POST"]),
            Route("/decide_all", self._endpoint(self._answer_all), methods=["POST"]),
            Route("/undo", self._endpoint(self._undo), methods=["POST"]),
            Route("/write", self._endpoint(lambda: {"text": finish()}), methods=["POST"]),
        ]
        bad = dict.fromkeys((ConfigError, ValueError, TypeError, KeyError, RecursionError, OverflowError), _refused)
        app = Starlette(
            routes=[Mount("/{token}", routes=routes)], middleware=[Middleware(_Guard, hosts=hosts, token=token)],
            exception_handlers={CleanpairsError: _failed, ClientDisconnect: _failed, **bad},
        )  # fmt: skip
        self._uvicorn = uvicorn.Server(uvicorn.Config(
            app, http="h11", ws="none", lifespan="off", loop="asyncio", log_config=None, log_level="error",
            access_log=False, server_header=False, timeout_graceful_shutdown=5,
        ))  # fmt: skip

    def serve(self) -> None:
        """Answer until Ctrl-C, which is raised again."""
        self._uvicorn.run(sockets=[self._socket])

    def _endpoint(self, work: Callable[..., dict[str, Any]]) -> Callable[[Request], Any]:
        """Return an endpoint that gives a function the fields of the request, and answers with what it returns."""

        def locked(fields: dict[str, Any]) -> dict[str, Any]:
            with self.lock:
                self.session.log.refresh()
                return work(**fields)

        async def endpoint(request: Request) -> Response:
            raw = b""
            async for part in request.stream():
                raw += part
                if len(raw) > 100_000:
                    raise HTTPException(413, "the request has more than 100,000 bytes")
            path = {name: value for name, value in request.path_params.items() if name != "token"}
            fields = json.loads(raw) if request.method == "POST" else dict(request.query_params)
            return JSONResponse(await run_in_threadpool(locked, dict(fields) | path))

        return endpoint

    def _queue(self, show: str = "flagged", words: str = "") -> dict[str, Any]:
        """Return at most 10,000 pairs, those of them that are answered, and the present rate."""
        pairs = self.session.queue(show, words)
        listed = pairs[:10_000]
        answered = listed[self.session.answered[listed]]
        total = max(len(pairs), self.session.wanted)
        queue = {"total": total, "pairs": listed.tolist(), "answered": answered.tolist()}
        return queue if self.session.blind else queue | self.session.rate()

    def _answer(self, pair: int, action: str, **about: Any) -> dict[str, Any]:
        """Take an answer. The rate follows where that takes no tenth of a second."""
        session, made = self.session, self.session.answer(pair, action, **about)
        slow = session.calibration is not None and len(session.y) > 10_000
        return {"name": made.name} | ({} if session.blind or slow else {"rate": session.rate()})

    def _answer_all(self, action: str, alike: int | None = None, show: str = "", words: str = "") -> dict[str, Any]:
        """Answer about all pairs with the caption of one, or about all that are listed."""
        pairs = self.session.queue(show, str(words)) if alike is None else self.session.alike(alike)
        made = self.session.answer_all(pairs, action)
        return {"name": None, "changed": 0} if made is None else {"name": made.name, "changed": len(made.pairs)}

    def _undo(self, name: str) -> dict[str, Any]:
        made = self.session.undo(name)
        return {"pairs": [] if made is None else list(made.pairs)}

    def _image(self, request: Request) -> Response:
        pairs, i = self.session.pairs, request.path_params["pair"]
        if i >= len(pairs):
            raise HTTPException(404)
        with self.lock:
            data = pairs.images.read([int(pairs.image_index[i])])[0]
        small = None if data is None else thumbnail(data, 900)
        if small is None:
            raise HTTPException(404, "the data has no image of this pair, or it cannot be read")
        return Response(small, media_type="image/jpeg")


class _Guard:
    """Refuse who does not know the token, or comes from elsewhere, and give every answer :data:`HEADERS`."""

    def __init__(self, app: ASGIApp, hosts: list[str], token: str) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                if message["status"] != 200:
                    headers["Connection"] = "close"  # a body that was not read is not the next request
            await send(message)

        problem = self._problem(Request(scope))
        answer = self.app if problem is None else PlainTextResponse(problem, 403)
        await answer(scope, receive, guarded)

    def _problem(self, request: Request) -> str | None:
        if request.headers.get("host") not in self.hosts:
            return "this server answers to 127.0.0.1 alone"
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
        if origin not in (None, *(f"http://{host}" for host in self.hosts)) or site not in ("none", "same-origin"):
            return "requests of other sites are refused"
        token = request.scope["path"][1:].partition("/")[0]
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            return "the address lacks its token: open the one that was printed"
        return None


def _refused(request: Request, error: Exception) -> Response:
    text = str(error) if isinstance(error, ConfigError) else f"not understood: {error}"[:200]
    return JSONResponse({"error": text}, 400)


def _failed(request: Request, error: Exception) -> Response:
    return JSONResponse({"error": str(error)}, 500)
