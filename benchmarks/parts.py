"""What is measured, part by part. The names given to @part are what the command line offers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from support.reference import literal_algorithm_1
from torch import Tensor

import pathx
from benchmarks.measure import Effort, Row, in_process, interleaved, run_python, seconds
from benchmarks.subjects import NAMES, Subject, network, photo, photos, subject
from pathx.engine.freeze import freeze
from pathx.engine.replay import Classifier
from pathx.evaluation.protocols import Protocol, make_protocol


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

# One or more of every kind of torchvision's models that pathx explains.
FAMILIES = (
    *("alexnet", "vgg11", "vgg16", "vgg16_bn", "resnet18", "resnet50", "resnet152"),
    *("resnext50_32x4d", "wide_resnet50_2", "squeezenet1_1", "densenet121", "densenet201"),
    *("googlenet", "inception_v3", "shufflenet_v2_x1_0", "mnasnet1_0", "mobilenet_v2"),
    *("regnet_x_400mf", "regnet_x_8gf"),
)


def _models(effort: Effort) -> tuple[str, ...]:
    return ("resnet18", "squeezenet1_1") if effort.quick else NAMES


def _tracing(measured: Subject) -> str:
    return f"tracing {measured.traced:.2f} s, once"


@part("literal", "Complete path, width 5, VGG-16 with 10 classes, against the literal Algorithm 1")
def literal(effort: Effort) -> Iterator[Row]:
    measured = subject("vgg16", classes=10)
    slow = lambda: literal_algorithm_1(measured.module, measured.images[0], measured.target, "all", 5)  # noqa: E731
    fast = measured.path(depth="all", width=5)
    same = _units_in_common(measured, slow().kept)  # which is also the warm-up of the slow one
    fast()
    rounds = [(seconds(fast), seconds(slow)) for _ in range(min(effort.repeats, 3))]
    value, reference = (median(times) for times in zip(*rounds, strict=True))
    note = f"{_tracing(measured)}; {same}"
    yield Row("vgg16, 10 classes", value, "literal Algorithm 1", reference, limit=1 / 10, note=note)


def _units_in_common(measured: Subject, kept: list[list[int]]) -> str:
    """How many units both found. In float32 two units that are all but tied may change places."""
    (explanation,) = pathx.explain(measured.module, measured.images, target=measured.target, depth="all", width=5)
    common = 0
    for layer, numbers in zip(explanation.path, kept, strict=True):
        shape = layer.tensors[0].shape
        indices = {tuple(int(i) for i in torch.unravel_index(torch.tensor(number), shape)) for number in numbers}
        common += sum(unit.index in indices for unit in layer.units)
    return f"{common} of {sum(map(len, kept))} units the same"


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


@part("wide", "Complete path, width 50 000, 10 classes, against a backward pass")
def wide(effort: Effort) -> Iterator[Row]:
    for name in ("squeezenet1_1",) if effort.quick else ("vgg16",):
        measured = subject(name, classes=10)

        def forward(measured: Subject = measured) -> None:
            with torch.no_grad():
                measured.module(measured.images)

        calls = {"path": measured.path(depth="all", width=50_000), "": measured.saliency(), "forward": forward}
        times = interleaved(calls, min(effort.repeats, 3))
        backward = times[""] - times["forward"]
        yield Row(f"{name}, 10 classes", times["path"], "backward pass", backward, limit=10.0)


@part("batch", "An image of a batch of 16 against one at a time")
def batch(effort: Effort) -> Iterator[Row]:
    images = photos(16)
    for name in ("squeezenet1_1",) if effort.quick else ("squeezenet1_1", "resnet18"):
        measured = subject(name)
        for depth in (3, "all"):
            settings = {"depth": depth, "width": 5}
            singles = [measured.path(images[n : n + 1], **settings) for n in range(16)]

            def one_at_a_time(singles: list[Callable[[], object]] = singles) -> None:
                for call in singles:
                    call()

            times = interleaved({"": measured.path(images, **settings), "single": one_at_a_time}, effort.repeats)
            value, reference = times[""] / 16, times["single"] / 16
            yield Row(f"{name}, depth {depth}, width 5", value, "one at a time", reference, limit=0.8)


@part("skips", "Routes that jump (--skips all) against adjacent layers only, complete path, width 5")
def skips(effort: Effort) -> Iterator[Row]:
    for name in ("resnet18",) if effort.quick else ("resnet18", "resnet50"):
        measured = subject(name)
        calls = {skips: measured.path(depth="all", width=5, skips=skips) for skips in ("all", "adjacent")}
        times = interleaved(calls, effort.repeats)
        yield Row(name, times["all"], "adjacent", times["adjacent"], limit=1.5)


@part("models", "Freezing and the everyday call (depth 3, width 5), model by model, against a forward pass")
def models(effort: Effort) -> Iterator[Row]:
    for name in _models(effort) if effort.quick else FAMILIES:
        measured = subject(name, settled=True)

        def forward(measured: Subject = measured) -> None:
            with torch.no_grad():
                measured.module(measured.images)

        def frozen(measured: Subject = measured) -> None:
            freeze(measured.module, measured.images)

        calls = {"": forward, "freezing": frozen, "path": measured.path(depth=3, width=5)}
        times = interleaved(calls, effort.repeats)
        yield Row(f"{name}, freezing", times["freezing"], "forward", times[""], limit=1.3, note=_tracing(measured))
        yield Row(f"{name}, path", times["path"], "forward", times[""])


@part("memory", "Peak memory above the model, complete path, against Saliency; 1000 classes")
def memory(effort: Effort) -> Iterator[Row]:
    for name in _models(effort):
        saliency = in_process(name, "saliency")
        for width in (5, 64) if effort.quick else (5, 64, 1024):
            path = in_process(name, "path", str(width))
            limit, note = (2.5 if width <= 64 else None), f"later calls {path['later']:.0f} MiB"
            what = f"{name}, width {width}, first call"
            yield Row(what, path["first"], "Saliency", saliency["first"], "MiB", limit, note)


@part("bounded", "Peak memory of a complete path of width 50 000, 1000 classes")
def bounded(effort: Effort) -> Iterator[Row]:
    name = "squeezenet1_1" if effort.quick else "vgg16"
    used = in_process(name, "path", "50000", "once")
    note = f"took {used['seconds']:.0f} s; model {used['model']:.0f} MiB"
    yield Row(name, used["first"] + used["model"], unit="MiB", limit=8 * 1024.0, note=note)


@part("growth", "How the cost grows with width, depth and the number of classes")
def growth(effort: Effort) -> Iterator[Row]:
    name = "squeezenet1_1" if effort.quick else "vgg16"
    measured = subject(name)
    widths = (1, 4, 16, 64) if effort.quick else (1, 4, 16, 64, 256, 1024)
    depths = _spread(pathx.explain(measured.module, measured.images, depth=1)[0].hidden_layers)
    calls = {("width", width): measured.path(depth="all", width=width) for width in widths}
    calls |= {("depth", depth): measured.path(depth=depth, width=5) for depth in depths}
    times = _curves(name, calls, measured, effort)
    for classes in (10, 100, 1000):
        other = subject(name, classes=classes)
        times |= _curves(name, {("classes", classes): other.path(depth="all", width=5)}, other, effort)
    yield from times.values()
    # At most linear in width and depth; less than three times from 10 to 1000 classes.
    for curve, low, high, limit in (
        ("width", widths[-2], widths[-1], widths[-1] / widths[-2]),
        ("depth", depths[1], depths[-1], depths[-1] / depths[1]),
        ("classes", 10, 1000, 3.0),
    ):
        value, reference = times[curve, high].value, times[curve, low].value
        yield Row(f"{name}, {curve} {high}", value, f"{curve} {low}", reference, limit=limit)


def _spread(layers: int) -> tuple[int, ...]:
    """A few depths from 1 to all layers."""
    return tuple(sorted({1, 3, layers // 3, 2 * layers // 3, layers}))


def _curves(
    name: str, calls: dict[tuple[str, int], Callable[[], object]], measured: Subject, effort: Effort
) -> dict[tuple[str, int], Row]:
    names = {f"{curve} {at}": (curve, at) for curve, at in calls}
    times = interleaved({**{n: calls[names[n]] for n in names}, "": measured.saliency()}, min(effort.repeats, 5))
    return {
        (curve, at): Row(f"{name}, {n}", times[n], "Saliency", times[""], curve=curve, at=at)
        for n, (curve, at) in names.items()
    }


@part("evaluate", "Insertion and deletion of one image, the steps batched, against the forward passes alone")
def evaluate(effort: Effort) -> Iterator[Row]:
    for name in ("squeezenet1_1",) if effort.quick else ("squeezenet1_1", "resnet18"):
        measured = subject(name)
        steps = 28 if effort.quick else 224
        protocol = make_protocol("rise", *measured.images.shape[2:], steps=steps)
        classifier = Classifier(measured.module, measured.images[0])
        attribution = torch.randn(measured.images.shape, generator=torch.Generator().manual_seed(0))
        rows = 2 * (protocol.steps + 1)
        batches = [len(part) for part in torch.arange(rows // 2).split(classifier.chunk)] * 2

        def curves(
            measured: Subject = measured,
            protocol: Protocol = protocol,
            run: Classifier = classifier,
            attribution: Tensor = attribution,
        ) -> None:
            with torch.no_grad():
                protocol.curves(run, measured.images, [measured.target], attribution, ["image"])

        def forward(measured: Subject = measured, batches: list[int] = batches) -> None:
            with torch.no_grad():
                for size in batches:
                    measured.module(measured.images.expand(size, -1, -1, -1))

        times = interleaved({"": curves, "forward": forward}, min(effort.repeats, 3))
        yield Row(f"{name}, {rows} states", times[""], "forward passes", times["forward"], limit=1.15)


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
        times = interleaved(calls, effort.repeats)
    for name in ("bundled", "TorchScript"):
        yield Row(f"pathx explain, {name}", times[name], "import torch", times["import torch"], limit=1.6)
    yield Row("pathx --help", times["help"], limit=0.5)
