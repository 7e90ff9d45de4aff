"""The first signal is a request (see test_folders.py), the second one ends the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_the_second_signal_ends_the_process_there_and_then(number: signal.Signals) -> None:
    script = f"""
import os
from pathx.runs.stop import Stop
with Stop().on_signals():
    for _ in range(3):
        os.kill(os.getpid(), {int(number)})
print("never")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert done.stderr.splitlines()[-1] == "pathx: interrupted; run the same command again to continue"
