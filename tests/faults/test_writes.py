"""Whatever write fails, and with whatever error: one line, nothing half-written, and the next run completes the work."""

from __future__ import annotations

import errno
import shutil
from itertools import product
from pathlib import Path

import pytest
from support.command_line import network, scripted
from support.faults import (
    COMMANDS,
    ERRORS,
    MARKED_COMMANDS,
    Refusal,
    call,
    check_nothing_is_half_written,
    tree,
    trials,
    watched,
)
from support.many import photos

pytestmark = [
    pytest.mark.usefixtures("here"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
]


@pytest.mark.parametrize("name", MARKED_COMMANDS)
def test_a_write_that_fails(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    photos(3)
    scripted(network())
    arguments = (*COMMANDS[name], "--out")
    counted = Refusal(-2, errno.EIO)
    with watched(counted):
        assert call((*arguments, "whole")) == 0, capsys.readouterr().err
    whole = tree("whole")
    assert counted.seen > 10
    for at, number, lasting in trials(product(range(counted.seen), ERRORS, (False, True)), 1):
        what = Refusal(at, number, lasting)
        shutil.rmtree("out", ignore_errors=True)
        capsys.readouterr()
        with watched(what):
            status = call((*arguments, "out"))
        err = capsys.readouterr().err
        assert "Traceback" not in err and "unexpected" not in err, f"{what}: {err}"
        # Where only what is needed no more could not be removed, all was done.
        done = status == 0 and (not lasting or whole.items() <= tree("out").items())
        assert status in (1, 2) or done, f"{what}: {status} {err}"
        check_nothing_is_half_written("out")
        if not lasting:
            assert not list(Path("out").rglob("*.part")), what
        assert call((*arguments, "out")) == 0, f"after {what}: {capsys.readouterr().err}"
        assert tree("out") == whole, what
