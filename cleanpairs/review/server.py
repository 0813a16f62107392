"""The review as a page on this machine: a server on 127.0.0.1 that answers to who knows its token alone.

The token is the first part of every path. A request whose ``Host`` is another name (DNS rebinding), or whose ``Origin``
is another site, is refused; the page may load from this server alone.
"""

import hmac
import json
import secrets
import sys
import threading
from collections import OrderedDict
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
FILES = {"": "review.html", "review.js": "review.js", "review.css": "review.css"}
KINDS = {"html": "text/html", "js": "text/javascript", "css": "text/css"}
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
        self.lists: OrderedDict[str, np.ndarray] = OrderedDict()
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
                file = FILES[name]
                kind = f"{KINDS[file.rpartition('.')[2]]}; charset=utf-8"
                return self._send(200, asset(file, "cleanpairs.review").encode(), kind)
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

    def do_POST(self) -> None:
        self.do_GET()

    def _problem(self, token: str) -> str | None:
        hosts = [f"{name}:{self.server.server_port}" for name in ("127.0.0.1", "localhost")]
        if self.headers.get("host", "") not in hosts:
            return "this server answers to 127.0.0.1 alone"
        origin = self.headers.get("origin")
        if origin is not None and origin not in [f"http://{host}" for host in hosts]:
            return "requests of other sites are refused"
        if self.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
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
                while len(self.server.lists) > LISTS:
                    self.server.lists.popitem(last=False)
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
                changed = [] if made is None else list(made.pairs)
                rows = review.rows(np.array(changed[:1], np.int64))
                return review.progress() | {"changed": len(changed), "rows": rows}
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
        ended = {} if status == 200 else {"Connection": "close"}
        about = {"Content-Type": kind, "Content-Length": str(len(data))}
        for name, value in {**HEADERS, **about, **ended}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
