"""Measuring: interleaved medians, peak memory of a process, and the machine it all happened on."""

from __future__ import annotations

import gc
import json
import os
import platform
import resource
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import median
from time import process_time
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
THREADS = 1
WARM_UP = 2
"""Rounds that do not count."""
SLOW = 5.0
"""Seconds from which on a call is warm after two."""


@dataclass(frozen=True)
class Row:
    """One figure of a table.

    Args:
        what: what was measured.
        value: the median, in `unit`.
        against: what it is compared with; empty where the figure stands for itself.
        reference: the median of that.
        limit: what the figure may be at most; None where there is no target.
        note: anything a reader of the table should know.
    """

    what: str
    value: float
    against: str = ""
    reference: float | None = None
    unit: str = "s"
    limit: float | None = None
    note: str = ""

    @property
    def figure(self) -> float:
        """The ratio to the reference, or the value where there is none."""
        return self.value if self.reference is None else self.value / self.reference


@dataclass(frozen=True)
class Effort:
    """How thorough a run is.

    Args:
        repeats: timed runs of each call; slow calls may take fewer.
        quick: leave out the large models and settings.
    """

    repeats: int
    quick: bool


def seconds(call: Callable[[], object]) -> float:
    """CPU time of a call, that of its child processes included: other work on the machine hardly disturbs it."""
    start = _cpu_time()
    call()
    return _cpu_time() - start


def _cpu_time() -> float:
    times = os.times()
    return process_time() + times.children_user + times.children_system


def interleaved(calls: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Median seconds of each call over rounds A B C, A B C, …, after some rounds that do not count.

    A machine that slows down for a while slows all of them, so their ratios hold where their times do not.
    """
    for call in calls.values():
        for _ in range(1 if seconds(call) > SLOW else WARM_UP - 1):
            call()
    gc.collect()
    rounds = [{name: seconds(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: median(times[name] for times in rounds) for name in calls}


def limit_memory() -> None:
    """Let a call that wants most of the machine's memory fail, here and in child processes, before the machine does."""
    share = round(_memory() * 0.7)
    resource.setrlimit(resource.RLIMIT_AS, (share, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    described = ["git", "describe", "--always", "--dirty", "--abbrev=10"]
    commit = subprocess.run(described, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "memory_gib": round(_memory() / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "torchvision", "captum")},
        "commit": commit or "unknown",
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")


def in_process(*arguments: str) -> dict[str, float]:
    """Run `python -m benchmarks.memory …` in a process of its own and read the JSON that it prints."""
    found = run_python(["-m", "benchmarks.memory", *arguments])
    result: dict[str, float] = json.loads(found)
    return result


def run_python(arguments: Sequence[str]) -> str:
    """Standard output of this Python, run in the project's folder with as many threads as the rest.

    Modules are compiled once, as they are when a package is installed, whatever this shell says of that.
    """
    environment = {**os.environ, "OMP_NUM_THREADS": str(THREADS), "PYTHONDONTWRITEBYTECODE": ""}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        reason = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise RuntimeError(f"python {' '.join(arguments)} failed: {reason[-1]}")
    return done.stdout
