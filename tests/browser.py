"""Debian's Chromium without a window, driven over its own protocol.

https://chromedevtools.github.io/devtools-protocol/: commands and events are JSON on a web socket.
Nothing is downloaded, and the browser's own calls home are turned off.
"""

from __future__ import annotations

import base64
import itertools
import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from websockets.sync.client import ClientConnection, connect

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)
_PATIENCE = 180.0
_LARGEST = 2**26
KEYS = {"Enter": ("\r", 13), "Tab": ("\t", 9), " ": (" ", 32)}


class Tab:
    """One tab: pages are opened in it one after the other."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.numbers = itertools.count(1)
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and wait for its answer; events that come first are kept."""
        number = next(self.numbers)
        self.connection.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = self._message()
            if message.get("id") == number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result

    def open(self, path: Path) -> None:
        """Show a file, and forget what happened before."""
        self.screen()
        self.events.clear()
        self.ask("Page.navigate", url=path.as_uri())
        while not any(event["method"] == "Page.loadEventFired" for event in self.events):
            self._message()

    def screen(self, *, dark: bool = False, width: int = 1000) -> None:
        """Show the page as on a screen of some width."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=900,
            deviceScaleFactor=1,
            mobile=False,
        )

    def value(self, script: str) -> Any:
        """What an expression comes to, promises included."""
        found = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def click(self, script: str) -> None:
        """Press the mouse button upon the element that an expression finds."""
        place = self.value(
            f"(() => {{ const found = {script}; found.scrollIntoView({{block: 'center'}});"
            " const box = found.getBoundingClientRect();"
            " return [box.x + box.width / 2, box.y + box.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask(
                "Input.dispatchMouseEvent",
                type=kind,
                x=place[0],
                y=place[1],
                button="left",
                clickCount=1,
            )

    def press(self, key: str) -> None:
        """Press a key."""
        text, code = KEYS[key]
        common = {"key": key, "windowsVirtualKeyCode": code}
        self.ask("Input.dispatchKeyEvent", type="keyDown", text=text, **common)
        self.ask("Input.dispatchKeyEvent", type="keyUp", **common)

    def printed(self) -> bytes:
        """The page as a PDF."""
        found = self.ask("Page.printToPDF", printBackground=True)
        return base64.b64decode(found["data"])

    def picture(self, path: Path) -> None:
        """The whole page as a PNG file."""
        found = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))

    def complaints(self) -> list[str]:
        """Errors and warnings on the console, and uncaught exceptions."""
        self.value("0")  # whatever is on its way has arrived then
        found = []
        for event in self.events:
            told = event["params"]
            if event["method"] == "Runtime.exceptionThrown":
                found.append(str(told["exceptionDetails"]))
            elif event["method"] == "Log.entryAdded" and told["entry"]["level"] != "info":
                found.append(told["entry"]["text"])
            elif event["method"] == "Runtime.consoleAPICalled" and told["type"] != "log":
                found.append(str(told["args"]))
        return found

    def requested(self) -> list[str]:
        """Every address that was asked for."""
        self.value("0")
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event["method"] == "Network.requestWillBeSent"
        ]

    def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.connection.recv(timeout=_PATIENCE))
        if "method" in message:
            self.events.append(message)
        return message


@contextmanager
def chromium(program: str, profile: Path) -> Iterator[Tab]:
    """A browser of its own, with an empty profile, and its only tab."""
    command = [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet) as process:
        try:
            port = _port(profile / "DevToolsActivePort", process)
            with connect(_tab(port), max_size=_LARGEST) as connection:
                yield Tab(connection)
                connection.send(json.dumps({"id": 0, "method": "Browser.close"}))
            process.wait(_PATIENCE)
        finally:
            process.kill()


def _port(file: Path, process: subprocess.Popen[bytes]) -> int:
    end = time.monotonic() + _PATIENCE
    while not (file.exists() and file.read_text().count("\n") >= 1):
        assert process.poll() is None, f"Chromium ended with {process.returncode}"
        assert time.monotonic() < end, "Chromium did not open its port"
        time.sleep(0.05)
    return int(file.read_text().split()[0])


def _tab(port: int) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list") as answer:
        found = [tab for tab in json.load(answer) if tab["type"] == "page"]
    return str(found[0]["webSocketDebuggerUrl"])
