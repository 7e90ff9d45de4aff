"""A signal is a request, and the second one ends the process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from pathx.runs.stop import Stop


def test_a_signal_is_a_request_that_is_looked_at_where_nothing_is_half_done(capfd: pytest.CaptureFixture[str]) -> None:
    stop, before = Stop(), signal.getsignal(signal.SIGTERM)
    with stop.on_signals():
        stop.check()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) is before
    assert capfd.readouterr().err.startswith("pathx: stopping when the current batch is written")
    with pytest.raises(KeyboardInterrupt) as raised:
        stop.check()
    assert raised.value.args == (signal.SIGTERM,)


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
