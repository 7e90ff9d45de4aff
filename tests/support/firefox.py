"""Firefox as it is installed, without a driver: it speaks Marionette, JSON over a socket, by itself."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.browser import missing

_PREFERENCES = {
    "marionette.port": 0,  # any that is free; Firefox writes it down in its profile
    "network.proxy.type": 1,  # nothing goes out: there is no proxy at that address
    "network.proxy.http": "127.0.0.1",
    "network.proxy.http_port": 9,
    "network.proxy.ssl": "127.0.0.1",
    "network.proxy.ssl_port": 9,
}
_SECONDS = 90

_TROUBLE = """
const found = Services.console.getMessageArray().filter(one => one instanceof Ci.nsIScriptError);
Services.console.reset();
return found.filter(one => one.sourceName.startsWith("file:") || one.errorMessage.includes("Content-Security-Policy"))
  .map(one => `${one.errorMessage} (${one.sourceName}:${one.lineNumber})`);
"""
_REQUESTS = """return performance.getEntriesByType("resource").map(one => one.name)
  .filter(name => !/^(data|blob|file):/.test(name))"""


class Firefox:
    """A running Firefox with one window."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_SECONDS)
        self._rest, self._number = b"", 0
        self._message()  # how it greets
        self.call("WebDriver:NewSession", capabilities={})

    def call(self, command: str, **arguments: Any) -> Any:
        """One command of Marionette, and what it answers."""
        self._number += 1
        text = json.dumps([0, self._number, command, arguments]).encode()
        self._socket.sendall(b"%d:%s" % (len(text), text))
        _, number, error, result = self._message()
        assert number == self._number
        assert error is None, f"{error['error']}: {error['message']}"
        return result.get("value") if isinstance(result, dict) and set(result) == {"value"} else result

    def _message(self) -> Any:
        while b":" not in self._rest:
            self._more()
        size, _, self._rest = self._rest.partition(b":")
        while len(self._rest) < int(size):
            self._more()
        text, self._rest = self._rest[: int(size)], self._rest[int(size) :]
        return json.loads(text)

    def _more(self) -> None:
        part = self._socket.recv(1 << 16)
        assert part, "Firefox has closed the connection"
        self._rest += part

    @contextmanager
    def opened(self, file: Path, *, width: int = 1280) -> Iterator[None]:
        """A page from a file. Errors, what its policy refuses, and requests that leave this machine fail the test."""
        self._in_chrome(_TROUBLE)
        self.call("WebDriver:SetWindowRect", width=width, height=900)
        self.call("WebDriver:Navigate", url=file.resolve().as_uri())
        yield
        assert self.run(_REQUESTS) == []
        assert self._in_chrome(_TROUBLE) == []

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script in the page returns; `find(selector)` gives its elements as a list."""
        helper = "const find = (selector) => [...document.querySelectorAll(selector)];\n"
        return self.call("WebDriver:ExecuteScript", script=helper + script, args=arguments)

    def wait(self, condition: str) -> None:
        """Until an expression is true."""
        end = time.monotonic() + _SECONDS
        while not self.run(f"return !!({condition})"):
            assert time.monotonic() < end, f"{condition} never came true"
            time.sleep(0.05)

    def press(self, key: str) -> None:
        """A key, as a person presses it."""
        actions = [{"type": kind, "value": key} for kind in ("keyDown", "keyUp")]
        self.call("WebDriver:PerformActions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def _in_chrome(self, script: str) -> Any:
        self.call("Marionette:SetContext", value="chrome")
        try:
            return self.call("WebDriver:ExecuteScript", script=script, args=[])
        finally:
            self.call("Marionette:SetContext", value="content")

    def close(self) -> None:
        self.call("Marionette:Quit", flags=["eForceQuit"])
        self._socket.close()


@contextmanager
def firefox(profile: Path) -> Iterator[Firefox]:
    """Firefox without a screen, with a profile of its own."""
    program = next((found for name in ("firefox", "firefox-esr") if (found := shutil.which(name))), None)
    if program is None:
        pytest.skip("Firefox is not installed: apt install firefox-esr")
    lines = (f"user_pref({json.dumps(name)}, {json.dumps(value)});" for name, value in _PREFERENCES.items())
    (profile / "user.js").write_text("\n".join(lines))
    flags = ("--headless", "--marionette", "-remote-allow-system-access", "--no-remote", "--profile")
    command = [str(program), *flags, str(profile), "about:blank"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            running = Firefox(_port(profile, process))
            yield running
            running.close()
            process.wait(_SECONDS)
        finally:
            process.kill()


def _port(profile: Path, process: subprocess.Popen[bytes]) -> int:
    file = profile / "MarionetteActivePort"
    end = time.monotonic() + _SECONDS
    while time.monotonic() < end:
        if file.is_file() and (text := file.read_text().strip()):
            return int(text)
        if process.poll() is not None:
            break
        time.sleep(0.1)
    return int(missing("Firefox does not start here") or 0)
