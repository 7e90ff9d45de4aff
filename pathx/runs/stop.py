"""Ending early: what Ctrl-C and SIGTERM do, without losing anything.

A handler never raises. An exception out of nowhere inside code that others wrote, such as TorchScript's interpreter, is
taken there for a fault of the model and changes what comes out. So a signal is a request that is looked at between two
batches; where nothing could be lost, and the second time, it ends the process there and then.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import NoReturn

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """A request to end a run early.

    Args:
        asked: the signal that asked, or 0.
    """

    def __init__(self) -> None:
        self.asked = 0

    def ask(self, number: int = signal.SIGINT) -> None:
        self.asked = number

    def check(self) -> None:
        """Raise KeyboardInterrupt if it was asked for; to be called where nothing is half done."""
        if self.asked:
            raise KeyboardInterrupt(self.asked)

    @contextmanager
    def on_signals(self) -> Iterator[None]:
        """Take Ctrl-C and SIGTERM as requests; a second one does not wait for anything."""
        with _handle_signals(self._on_signal):
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            _end(number)
        self.ask(number)
        _say("stopping when the current batch is written; a second signal stops at once")


def end_at_once() -> None:
    """From now on Ctrl-C and SIGTERM end the process with one line, except while a run takes them as requests."""
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: _end(number))


@contextmanager
def _handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _end(number: int) -> NoReturn:
    with suppress(Exception):
        sys.stdout.flush()
    _say("interrupted; run the same command again to continue")
    os._exit(128 + number)


def _say(text: str) -> None:
    with suppress(OSError):
        os.write(2, f"pathx: {text}\n".encode())
