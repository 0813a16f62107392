"""A server that speaks OpenAI's chat completions: one address, tried again where it is busy, and no other host."""

import os
import threading
from contextlib import AbstractContextManager, suppress
from typing import Any

import httpx2

from cleanpairs.core import CleanpairsError, ConfigError, DataError


class Endpoint(AbstractContextManager["Endpoint"]):
    """Asks for chat completions, in its ``with`` block. Neither a redirect nor a proxy is followed. The key in the
    environment is sent to this server, and kept nowhere.

    Parameters
    ----------
    url : str
        Address without ``/chat/completions``, such as http://localhost:8000/v1.

    concurrency : int
        Connections at once.

    attempts : int
        How often a request is sent while the server is busy or cannot be reached.

    timeout : float
        Longest silence of the server, in seconds. An answer that comes in parts may take longer.

    backoff : float
        Time before the second attempt, in seconds. It doubles with each. The server may name another.
    """

    def __init__(self, url: str, *, concurrency: int, attempts: int, timeout: float, backoff: float) -> None:
        self.attempts, self.timeout, self.backoff = attempts, timeout, backoff
        self._key = os.environ.get("OPENAI_API_KEY", "").strip()
        if not (self._key.isascii() and (self._key + "x").isprintable()):
            raise ConfigError("OPENAI_API_KEY holds characters that no key has")
        try:
            self.url = httpx2.URL(f"{url.rstrip('/')}/chat/completions")
        except httpx2.InvalidURL:
            self.url = httpx2.URL("")
        if self.url.scheme not in ("http", "https") or not self.url.host or self.url.userinfo or self.url.query:
            raise ConfigError(
                "the address must be like http://localhost:8000/v1; a key belongs into the variable OPENAI_API_KEY"
            )
        self._limits, self._reached = httpx2.Limits(max_connections=concurrency), False
        self._stopped = threading.Event()
        self._error: CleanpairsError | None = None

    def __enter__(self) -> "Endpoint":
        self._stopped.clear()
        self._error = None
        headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
        self._client = httpx2.Client(headers=headers, timeout=self.timeout, trust_env=False, limits=self._limits)
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Ask nothing more."""
        self._stopped.set()
        self._client.close()

    def ask(self, body: dict[str, Any]) -> tuple[Any, str]:
        """Return the value that the server answers, None where it is no JSON. Else why there is none.

        Raises
        ------
        ConfigError
            The key, the address or the model is refused, or the server refers to another address.
        DataError
            The server cannot be reached, and was not before.
        CleanpairsError
            Another request has ended it.
        """
        why, wait = "", 0.0
        for attempt in range(self.attempts):
            if self._stopped.wait(wait or self.backoff * 2 ** (attempt - 1) if attempt else 0):
                why = "it was stopped"
                break
            try:
                response = self._client.post(self.url, json=body)
            except httpx2.TimeoutException:
                why, wait = f"no answer within {self.timeout:g} seconds", 0.0
                continue
            except (httpx2.RequestError, RuntimeError) as error:  # RuntimeError: it was closed meanwhile
                why, wait = f"{type(error).__name__}: {error}", 0.0
                continue
            self._reached, status = True, response.status_code
            why = f"status {status}: {self._without_key(str(response.content, 'utf-8', 'replace'))}"
            if status == 200:
                with suppress(ValueError, RecursionError):
                    return response.json(), ""
                return None, ""
            if status in (401, 403):
                raise self.ended(f"{self.url} refuses the key, which is to be in OPENAI_API_KEY: {why}")
            if status == 404:
                raise self.ended(f"{self.url} does not exist there, or not with this model: {why}")
            if response.is_redirect:
                target = self._without_key(response.headers.get("location", "another address"))
                raise self.ended(f"{self.url} refers to {target}, which is not asked: name the address itself")
            if status not in (408, 409, 429) and status < 500:
                return None, why
            given = response.headers.get("retry-after", "")
            wait = min(float(given), 60.0) if given.isdecimal() else 0.0
        if self._error is not None or not self._reached:
            raise self.ended(f"{self.url} cannot be asked: {why}", DataError)
        return None, f"{why} ({self.attempts} attempts)"

    def ended(self, why: str, kind: type[CleanpairsError] = ConfigError) -> CleanpairsError:
        """Ask nothing more. Return the error to raise: that of the request which ended it first."""
        self._error = self._error or kind(why)
        self.close()
        return self._error

    def _without_key(self, text: str) -> str:
        text = " ".join(text.split())
        return (text.replace(self._key, "***") if self._key else text)[:200]
