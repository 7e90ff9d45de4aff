"""Parts that count: what a call has a device do, in the form that a GPU runs, and what each way of saving work is worth."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

from support.work import Work, work_of

from benchmarks.measure import Effort, Row, interleaved
from benchmarks.parts import part
from benchmarks.subjects import NAMES, Subject, photos, subject
from pathx.engine.search import Strategy

MIB = 2**20
SETTINGS: tuple[tuple[int | str, int, float], ...] = (
    (3, 5, 1.5),
    ("all", 5, 2.0),
    ("all", 64, 4.0),
    ("all", 1024, 20.0),
)
"""Depth, width, and how many times the bytes of Saliency they may move."""


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """What a GPU would run, on the CPU."""
    with patch.dict(os.environ, PATHX_DEVICE_FORM="1"):
        yield


@part("work", "Bytes moved in the form that a GPU runs, against Saliency; 1000 classes, counted and not timed")
def work(effort: Effort) -> Iterator[Row]:
    for name in ("squeezenet1_1", "resnet18") if effort.quick else NAMES:
        measured = subject(name, settled=True)
        saliency = work_of(measured.saliency())
        layers = measured.layers()
        yield Row(f"{name}, Saliency", saliency.moved / MIB, unit="MiB", note=_note(saliency))
        for depth, width, limit in SETTINGS[:3] if effort.quick else SETTINGS:
            with as_on_a_gpu():
                call = measured.path(depth=depth, width=width)
                call()  # makes the constants of these shapes, once
                done = work_of(call)
            what, value = f"{name}, depth {depth}, width {width}", done.moved / MIB
            per_layer = done.launches / (layers if depth == "all" else int(depth))
            note = f"{_note(done)}, {per_layer:.0f} launches per layer"
            yield Row(what, value, "Saliency", saliency.moved / MIB, "MiB", limit, note)
            if width <= 64:
                yield Row(
                    f"{what}, largest tensor", done.largest / MIB, "Saliency", saliency.largest / MIB, "MiB", limit=4.0
                )
        yield from _batches(name, measured)


def _batches(name: str, measured: Subject) -> Iterator[Row]:
    """16 images against one."""
    with as_on_a_gpu():
        single = measured.path(depth="all", width=5)
        single()
        one = work_of(single)
        many = measured.path(photos(16), depth="all", width=5)
        many()  # traces the network for such a batch
        batch = work_of(many)
    yield Row(f"{name}, launches for 16 images", batch.launches, "one", one.launches, "", limit=1.2)
    yield Row(f"{name}, bytes per image of 16", batch.moved / 16 / MIB, "one", one.moved / MIB, "MiB", limit=1.0)


def _note(done: Work) -> str:
    return f"{done.launches} launches, {done.transfers} transfers, largest tensor {done.largest / MIB:.1f} MiB"


@part("ways", "What each way of saving work is worth: switched off alone, complete path, against the call as it is")
def ways(effort: Effort) -> Iterator[Row]:
    for name in ("squeezenet1_1",) if effort.quick else NAMES:
        measured = subject(name, settled=True)
        for width in (5, 64, 1024):
            call = measured.path(depth="all", width=width)
            without = {trick: _within(off, call) for trick, off in TRICKS.items()}
            times = interleaved({"": call, **without}, min(effort.repeats, 5))
            whole = work_of(call).moved
            for trick, other in without.items():
                note = f"{work_of(other).moved / whole:.2f} of the bytes"
                yield Row(f"{name}, width {width}, without {trick}", times[trick], "as it is", times[""], note=note)
        half = measured.path(depth="half", width=5)
        times = interleaved({"": half, "whole maps": _within(_no_boxes, half)}, min(effort.repeats, 5))
        what = f"{name}, half of the layers, width 5, without boxing the linear model"
        yield Row(what, times["whole maps"], "as it is", times[""])


def _within(off: Callable[[], object], call: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with off():  # type: ignore[attr-defined]
            call()

    return run


def _strategy(**changes: object) -> Callable[[], object]:
    """Every search with another strategy."""
    other = replace(Strategy(), **changes)  # type: ignore[arg-type]
    return lambda: patch("pathx.engine.explain.Strategy", lambda: other)


def _no_boxes() -> object:
    return patch("pathx.engine.linear._sum_in_box", lambda *_: None)


TRICKS: dict[str, Callable[[], object]] = {
    "windows": _strategy(windows=False),
    "listing units under windows": _strategy(few=0.0),
    "products without zeros": _strategy(sparse=0.0),
}
