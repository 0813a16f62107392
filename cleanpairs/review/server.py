"""The review as a page on this machine: a server on 127.0.0.1 that answers to who knows its token alone.

The token begins every path. A request whose ``Host`` is another name (DNS rebinding), or whose ``Origin`` is another
site, is refused; the page may load from this server alone.
"""

import hmac
import json
import secrets
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

import numpy as np

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
SAME_SITE = ("none", "same-origin")
IMAGE = 900  # longest side, pixels
MOST_BODY = 100_000  # bytes
LISTS = 16  # that are remembered


class ReviewServer(ThreadingHTTPServer):
    """Answers at ``address``, while :meth:`serve_forever` runs; plan and labels are written into ``folder``.

    ``one`` is held while a decision is made or a page's question answered: whoever holds it is alone.
    """

    def __init__(self, review: Review, folder: str | Path, *, title: str = "Review") -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.review, self.folder, self.title = review, folder, title
        self.token, self.one = secrets.token_urlsafe(24), threading.Lock()
        self.lists: dict[str, np.ndarray] = {}
        self.address = f"http://127.0.0.1:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A page that does not wait for its pictures is no error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: ReviewServer
    protocol_version, wbufsize, disable_nagle_algorithm = "HTTP/1.1", -1, True

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address of a request holds the token."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        token, _, name = unquote(path)[1:].partition("/")
        raw = self.rfile.read(min(int(self.headers.get("content-length") or 0), MOST_BODY))
        if (problem := self._problem(token)) is not None:
            return self._send(403, problem.encode())
        try:
            if self.command == "GET" and name in FILES:
                text = asset(name or "review.html", "cleanpairs.review")
                return self._send(200, text.encode(), f"text/{FILES[name]}; charset=utf-8")
            asked, _, number = name.partition("/")
            if asked == "image":
                return self._image(int(number))
            body = dict(json.loads(raw)) if self.command == "POST" else dict(parse_qsl(query))
            with self.server.one:
                self.server.review.refresh()
                found = self._told(asked, number, body)
        except CleanpairsError as error:
            self._json(400 if isinstance(error, ConfigError) else 500, {"error": str(error)})
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            self._json(400, {"error": f"not understood: {error}"[:200]})
        except LookupError as error:
            self._json(410, {"error": str(error)})
        else:
            self._json(200, found) if found is not None else self._send(404, b"there is no such page")

    do_POST = do_GET  # noqa: N815

    def _problem(self, token: str) -> str | None:
        hosts = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        if self.headers.get("host", "") not in hosts:
            return "this server answers to 127.0.0.1 alone"
        ours = [None, *(f"http://{host}" for host in hosts)]
        if self.headers.get("origin") not in ours or self.headers.get("sec-fetch-site", "none") not in SAME_SITE:
            return "requests of other sites are refused"
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.server.token.encode()):
            return "the address lacks its token: open the one that was printed"
        return None

    def _told(self, asked: str, number: str, body: dict[str, Any]) -> dict[str, Any] | None:
        """What is answered to a question, with its query or body; None where there is no such one."""
        review, page = self.server.review, str(body.get("page", ""))[:64]
        match self.command, asked:
            case "GET", "state":
                about = {"vectors": review.pairs.images.kind != "bytes", "opened": len(review.log.decisions)}
                return review.progress() | about | {"title": self.server.title}
            case "GET", "list":  # by a name under which its rows are had
                ids = review.listing(body.get("show", "undecided"), body.get("sort", "asked"), body.get("q", "")[:200])
                name = secrets.token_hex(8)
                self.server.lists[name] = ids
                if len(self.server.lists) > LISTS:
                    del self.server.lists[next(iter(self.server.lists))]
                return {"list": name, "total": len(ids), "rows": review.rows(ids[:100])}
            case "GET", "rows":
                start, count = int(body["start"]), int(body["count"])
                return {"start": start, "rows": review.rows(self._listed(body)[start : start + count])}
            case "GET", "pair":
                return review.pair(int(number))
            case "POST", "decide":
                i, donor, caption = int(body["pair"]), body.get("donor"), body.get("caption")
                review.decide(
                    [i], str(body["action"]), donor=None if donor is None else int(donor),
                    caption=None if caption is None else str(caption), page=page, sort=str(body.get("sort", "")),
                )  # fmt: skip
                return review.progress() | {"rows": review.rows(np.array([i]))}
            case "POST", "batch":
                ids = review.alike(int(body["alike"])) if "alike" in body else self._listed(body)
                made = review.decide_alike(ids, str(body["action"]), page)
                return review.progress() | {"changed": 0 if made is None else len(made.pairs)}
            case "POST", "undo":
                made = review.undo(page, int(body.get("opened", 0)))
                changed = np.array(() if made is None else made.pairs, np.int64)
                return review.progress() | {"changed": len(changed), "rows": review.rows(changed[:1])}
            case "POST", "write":
                return review.write(self.server.folder)
        return None

    def _listed(self, body: dict[str, Any]) -> np.ndarray:
        if (ids := self.server.lists.get(str(body.get("list")))) is None:
            raise LookupError("this list is forgotten: list anew")
        return ids

    def _image(self, i: int) -> None:
        pairs = self.server.review.pairs
        if not 0 <= i < len(pairs) or pairs.images.kind != "bytes":
            return self._send(404, b"there is no such image")
        with self.server.one:
            data = pairs.images.read([int(pairs.image_index[i])])[0]
        small = None if data is None else thumbnail(data, IMAGE)
        return self._send(404, b"the image cannot be read") if small is None else self._send(200, small, "image/jpeg")

    def _json(self, status: int, found: dict[str, Any]) -> None:
        self._send(status, json.dumps(found).encode(), "application/json")

    def _send(self, status: int, data: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response_only(status)
        about = HEADERS | {"Content-Type": kind, "Content-Length": str(len(data))}
        for name, value in (about if status == 200 else about | {"Connection": "close"}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
