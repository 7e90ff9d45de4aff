"""What is measured, part by part. The names given to @part are what the command line offers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch

import pathx
from benchmarks.measure import Effort, Row, in_process, interleaved, run_python
from benchmarks.subjects import NAMES, network, photo, subject


@dataclass(frozen=True)
class Part:
    """A table of the benchmark: a title, and what yields its rows as they are measured."""

    title: str
    rows: Callable[[Effort], Iterable[Row]]


PARTS: dict[str, Part] = {}
"""Every part by name; filled by @part."""


def part(name: str, title: str) -> Callable[[Callable[[Effort], Iterable[Row]]], Callable[[Effort], Iterable[Row]]]:
    """Register a part under the name that users choose it by."""

    def register(rows: Callable[[Effort], Iterable[Row]]) -> Callable[[Effort], Iterable[Row]]:
        PARTS[name] = Part(title, rows)
        return rows

    return register


SETTINGS: dict[str, tuple[dict[str, int | str], float]] = {
    "everyday (depth 3, width 5)": ({"depth": 3, "width": 5}, 1.2),
    "default (maps:3, width 64)": ({}, 1.3),
    "complete, width 5": ({"depth": "all", "width": 5}, 1.0),
    "complete, width 64": ({"depth": "all", "width": 64}, 2.0),
    "complete, width 1024": ({"depth": "all", "width": 1024}, 14.0),
}
"""How an image is explained, and how many times the time of Saliency that may take."""

OTHERS = {
    **{"efficientnet_b0": 2.0, "mobilenet_v3_small": 2.0, "regnet_y_400mf": 2.0},
    **{"convnext_tiny": 3.0, "vit_b_16": 6.0, "swin_t": 6.0},
}
"""Networks with gates, norms and attention, and how many times the time of Saliency their default call may take."""


def _models(effort: Effort) -> tuple[str, ...]:
    return ("resnet18", "squeezenet1_1") if effort.quick else NAMES


@part("path", "One image against Saliency; 1000 classes")
def path(effort: Effort) -> Iterator[Row]:
    for name in _models(effort):
        measured = subject(name)
        for what, (settings, limit) in SETTINGS.items():
            # One setting at a time: between calls of very different cost, caches and frequencies would differ too.
            wide = settings.get("width") == 1024
            if effort.quick and wide:
                continue
            times = interleaved(
                {"path": measured.path(**settings), "": measured.saliency()},
                min(effort.repeats, 5) if wide else effort.repeats,
            )
            if (name, what) == ("squeezenet1_1", "complete, width 5"):
                limit = 1.4  # its forward pass is small
            yield Row(f"{name}, {what}", times["path"], "Saliency", times[""], limit=limit)


@part("others", "Default call on networks of other kinds, against Saliency; random weights, 1000 classes")
def others(effort: Effort) -> Iterator[Row]:
    for name, limit in list(OTHERS.items())[: 2 if effort.quick else None]:
        measured = subject(name)
        times = interleaved({"path": measured.path(), "": measured.saliency()}, min(effort.repeats, 3))
        yield Row(name, times["path"], "Saliency", times[""], limit=limit)


@part("first", "The first default call of a process, imports not counted")
def first(effort: Effort) -> Iterator[Row]:
    for name in _models(effort):
        runs = [in_process(name, "path", "default", "once")["seconds"] for _ in range(min(effort.repeats, 3))]
        yield Row(name, median(runs))


@part("memory", "Peak memory above the model, complete path, against Saliency; 1000 classes")
def memory(effort: Effort) -> Iterator[Row]:
    for name in _models(effort):
        saliency = in_process(name, "saliency")
        for width in (5, 64) if effort.quick else (5, 64, 1024):
            path = in_process(name, "path", str(width))
            limit, note = (2.5 if width <= 64 else None), f"later calls {path['later']:.0f} MiB"
            what = f"{name}, width {width}, first call"
            yield Row(what, path["first"], "Saliency", saliency["first"], "MiB", limit, note)


@part("everything", "Peak memory of a complete path that keeps every active unit, skips adjacent, 1000 classes")
def everything(effort: Effort) -> Iterator[Row]:
    name = "squeezenet1_1" if effort.quick else "densenet121"
    used = in_process(name, "path", "all", "once")
    note = f"took {used['seconds']:.0f} s; model {used['model']:.0f} MiB"
    yield Row(name, used["first"] + used["model"], unit="MiB", limit=7 * 1024.0, note=note)


@part("command", "The whole command, warm files, against importing torch")
def command(effort: Effort) -> Iterator[Row]:
    with TemporaryDirectory() as folder:
        script = str(Path(folder, "squeezenet.pt"))
        torch.jit.save(torch.jit.trace(network("squeezenet1_1"), photo()), script)
        prepared = pathx.load_model().preprocessing
        sidecar = {name: getattr(prepared, name) for name in ("input_size", "mean", "std")}
        Path(folder, "squeezenet.json").write_text(json.dumps(sidecar))
        explain = ["-m", "pathx", "explain", "examples/cat.png", "--quiet", "--out"]
        calls = {
            "import torch": lambda: run_python(["-c", "import torch"]),
            "bundled": lambda: run_python([*explain, str(Path(folder, "bundled"))]),
            "TorchScript": lambda: run_python([*explain, str(Path(folder, "script")), "--model", script]),
            "help": lambda: run_python(["-m", "pathx", "--help"]),
        }
        times = interleaved(calls, min(effort.repeats, 5))
    for name in ("bundled", "TorchScript"):
        yield Row(f"pathx explain, {name}", times[name], "import torch", times["import torch"], limit=1.6)
    yield Row("pathx --help", times["help"], limit=0.5)
