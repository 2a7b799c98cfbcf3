"""Drives a headless Chromium over its own pipe (no socket, no driver): one page, JSON messages ended by a zero byte."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import time
from pathlib import Path
from typing import Any

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
)  # fmt: skip
WAIT_SECONDS = 60.0
_LOOK_SECONDS = 0.03


class PageFailed(AssertionError):
    """The page did not do what was waited for."""


class Chromium:
    """One browser that shows one page at a time. `profile` is an empty folder."""

    def __init__(self, profile: Path) -> None:
        assert BROWSER is not None
        to_browser, self._commands = os.pipe()
        self._answers, from_browser = os.pipe()
        # The browser reads commands from descriptor 3 and answers on 4: ours must lie above, to be moved there.
        inside = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (to_browser, from_browser)]
        self._pid = os.posix_spawn(
            BROWSER,
            [BROWSER, *FLAGS, f"--user-data-dir={profile}", "--remote-debugging-pipe"],
            os.environ,
            file_actions=[
                (os.POSIX_SPAWN_DUP2, inside[0], 3),
                (os.POSIX_SPAWN_DUP2, inside[1], 4),
                (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
            ],
        )
        for end in (to_browser, from_browser, *inside):
            os.close(end)
        self._buffer = b""
        self._next_id = 0
        self._loaded = False
        self._session: str | None = None
        self._context: str | None = None
        self.errors: list[str] = []

    def begin(self) -> None:
        """Show an empty page, as a browser that was just installed; the page that was shown is closed."""
        self._session = None
        if self._context is not None:
            self.send("Target.disposeBrowserContext", browserContextId=self._context)
        self._context = self.send("Target.createBrowserContext")["browserContextId"]
        target = self.send("Target.createTarget", url="about:blank", browserContextId=self._context)["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setFocusEmulationEnabled", enabled=True)
        self.errors = []

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Give one command and wait for its answer; what the page complains of meanwhile goes to `errors`."""
        self._next_id += 1
        message = {"id": self._next_id, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            self._note(answer)
            if answer.get("id") == self._next_id:
                if "error" in answer:
                    raise PageFailed(f"{method}: {answer['error']}")
                return dict(answer["result"])

    def open(self, url: str) -> None:
        """Go to an address and wait until it is loaded."""
        self._loaded = False
        self.send("Page.navigate", url=url)
        while not self._loaded:
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            raise PageFailed(f"{expression}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until an expression is true; while the page goes elsewhere there is nothing to ask."""
        deadline = time.monotonic() + WAIT_SECONDS
        while not self._holds(expression):
            if time.monotonic() > deadline:
                raise PageFailed(f"still not so after {WAIT_SECONDS} s: {expression}; errors: {self.errors}")
            time.sleep(_LOOK_SECONDS)

    def press(self, key: str, code: int = 0, text: str = "") -> None:
        """Strike one key: `Tab` (9), `Enter` (13, text "\\r")."""
        details = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", **details, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **details)

    def resize(self, width: int, height: int, *, dark: bool = False) -> None:
        """Show the page on a screen of this size."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def screenshot(self, path: Path) -> None:
        """Keep a picture of the whole page."""
        picture = self.send("Page.captureScreenshot", captureBeyondViewport=True, format="png")
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """End the browser."""
        self._session = None
        self.send("Browser.close")
        os.waitpid(self._pid, 0)
        os.close(self._commands)
        os.close(self._answers)

    def _holds(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(f"Boolean({expression})"))
        except PageFailed:
            return False

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], WAIT_SECONDS)[0]:
                raise PageFailed(f"the browser said nothing for {WAIT_SECONDS} s")
            piece = os.read(self._answers, 65536)
            if not piece:
                raise PageFailed("the browser ended")
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, message: dict[str, Any]) -> None:
        if message.get("sessionId") != self._session:
            return
        self._loaded |= message.get("method") == "Page.loadEventFired"
        if message.get("method") == "Runtime.exceptionThrown":
            details = message["params"]["exceptionDetails"]
            self.errors.append(str(details.get("exception", details).get("description", details)))
        if message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
            self.errors.append(str(message["params"]["entry"]["text"]))
