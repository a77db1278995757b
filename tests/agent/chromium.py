"""A real Chromium without a window, driven over a pipe by its own protocol (CDP): no driver, no port, no dependency."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")


def find() -> str | None:
    """The program, where there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write = read, write
        self._last = 0
        self._rest = b""
        self.errors: list[str] = []  # exceptions and violations that the page reported
        target = self._send("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        attached = self._send("Target.attachToTarget", {"targetId": target, "flatten": True}, None)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command to the tab, and what it answers."""
        return self._send(method, parameters, self._session)

    def open(self, url: str) -> None:
        """Go to a page, and wait until it is loaded."""
        self.send("Page.navigate", url=url)
        self.wait(f"location.href.startsWith({url!r}) && document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        result = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait(self, condition: str, seconds: float = 60) -> None:
        """Until the condition holds in the page."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            watching = f"""new Promise((done) => {{
                const until = Date.now() + 2000;
                const look = () => ({condition}) ? done(true) : Date.now() > until ? done(false) : setTimeout(look, 30);
                look();
            }})"""
            try:
                if self.evaluate(watching):
                    return
            except AssertionError as error:  # the page was on its way to another
                if "navigat" not in str(error) and "destroyed" not in str(error):
                    raise
        raise AssertionError(f"never: {condition}\n{self.evaluate('document.body.innerText')}")

    def text(self) -> str:
        """All that is to be read."""
        return str(self.evaluate("document.body.innerText"))

    def type(self, text: str) -> None:
        """Into whatever has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """A key."""
        keys = {"key": key, "code": key, "windowsVirtualKeyCode": code}
        self.send("Input.dispatchKeyEvent", type="keyDown", text=text, **keys)
        self.send("Input.dispatchKeyEvent", type="keyUp", **keys)

    def enter(self) -> None:
        """The Enter key."""
        self.press("Enter", 13, "\r")

    def click(self, selector: str) -> None:
        """With the mouse, in the middle of an element."""
        where = self.evaluate(
            f"(() => {{ const e = document.querySelector({selector!r}); e.scrollIntoView({{block: 'center'}});"
            "const b = e.getBoundingClientRect(); return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        at = {"x": where[0], "y": where[1], "button": "left", "clickCount": 1}
        self.send("Input.dispatchMouseEvent", type="mousePressed", **at)
        self.send("Input.dispatchMouseEvent", type="mouseReleased", **at)

    def size(self, width: int, height: int, *, mobile: bool = False, dark: bool = False) -> None:
        """Of the window."""
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=mobile)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        """A PNG of what is seen."""
        path.write_bytes(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    def _send(self, method: str, parameters: dict[str, Any], session: str | None) -> dict[str, Any]:
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        os.write(self._write, json.dumps(message | ({"sessionId": session} if session else {})).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == self._last:
                assert "error" not in answer, answer
                return dict(answer["result"])
            if answer.get("method") == "Runtime.exceptionThrown":
                self.errors.append(json.dumps(answer["params"]["exceptionDetails"]))
            if answer.get("method") == "Log.entryAdded" and answer["params"]["entry"]["level"] == "error":
                self.errors.append(answer["params"]["entry"]["text"])

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._read], [], [], 120)
            assert ready, "Chromium does not answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "Chromium is gone"
            self._rest += piece
        message, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(message))


@contextmanager
def browsing(program: str, folder: Path) -> Iterator[Page]:
    """A browser with one tab and a profile of its own in `folder`."""
    (to_read, for_page), (from_page, to_write) = os.pipe(), os.pipe()
    command = (
        f'exec "{program}" --headless=new --remote-debugging-pipe --no-sandbox --disable-gpu --no-first-run '
        f'--disable-dev-shm-usage --disable-background-networking --user-data-dir="{folder}" '
        f"3<&{from_page} 4>&{for_page}"
    )
    process = subprocess.Popen(
        ["bash", "-c", command], pass_fds=(from_page, for_page), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    os.close(from_page), os.close(for_page)
    try:
        yield Page(to_read, to_write)
    finally:
        process.terminate()
        process.wait(30)
        os.close(to_read), os.close(to_write)
