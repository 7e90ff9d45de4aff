"""What a call has a device do, in the form that a GPU runs: counted, not timed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from benchmarks.measure import Effort, Row
from benchmarks.parts import part
from benchmarks.subjects import NAMES, subject
from benchmarks.work import Work, work_of

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


def _note(done: Work) -> str:
    return f"{done.launches} launches, {done.transfers} transfers, largest tensor {done.largest / MIB:.1f} MiB"
