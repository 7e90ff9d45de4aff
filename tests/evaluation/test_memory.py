"""Short memory costs time and nothing else, and an image that cannot be explained costs itself alone, in every command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from support.command_line import Pathx, network, scripted
from support.many import photos

import pathx.evaluation.measure
import pathx.evaluation.methods
import pathx.pipeline
from pathx.errors import PathxError

pytestmark = pytest.mark.usefixtures("here", "undrawn")
RUNS = {
    "evaluate": ("--methods", "random,pathx", "--steps", "3"),
    "common": (),
    "units": (),
}


def short_of_memory(patch: pytest.MonkeyPatch, most: int) -> list[int]:
    """Every step that takes a batch fails where it is larger than that; the sizes that were tried."""
    sizes = []

    def limit(place: Any, name: str, size: Callable[..., int]) -> None:
        whole = getattr(place, name)

        def limited(*arguments: Any, **options: Any) -> Any:
            sizes.append(size(*arguments))
            if sizes[-1] > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return whole(*arguments, **options)

        patch.setattr(place, name, limited)

    limit(pathx.pipeline, "freeze", lambda _, images: len(images))
    limit(pathx.evaluation.measure, "_measure_contender", lambda *arguments: len(arguments[3]))
    return sizes


def without_time(value: Any) -> Any:
    """A document without what is said of time and place."""
    if isinstance(value, dict):
        left_out = ("seconds", "created_by", "key", "files", "records", "batch_size")
        return {key: without_time(one) for key, one in value.items() if key not in left_out}
    return [without_time(one) for one in value] if isinstance(value, list) else value


def close_to(value: Any) -> Any:
    """The same with numbers to a few digits, as parts of a batch are other sums."""
    if isinstance(value, dict):
        return {key: close_to(one) for key, one in value.items()}
    if isinstance(value, list):
        return [close_to(one) for one in value]
    return pytest.approx(value, rel=1e-4, abs=1e-6) if isinstance(value, float) else value


@pytest.mark.parametrize("command", RUNS)
def test_a_batch_that_does_not_fit_is_taken_in_parts(
    command: str, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(9)
    arguments = (command, "photos", "--model", scripted(network()), *RUNS[command], "--batch-size", "8")
    done = pathx_(*arguments, "--out", "whole")
    assert done.status == 0, done.err
    sizes = short_of_memory(monkeypatch, 3)
    done = pathx_(*arguments, "--out", "parts")
    assert done.status == 0, done.err
    assert max(sizes) > 3 and sizes.count(2) > 1  # it was short, and went on with halves of halves
    documents = [file for file in Path("whole").rglob("*.json") if file.name != "run.json"]
    assert documents
    for file in documents:
        made = json.loads((Path("parts") / file.relative_to("whole")).read_text())
        assert without_time(made) == close_to(without_time(json.loads(file.read_text())))


@pytest.mark.parametrize("command", RUNS)
def test_an_image_that_cannot_be_explained_costs_itself_alone(
    command: str, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos(5)
    Image.new("RGB", (8, 8), "white").save("photos/white.png")
    explain = pathx.pipeline.explain_frozen

    def fail(frozen: Any, wanted: Any, **path: Any) -> Any:
        if any(bool((frozen.images[image] == frozen.images[image].max()).all()) for image, _ in wanted):
            raise PathxError("the explanation holds NaN or infinite numbers")
        return explain(frozen, wanted, **path)

    for place in (pathx.pipeline, pathx.evaluation.methods):
        monkeypatch.setattr(place, "explain_frozen", fail)
    done = pathx_(command, "photos", "--model", scripted(network()), *RUNS[command], "--out", "out")
    name = {"evaluate": "evaluation"}.get(command, command)
    made = json.loads(Path(f"out/{name}.json").read_text())
    assert "Traceback" not in done.err and "NaN or infinite" in done.err
    if command == "evaluate":
        assert {key: one["images"] for key, one in made["counts"].items()} == {"pathx": 5, "random": 6}
    else:
        assert made["images"] == 5 and [*made["unread" if command == "common" else "failed"]] == ["photos/white.png"]


def test_no_memory_for_even_one_image_is_one_line(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(3)
    short_of_memory(monkeypatch, 0)
    done = pathx_("evaluate", "photos", "--model", scripted(network()), *RUNS["evaluate"])
    assert done.status == 1
    assert "out of memory, even for one image alone" in done.err and "unexpected" not in done.err
