"""What people see of a run: progress, counts and failures."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
import threading
from pathlib import Path

import pytest
from support.command_line import Pathx, config, network, scripted
from support.many import lines, photos

from pathx.commands import output

pytestmark = pytest.mark.usefixtures("here", "patience")


def test_progress_in_plain_lines(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "EVERY", 0)
    arguments = ("explain", photos(12), "none.png", "--model", scripted(network()), "--no-pictures")
    done = pathx_(*arguments)
    assert done.status == 1
    progress = [line for line in done.err.splitlines() if " per second" in line]
    assert len(progress) == 13
    assert progress[2].startswith("pathx: images: 3 of 13, ") and progress[2].endswith(" left")
    assert ", 1 failed" in progress[-1]
    *_, summary, last = done.err.splitlines()
    assert summary.startswith("pathx: 12 explained, 1 failed in ")
    assert last == "pathx: 1 of 13 images failed; the rest is in pathx-out"
    assert pathx_(*arguments, "--quiet", "--overwrite").err.splitlines() == [
        "pathx: none.png: no such file; check the path",
        last,
    ]


def test_a_bar_where_there_is_a_terminal(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(12)
    Path("photos/a/bad.jpg").write_text("no picture")
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def listen() -> None:
        with contextlib.suppress(OSError):  # the other end is closed
            while data := os.read(ours, 1 << 16):
                shown.append(data)

    listener = threading.Thread(target=listen)
    listener.start()
    with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        done = pathx_("explain", "photos", "--model", scripted(network()), "--no-pictures", "--batch-size", 1)
    listener.join(10)
    os.close(ours)
    text = b"".join(shown).decode()
    assert done.status == 1
    assert "━" in text and "/13" in text and " per second" in text and "1 failed" in text
    assert "pathx: photos/a/bad.jpg is not an image" in text


def test_the_first_failure_may_end_it(pathx_: Pathx) -> None:
    photos(30)
    Path("photos/a/1.png").write_text("no picture")
    arguments = ("explain", "photos", "--model", scripted(network()), "--batch-size", 1, "--no-pictures")
    done = pathx_(*arguments, *config(workers=1, fail_fast=True))
    assert done.status == 1
    assert done.err.splitlines()[-1] == "pathx: stopped at the first failure; run the same command again to continue"
    assert 2 <= len(lines("pathx-out")) < 20
    done = pathx_(*arguments)
    assert len(lines("pathx-out")) == 30
    assert done.status == 1
