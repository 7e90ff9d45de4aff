"""What is computed of a batch: which classes are asked about, how many images at once, and which settings matter."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from support.command_line import Pathx, network, scripted
from support.many import lines, photos

import pathx.runs.compute
from pathx.drawing.render import Drawing
from pathx.runs.compute import Settings

pytestmark = pytest.mark.usefixtures("here", "patience")


# Settings


OTHER: dict[str, Any] = {
    "depth": 7,
    "width": 9,
    "alpha": 0.3,
    "skips": "adjacent",
    "exact": "region",
    "importance": "effect",
    "dtype": "float64",
    "save_tensors": True,
    "truth": "cat",
    "drawing": Drawing(colours="orange-purple"),
    "pictures": False,
    "against": "dog",
    "removal": True,
}
HOW = {"device": "cpu", "batch_size": 3, "workers": 2}


def test_every_setting_either_changes_results_or_says_how_they_are_computed() -> None:
    assert {field.name for field in fields(Settings)} == {*OTHER, *HOW, "guide"}
    for name in OTHER:
        assert replace(Settings(), **{name: OTHER[name]}).decisive != Settings().decisive, name
    assert replace(Settings(), **HOW).decisive == Settings().decisive


# Memory


def short_of_memory(monkeypatch: pytest.MonkeyPatch, most: int, error: Exception) -> list[int]:
    whole, sizes = pathx.runs.compute.freeze, []

    def freeze(module: torch.nn.Module, images: torch.Tensor) -> object:
        sizes.append(len(images))
        if len(images) > most:
            raise error
        return whole(module, images)

    monkeypatch.setattr(pathx.runs.compute, "freeze", freeze)
    return sizes


def test_short_memory_halves_the_batch_and_skips_nothing(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = short_of_memory(monkeypatch, 3, torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    arguments = ("explain", photos(10), "--model", scripted(network()), "--no-pictures", "--batch-size", 8)
    done = pathx_(*arguments)
    assert done.status == 0
    assert sizes == [8, 4, 2, 2, 2, 2, 2]
    assert done.err.splitlines()[:2] == [
        "pathx: note: memory is short: going on with 4 at once instead of 8",
        "pathx: note: memory is short: going on with 2 at once instead of 4",
    ]
    assert len(lines("pathx-out")) == 10


def test_no_memory_for_even_one_picture_is_a_failure(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, 0, torch.OutOfMemoryError("CUDA out of memory."))
    done = pathx_("explain", photos(3), "--model", scripted(network()), "--no-pictures")
    assert done.status == 1
    assert done.err.count(".png: out of memory, even for one image alone: take a smaller --width or --depth") == 3
    assert [line["explanations"] for line in lines("pathx-out")] == [[], [], []]
