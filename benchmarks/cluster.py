"""Runs on Ray against a run without it on the same cores.

`python -m benchmarks.cluster FOLDER OUT ACTORS pictures|bare` explains a folder in a process of its own, without Ray where ACTORS
is 0, and prints JSON: images per second after the first quarter, and seconds until the first result.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import torch

import pathx
from benchmarks.folders import BATCH, photos
from benchmarks.measure import THREADS, Effort, Row, run_python
from benchmarks.parts import part
from pathx.cluster import Actors
from pathx.results.store import Result
from pathx.runs.cluster import OnRay
from pathx.runs.run import Settings, explain_files


@part("ray", "A folder of photos on Ray (depth 3, width 5), per image, against a run without it on the same cores")
def on_ray(effort: Effort) -> Iterator[Row]:
    count = 48 if effort.quick else 1200
    with TemporaryDirectory() as place:
        photos(Path(place, "photos"), count)
        for what in ("pictures", "bare"):
            alone, *others = (_in_process(Path(place), actors, what) for actors in (0, 1, 2, 4))
            for actors, found in zip((1, 2, 4), others, strict=True):
                note = f"{found['rate'] / alone['rate']:.2f} of its rate; {found['start']:.0f} s until the first result"
                title = f"{actors} actors, {'with pictures' if what == 'pictures' else '--no-pictures'}"
                yield Row(title, 1 / found["rate"], "without Ray", 1 / alone["rate"], limit=1 / 0.85, note=note)


def _in_process(place: Path, actors: int, what: str) -> dict[str, float]:
    out = place / f"{what}-{actors}"
    printed = run_python(["-m", "benchmarks.cluster", str(place / "photos"), str(out), str(actors), what])
    found: dict[str, float] = json.loads(printed.splitlines()[-1])
    return found


def main(folder: str, out: str, actors: str, what: str) -> None:
    torch.set_num_threads(THREADS)
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # Ray maps much more than it uses
    settings = Settings(depth=3, width=5, batch_size=BATCH, pictures=what == "pictures")
    results: Iterator[Result]
    if actors == "0":
        results = explain_files(pathx.load_model(), [folder], out, settings=settings)
    else:
        pool = Actors(int(actors), int(actors))
        results = explain_files(
            pathx.load_model(), [folder], out, settings=settings, ray=OnRay(pathx.load_model, actors=pool)
        )
    count = sum(len(files) for _, _, files in os.walk(folder))
    began, times = perf_counter(), []
    for result in results:
        assert not result.failed, result.error
        times.append(perf_counter())
    # Processes start in the first quarter. Images come in pieces: those that came with the first one are not counted.
    first = times[count // 4]
    rate = sum(time > first + 0.1 for time in times) / (times[-1] - first)
    print(json.dumps({"rate": rate, "start": times[0] - began}))


if __name__ == "__main__":
    main(*sys.argv[1:])
