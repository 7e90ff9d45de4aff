"""Runs on Ray against a run without it on the same cores, and memory over many small images.

`python -m benchmarks.cluster FOLDER OUT ACTORS pictures|bare|memory [MODEL]` explains a folder in a process of its own, without Ray
where ACTORS is 0, and prints JSON: images per second after the first quarter, seconds until the first result, and for `memory`,
which is without pictures as `bare` is, how many images were done and how many MiB all processes and Ray's store held, forty times.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from PIL import Image
from torch import nn

import pathx
from benchmarks.folders import BATCH, photos
from benchmarks.measure import THREADS, Effort, Row, run_python
from benchmarks.parts import part
from pathx.cluster import Actors
from pathx.results.store import Result
from pathx.runs.cluster import OnRay
from pathx.runs.run import Settings, explain_files

SMALL = 32
"""Sides of the small images."""

SAMPLES = 40
"""How often memory is measured in the course of a run."""


@part("ray", "A folder of photos on Ray (depth 3, width 5), per image, against a run without it on the same cores")
def on_ray(effort: Effort) -> Iterator[Row]:
    count, rounds = (48, 1) if effort.quick else (1200, 1)
    with TemporaryDirectory() as place:
        photos(Path(place, "photos"), count)
        for what in ("pictures", "bare"):
            found: dict[int, list[dict[str, Any]]] = {actors: [] for actors in (0, 1, 2, 4)}
            for number, actors in product(range(rounds), found):
                out = Path(place, f"{what}-{number}-{actors}")
                found[actors].append(_in_process(Path(place, "photos"), out, actors, what))
            seconds = {actors: median(1 / one["rate"] for one in several) for actors, several in found.items()}
            for actors in (1, 2, 4):
                start = median(one["start"] for one in found[actors])
                note = f"{seconds[0] / seconds[actors]:.2f} of its rate; {start:.0f} s until the first result"
                title = f"{actors} actors, {'with pictures' if what == 'pictures' else '--no-pictures'}"
                yield Row(title, seconds[actors], "without Ray", seconds[0], limit=1 / 0.85, note=note)


@part(
    "ray-flat",
    "Memory of a run on Ray over small images, all processes and Ray's store: the most from a tenth of it on",
)
def flat(effort: Effort) -> Iterator[Row]:
    count = 400 if effort.quick else 20_000
    with TemporaryDirectory() as place:
        small_images(Path(place, "photos"), count)
        model = small_network(Path(place, "model.pt"))
        found = _in_process(Path(place, "photos"), Path(place, "out"), 1, "memory", str(model))
    after = [processes + store for number, processes, store in found["memory"] if number >= count / 10]
    tenths = ", ".join(f"{processes:.0f} + {store:.0f}" for _, processes, store in found["memory"][3::4])
    note = f"processes and store after each tenth: {tenths}; {found['rate']:.0f} images per second"
    yield Row(f"{count} images", max(after), "after a tenth", after[0], "MiB", limit=1.1, note=note)


def small_images(place: Path, count: int) -> None:
    """PNGs of 32 x 32 in folders of a thousand."""
    for number in range(count):
        file = place / f"{number // 1000:03}" / f"{number:06}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        drawn = torch.randint(0, 256, (SMALL * SMALL * 3,), generator=torch.Generator().manual_seed(number))
        Image.frombytes("RGB", (SMALL, SMALL), bytes(drawn.tolist())).save(file)


def small_network(file: Path) -> Path:
    """Three convolutions and two linear layers, as for CIFAR-10, with random weights."""
    torch.manual_seed(0)
    convolutions = [
        layer
        for before, after in ((3, 32), (32, 64), (64, 64))
        for layer in (nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    ]
    linear = nn.Flatten(), nn.Linear(1024, 128), nn.ReLU(), nn.Linear(128, 10)
    torch.jit.save(torch.jit.script(nn.Sequential(*convolutions, *linear).eval()), str(file))
    sidecar = {"input_size": [3, SMALL, SMALL], "mean": [0.5] * 3, "std": [0.25] * 3}
    file.with_suffix(".json").write_text(json.dumps(sidecar))
    return file


def _in_process(folder: Path, out: Path, actors: int, what: str, *model: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        run_python(["-m", "benchmarks.cluster", str(folder), str(out), str(actors), what, *model]).splitlines()[-1]
    )
    return found


def main(folder: str, out: str, actors: str, what: str, model: str | None = None) -> None:
    torch.set_num_threads(THREADS)
    most = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (most, most))  # Ray maps much more than it uses
    load = partial(pathx.load_model, *([model] if model else []))
    settings = Settings(depth=3, width=5, batch_size=BATCH, pictures=what == "pictures")
    results: Iterator[Result]
    if actors == "0":
        results = explain_files(load(), [folder], out, settings=settings)
    else:
        pool = Actors(int(actors), int(actors))
        results = explain_files(load(), [folder], out, settings=settings, ray=OnRay(load, actors=pool))
    count = sum(len(files) for _, _, files in os.walk(folder))
    began, times, memory = perf_counter(), [], []
    for number, result in enumerate(results, start=1):
        assert not result.failed, result.error
        times.append(perf_counter())
        if what == "memory" and number % (count // SAMPLES) == 0:
            memory.append((number, *_held(os.getpid())))
    # Processes start in the first quarter. Images come in pieces: those that came with the first one are not counted.
    first = times[count // 4]
    rate = sum(time > first + 0.1 for time in times) / (times[-1] - first)
    print(json.dumps({"memory": memory, "rate": rate, "start": times[0] - began}))


def _held(process: int) -> tuple[float, float]:
    """MiB that a process and all that it started hold, and of the files in memory that they share: Ray's store.

    What several of them share is counted once, and what is in memory as it was read from a file, such as libraries, not at all.
    Of the store counts whatever was ever written: to the kernel it is private to a process as long as no other one has read it.
    """
    children: dict[int, list[int]] = {}
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            parent = int(Path("/proc", entry, "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(entry))
    waiting, total, store = [process], 0, dict[int, int]()
    while waiting:
        one = Path("/proc", str(waiting.pop()))
        waiting += children.get(int(one.name), [])
        with suppress(OSError):  # it has ended
            lines = (one / "smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss_Anon:"))
            for file in (one / "fd").iterdir():
                with suppress(OSError):
                    if os.readlink(file).startswith("/dev/shm/"):
                        found = file.stat()
                        store[found.st_ino] = found.st_blocks
    return total / 2**10, sum(store.values()) / 2**11


if __name__ == "__main__":
    main(*sys.argv[1:])
