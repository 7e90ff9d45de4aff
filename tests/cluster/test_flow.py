"""How much is under way at once on a real Ray: what waits between stages, and how many processes read and write."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pathx.cluster import AHEAD, Actors, Cluster, Stages

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    pytest.mark.usefixtures("here"),
]
BATCHES = 40


def test_long_runs_hold_no_more_than_short_ones(cluster: Any, here: Path) -> None:
    import ray

    made, written, writing, seen = (here / name for name in ("made", "written", "writing", "seen"))
    writing.mkdir()

    def count(file: Path) -> int:
        return file.stat().st_size if file.exists() else 0

    def note(file: Path, text: str) -> None:
        with file.open("a") as stream:
            stream.write(text)

    def quickly() -> Callable[[Any], Any]:
        def compute(batch: Any) -> Any:
            note(made, "x")
            return batch

        return compute

    def slowly(batch: Any) -> Any:
        mine = writing / str(os.getpid())
        mine.touch()
        note(seen, f"{len(list(writing.iterdir()))} {count(made) - count(written)}\n")
        time.sleep(0.1)
        mine.unlink()
        note(written, "x")
        return batch

    one = Cluster(ray, Actors(1, 1), "cpu", grows=False)
    stages = Stages(lambda batch: batch, quickly, slowly)
    outcomes = list(one.outcomes([[number] for number in range(BATCHES)], stages))
    assert sorted(value[0] for _, value in outcomes) == list(range(BATCHES))
    processes, waiting = zip(*(map(int, line.split()) for line in seen.read_text().splitlines()), strict=True)
    cpus = int(ray.cluster_resources()["CPU"])
    assert max(processes) <= cpus
    assert max(waiting) <= AHEAD
