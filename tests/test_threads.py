"""Who goes first where cores are few: what a thread in the background takes, and what it leaves to others."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import torch

from pathx.threads import cores, stay_in_the_background


def test_a_process_has_the_cores_that_it_may_use() -> None:
    assert 1 <= cores() <= (os.cpu_count() or 1)
    if hasattr(os, "sched_setaffinity"):
        alone = "os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])"
        program = f"import os; from pathx.threads import cores; {alone}; print(cores())"
        assert subprocess.run([sys.executable, "-c", program], capture_output=True, check=True).stdout.strip() == b"1"


def test_a_thread_in_the_background_leaves_the_others_as_they_are() -> None:
    mine, before = [], torch.get_num_threads()
    torch.set_num_threads(2)

    def work() -> None:
        stay_in_the_background()
        mine.append(torch.get_num_threads())

    try:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert mine == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
def test_it_comes_after_those_who_compute_however_late_these_are() -> None:
    program = """
import os, threading
from pathx.threads import stay_in_the_background
os.nice(3)
found = []
def work():
    for _ in range(3):
        stay_in_the_background()
        found.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
thread = threading.Thread(target=work)
thread.start()
thread.join()
print(*found, os.getpriority(os.PRIO_PROCESS, os.getpid()))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    *found, others = map(int, done.stdout.split())
    assert found == [min(19, others + 10), 19, 19]
