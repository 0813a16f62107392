"""The labelling page on this machine: a server on 127.0.0.1 that answers only to those who know its token.

The token begins every path. A request whose ``Host`` is another name (DNS rebinding), or whose ``Origin`` is another
site, is refused before its body is read. The page may load from this server alone.
"""

import hmac
import json
import secrets
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

from cleanpairs.audit.sheet import asset, thumbnail
from cleanpairs.core.errors import CleanpairsError, ConfigError
from cleanpairs.review.session import Review

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin", "Cross-Origin-Opener-Policy": "same-origin",
}  # fmt: skip
FILES = {"": "html", "review.js": "javascript", "review.css": "css"}  # the kinds of text
IMAGE = 900  # longest side, pixels
LISTS = 16  # that are remembered


class ReviewServer:
    """Answers at ``address`` while :meth:`serve` runs. It writes the plan and the labels into ``folder``.

    ``one`` is held while a decision is made or a question of the page is answered.
    """

    def __init__(self, review: Review, folder: str | Path, *, title: str = "Review") -> None:
        self.review, self.folder, self.title = review, folder, title
        self.token, self.one = secrets.token_urlsafe(24), threading.Lock()
        self.lists: dict[str, np.ndarray] = {}
        self._socket = socket.create_server(("127.0.0.1", 0))
        port = self._socket.getsockname()[1]
        self.hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
        self.address = f"http://{self.hosts[0]}/{self.token}/"
        self._uvicorn = uvicorn.Server(uvicorn.Config(
            self, http="h11", ws="none", lifespan="off", loop="asyncio", log_config=None, log_level="error",
            access_log=False, server_header=False, timeout_graceful_shutdown=5,
        ))  # fmt: skip

    def serve(self) -> None:
        """Answer until Ctrl-C, which is raised again, or until :meth:`stop`."""
        self._uvicorn.run(sockets=[self._socket])

    def stop(self) -> None:
        """Let :meth:`serve` return."""
        self._uvicorn.should_exit = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, as ASGI has it."""
        answer = await self._answer(Request(scope, receive))
        answer.headers.update(HEADERS)
        if answer.status_code != 200:
            answer.headers["Connection"] = "close"  # whatever of the body was not read is not the next request
        await answer(scope, receive, send)

    async def _answer(self, request: Request) -> Response:
        token, _, name = request.scope["path"][1:].partition("/")
        if (problem := self._problem(request, token)) is not None:
            return PlainTextResponse(problem, 403)
        if request.method not in ("GET", "POST"):
            return PlainTextResponse("this server answers GET and POST", 405)
        raw = b""
        async for part in request.stream():
            raw += part
            if len(raw) > 100_000:
                return PlainTextResponse("the request has more than 100,000 bytes", 413)
        return await run_in_threadpool(self._respond, request, name, raw)

    def _problem(self, request: Request, token: str) -> str | None:
        if request.headers.get("host") not in self.hosts:
            return "this server answers to 127.0.0.1 alone"
        origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
        if origin not in (None, *(f"http://{host}" for host in self.hosts)) or site not in ("none", "same-origin"):
            return "requests of other sites are refused"
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            return "the address lacks its token: open the one that was printed"
        return None

    def _respond(self, request: Request, name: str, raw: bytes) -> Response:
        try:
            if request.method == "GET" and name in FILES:
                text = asset(name or "review.html", "cleanpairs.review")
                return Response(text, media_type=f"text/{FILES[name]}")
            asked, _, number = name.partition("/")
            if asked == "image":
                return self._image(int(number))
            body = dict(json.loads(raw)) if request.method == "POST" else dict(request.query_params)
            with self.one:
                self.review.refresh()
                found = self._told(f"{request.method} {asked}", number, body)
        except CleanpairsError as error:
            return JSONResponse({"error": str(error)}, 400 if isinstance(error, ConfigError) else 500)
        except (ValueError, TypeError, KeyError, RecursionError, OverflowError) as error:
            return JSONResponse({"error": f"not understood: {error}"[:200]}, 400)
        except LookupError as error:
            return JSONResponse({"error": str(error)}, 410)
        return PlainTextResponse("there is no such page", 404) if found is None else JSONResponse(found)

    def _told(self, asked: str, number: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """What is answered to a question, with its query or body; None where there is no such one."""
        review, page = self.review, str(body.get("page", ""))[:64]
        match asked:
            case "GET state":
                return review.progress() | {"opened": len(review.log.decisions), "title": self.title}
            case "GET list":  # by a name under which its rows are had
                ids = review.listing(body.get("show", "undecided"), body.get("sort", "asked"), body.get("q", "")[:200])
                name = secrets.token_hex(8)
                self.lists[name] = ids
                if len(self.lists) > LISTS:
                    del self.lists[next(iter(self.lists))]
                return {"list": name, "total": len(ids), "rows": review.rows(ids[:100])}
            case "GET rows":
                start, count = int(body["start"]), int(body["count"])
                return {"start": start, "rows": review.rows(self._listed(body)[start : start + count])}
            case "GET pair":
                return review.pair(int(number))
            case "POST decide":
                i, donor, caption = int(body["pair"]), body.get("donor"), body.get("caption")
                review.decide(
                    [i], str(body["action"]), donor=None if donor is None else int(donor),
                    caption=None if caption is None else str(caption), page=page, sort=str(body.get("sort", "")),
                )  # fmt: skip
                return review.progress() | {"rows": review.rows(np.array([i]))}
            case "POST batch":
                ids = review.alike(int(body["alike"])) if "alike" in body else self._listed(body)
                made = review.decide_alike(ids, str(body["action"]), page)
                return review.progress() | {"changed": 0 if made is None else len(made.pairs)}
            case "POST undo":
                made = review.undo(page, int(body.get("opened", 0)))
                changed = np.array(() if made is None else made.pairs, np.int64)
                return review.progress() | {"changed": len(changed), "rows": review.rows(changed[:1])}
            case "POST write":
                return review.write(self.folder)
        return None

    def _listed(self, body: dict[str, Any]) -> np.ndarray:
        if (ids := self.lists.get(str(body.get("list")))) is None:
            raise LookupError("this list is forgotten: list anew")
        return ids

    def _image(self, i: int) -> Response:
        pairs = self.review.pairs
        if not 0 <= i < len(pairs):
            return PlainTextResponse("there is no such image", 404)
        with self.one:
            data = pairs.images.read([int(pairs.image_index[i])])[0]
        small = None if data is None else thumbnail(data, IMAGE)
        if small is None:
            why = "cannot be read" if data is not None or pairs.images.kind == "bytes" else "is not in the data"
            return PlainTextResponse(f"the picture {why}", 404)
        return Response(small, media_type="image/jpeg")
