"""What is computed of a batch: which classes are asked about, how many images at once, and which settings matter."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import Pathx, network, scripted
from support.many import lines, photos
from support.small import loaded, picture

import pathx.runs.compute
from pathx.drawing.render import Drawing
from pathx.engine.freeze import Frozen, freeze
from pathx.errors import PathxError
from pathx.images.find import ImageFile
from pathx.models.load import LoadedModel
from pathx.pipeline import Input, read_input
from pathx.runs.compute import Job, Settings, ask, explain_batch

pytestmark = pytest.mark.usefixtures("here", "patience")


def batch(tmp_path: Path, folder: str = "other", bias: float = 0.0) -> tuple[LoadedModel, Frozen, list[Input]]:
    """Two images in one folder, and the network at them."""
    model = loaded()
    with torch.no_grad():
        model.module[-1].bias[1] += bias  # type: ignore[index, union-attr, operator]
    files = [picture(tmp_path / folder / f"{number}.png", seed=number) for number in range(2)]
    read = [read_input(ImageFile(str(file), file.name), model.preprocessing) for file in files]
    inputs = [one for one in read if isinstance(one, Input)]
    return model, freeze(model.module, torch.stack([one.tensor for one in inputs])), inputs


def job(*targets: str, decompose: dict[str, Any] | None = None, **how: Any) -> Job:
    return Job(targets, Settings(depth=1, width=2, pictures=False, **how), decompose)


def asked(tmp_path: Path, *targets: str, folder: str = "other", against: int | None = None) -> list[tuple[int, ...]]:
    """What is asked where the network says red fox."""
    model, frozen, inputs = batch(tmp_path, folder, bias=99.0)
    return [one.targets for one in ask(job(*targets), model.labels, frozen.logits, inputs, against)]


def test_the_predicted_class_and_the_label_where_it_is_another(tmp_path: Path) -> None:
    assert asked(tmp_path) == [(1,), (1,)]
    assert asked(tmp_path, folder="dog") == [(1, 2), (1, 2)]
    assert asked(tmp_path, folder="red fox") == [(1,), (1,)]  # as labelled
    assert asked(tmp_path, "cat", folder="dog") == [(0,), (0,)]  # what is asked for is asked for


def test_one_class_against_another_is_nothing_against_itself(tmp_path: Path) -> None:
    assert asked(tmp_path, "cat", "dog", against=2) == [(0,), (0,)]
    made = explain_batch(*batch(tmp_path, bias=99.0), job(against="red fox"))  # which is what the network says
    assert ["red fox is compared with itself" in str(one.error) for one in made] == [True, True]
    with pytest.raises(PathxError, match="dog is compared with itself") as caught:
        asked(tmp_path, "dog", against=2)
    assert caught.value.usage
    with pytest.raises(PathxError, match="decompose does not compare classes"):
        job("cat", decompose={}, against="dog").check()


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
    done = pathx_("explain", photos(3), "--model", scripted(network()))
    assert done.status == 1
    assert done.err.count(".png: out of memory, even for one image alone: take a smaller --width or --depth") == 3
    assert [line["explanations"] for line in lines("pathx-out")] == [[], [], []]


def test_other_errors_are_not_taken_for_it(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    short_of_memory(monkeypatch, 0, RuntimeError("shapes do not match"))
    done = pathx_("explain", photos(3), "--model", scripted(network()))
    assert done.err == "pathx: unexpected RuntimeError: shapes do not match (set PATHX_DEBUG=1 for the traceback)\n"
