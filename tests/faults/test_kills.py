"""Killed at any moment and started again, a run writes what it would have written undisturbed, to the byte.

The moments are events of the run (a file named, a batch computed), chosen one by one, not seconds. How many are tried
depends on PATHX_FAULT_SECONDS; what they must show does not.
"""

from __future__ import annotations

import shutil
import signal
import sys
from pathlib import Path

import pytest
from support.command_line import network, scripted
from support.faults import (
    COMMANDS,
    MARKED_COMMANDS,
    SIGNALS,
    check_nothing_is_half_written,
    check_nothing_is_left_over,
    in_a_child,
    tree,
    trials,
)
from support.many import photos

pytestmark = [
    pytest.mark.usefixtures("here"),
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked"),
]


def moments(phases: list[str]) -> list[tuple[int, signal.Signals]]:
    """Every event of a run with every signal; those of rare phases as often as those of common ones."""
    times = {phase: max(1, max(map(phases.count, phases)) // phases.count(phase)) for phase in set(phases)}
    return [(at, number) for at, phase in enumerate(phases) for number in SIGNALS for _ in range(times[phase])]


@pytest.mark.parametrize("name", MARKED_COMMANDS)
def test_a_run_that_is_killed_goes_on(name: str) -> None:
    photos(3)
    scripted(network())
    log = Path("log")
    status, phases = in_a_child((*COMMANDS[name], "--out", "whole"), log)
    assert status == 0, log.read_text()
    whole = tree("whole")
    for at, number in trials(moments(phases), 1):
        phase = phases[at]
        shutil.rmtree("out", ignore_errors=True)
        what = f"{number.name} at event {at} of {len(phases)} ({phase})"
        status, _ = in_a_child((*COMMANDS[name], "--out", "out"), log, at, number)
        text = log.read_text()
        assert "Traceback" not in text and "unexpected" not in text, f"{what}: {text}"
        if number == signal.SIGKILL:
            assert status in (-9, 0), what
        else:
            assert status == 128 + number or (status == 0 and tree("out") == whole), f"{what}: {status} {text}"
        check_nothing_is_half_written("out")
        status, _ = in_a_child((*COMMANDS[name], "--out", "out"), log)
        assert status == 0, f"after {what}: {log.read_text()}"
        assert tree("out") == whole, what
        check_nothing_is_left_over("out")
