"""A headless Chromium, driven through its DevTools pipe: no driver and no further package is needed."""

from __future__ import annotations

import base64
import fcntl
import io
import itertools
import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from PIL import Image

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE = 600.0  # seconds: a start on a busy machine is slow
# Chromium takes its orders from descriptor 3 and answers on 4.
START = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.dup2(int(sys.argv[2]), 4); os.execv(sys.argv[3], sys.argv[3:])"
)


class Browser:
    """One process; :meth:`open` gives a tab."""

    def __init__(self, binary: str, profile: Path) -> None:
        there, here = os.pipe(), os.pipe()
        # above 9, so that neither dup2 in the child hits the other one
        orders, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (there[0], here[1]))
        self._process = subprocess.Popen(
            [
                sys.executable, "-c", START, str(orders), str(answers), binary, "--headless=new", "--no-sandbox",
                "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
                "--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe",
                f"--user-data-dir={profile}",
            ],
            pass_fds=(orders, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        for fd in (there[0], here[1], orders, answers):
            os.close(fd)
        self._write, self._read = there[1], here[0]
        self._number = itertools.count(1)
        self._inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        rest = b""
        while chunk := os.read(self._read, 1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in messages:
                self._inbox.put(json.loads(message))

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        """What the browser answers to a method of its protocol."""
        number = next(self._number)
        message = {"id": number, "method": method, "params": params} | ({"sessionId": session} if session else {})
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        return self._wait(lambda m: m.get("id") == number)

    def _wait(self, wanted: Any) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while True:
            message = self._inbox.get(timeout=max(0.01, end - time.monotonic()))
            if "method" in message:
                self.events.append(message)
            if wanted(message):
                assert "error" not in message, message["error"]
                return dict(message.get("result") or message)

    def open(self, page: Path | str, downloads: Path) -> Tab:
        """A tab that shows a page, of 1200 x 900 pixels."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads), eventsEnabled=True)
        tab = Tab(self, target, session)
        for domain in ("Page", "Runtime", "Log", "DOM"):
            tab.call(f"{domain}.enable")
        tab.look(1200, 900)
        tab.go(page)
        return tab

    def close(self) -> None:
        """End the process."""
        self.call("Browser.close")
        self._process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        os.close(self._write)
        os.close(self._read)


class Tab:
    """A page of the browser, with the errors that it met."""

    def __init__(self, browser: Browser, target: str, session: str) -> None:
        self.browser, self._target, self._session = browser, target, session

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """As of :class:`Browser`."""
        return self.browser.call(method, self._session, **params)

    def go(self, page: Path | str) -> None:
        """Show a page, and wait until it is loaded."""
        before = len(self.browser.events)
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        if not any(e["method"] == "Page.loadEventFired" for e in self.browser.events[before:]):
            self.browser._wait(lambda m: m.get("method") == "Page.loadEventFired")

    def until(self, expression: str) -> None:
        """Wait until a JavaScript expression is true."""
        end = time.monotonic() + PATIENCE
        while not self.run(expression):
            assert time.monotonic() < end, f"never true: {expression}"
            time.sleep(0.02)

    def look(self, width: int, height: int, scheme: str = "light") -> None:
        """The size of the window, and whether the system is light or dark."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        self.call("Emulation.setEmulatedMedia", features=[
            {"name": "prefers-color-scheme", "value": scheme}, {"name": "prefers-reduced-motion", "value": "reduce"},
        ])  # fmt: skip

    def run(self, expression: str) -> Any:
        """The value of a JavaScript expression, or of the promise that it is."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result["exceptionDetails"]
        return result["result"].get("value")

    def key(self, key: str) -> None:
        """Press and release it."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **(text if kind == "keyDown" else {}))

    def fill(self, element: str, value: str) -> None:
        """The value of an input, as if it had been typed."""
        self.run(
            f"(() => {{ const e = document.getElementById({element!r}); e.value = {json.dumps(value)}; "
            "e.dispatchEvent(new Event('input', { bubbles: true })); })()"
        )

    def screenshot(self) -> Image.Image:
        """What is seen."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        return Image.open(io.BytesIO(base64.b64decode(data))).convert("RGB")

    def contrast(self, one: str, other: str) -> float:
        """Of two colours that are variables of the style, such as ``--ink``: 1 to 21, as WCAG 2.1 has it."""
        paint = (
            "(() => { const s = getComputedStyle(document.documentElement), c = document.createElement('canvas')"
            f".getContext('2d', {{ willReadFrequently: true }}); return {json.dumps([one, other])}.map(n => {{ "
            "c.fillStyle = s.getPropertyValue(n); c.fillRect(0, 0, 1, 1); "
            "return [...c.getImageData(0, 0, 1, 1).data].slice(0, 3).map(v => v / 255)"
            ".map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }); })()"
        )
        low, high = sorted(0.2126 * r + 0.7152 * g + 0.0722 * b for r, g, b in self.run(paint))
        return (high + 0.05) / (low + 0.05)

    def errors(self) -> list[str]:
        """What the console would show in red, and uncaught exceptions."""
        found = []
        for event in self.browser.events:
            method, params = event["method"], event.get("params", {})
            if event.get("sessionId") != self._session:
                continue
            if method == "Runtime.exceptionThrown":
                found.append(str(params["exceptionDetails"]))
            elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
                found.append(params["entry"]["text"])
            elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
                found.append(str(params["args"]))
        return found

    def close(self) -> None:
        """Close it."""
        self.browser.call("Target.closeTarget", targetId=self._target)


def start(profile: Path) -> Browser | None:
    """A browser of this machine; None where there is none, or it does not start."""
    binary = next((found for name in NAMES if (found := shutil.which(name))), None)
    if binary is None:
        return None
    browser = Browser(binary, profile)
    try:
        browser.call("Browser.getVersion")
    except queue.Empty:
        return None
    return browser
