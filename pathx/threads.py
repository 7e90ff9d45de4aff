"""Cores, and who goes first where there are too few: those who compute, before those who read and write."""

from __future__ import annotations

import os
import sys
import threading
from contextlib import suppress

import torch

_LATER = 10
"""By how much the priority of the others is lower."""


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def stay_in_the_background() -> None:
    """Have this thread, of this process or of one of its own, leave the cores to those who compute.

    The threads of a network wait for each other; where one of them has to wait for somebody else, all of them do.
    """
    torch.set_num_threads(1)  # torch has a number of threads for each thread: others keep their own
    if sys.platform == "linux":
        with suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, now + _LATER))
