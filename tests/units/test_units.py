"""Passes over folders: references that are explain's, restarts, shards, bad input."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from safetensors.torch import load_file
from support.command_line import Pathx
from support.gathered import OPTIONS, channels, document, photos

import pathx
from pathx.models.load import load_model

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def folder() -> str:
    return photos()


def comparable(out: str) -> dict[str, Any]:
    return {key: value for key, value in document(out).items() if key != "created_by"}


def test_references_are_what_explain_says_of_these_images(pathx_: Pathx, folder: str) -> None:
    done = pathx_("units", folder, *OPTIONS, "--out", "out")
    assert (done.status, done.err) == (0, "")
    made = document()
    assert (made["schema"], made["images"], made["failed"]) == ("pathx/units@1", 7, {})
    assert [layer["layer"] for layer in made["layers"]] == [4, 3]
    loaded = load_model("model.pt")
    checked = 0
    for name, entry in channels(made):
        values = [reference["value"] for reference in entry["references"]]
        assert values == sorted(values, reverse=True)
        assert len(values) <= 3
        for reference in entry["references"]:
            inputs = loaded.preprocessing(Image.open(reference["file"]))[None]
            (explanation,) = pathx.explain(loaded.module, inputs, depth=2, width=4)
            units = {(unit.tensor, unit.index): unit for layer in explanation.path for unit in layer.units}
            unit = units[name, tuple(reference["index"])]
            assert reference["value"] == pytest.approx(unit.contribution, rel=1e-4)
            assert tuple(reference["receptive_field"]) == unit.receptive_field
            assert reference["label"] == loaded.labels[explanation.target]
            assert reference["folder"] == Path(reference["file"]).parent.name
            checked += 1
    assert checked > 10
    tensors = load_file("out/tensors.safetensors")
    for name, entry in channels(made):
        assert float(tensors[f"means.{name}"][entry["channel"]]) == pytest.approx(entry["mean"])
    for layer in (4, 3):
        Image.open(f"out/layer-{layer}.png").verify()


def test_a_pass_that_was_stopped_goes_on_and_ends_the_same(
    pathx_: Pathx, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathx.units import units as passes

    Path("whole").mkdir()
    Path("whole/units.safetensors").write_bytes(b"\xff" * 40)  # a state that is damaged is none
    assert pathx_("units", folder, *OPTIONS, "--out", "whole", "--no-pictures").status == 0
    monkeypatch.setattr(passes, "SAVE_EVERY", -1.0)
    read, seen = passes.read_batches, []

    def stopping(*given: Any) -> Iterator[Any]:
        for batch, inputs in read(*given):
            seen.extend(one.name for one in batch)
            if len(seen) > 5 and not Path("stopped").exists():
                Path("stopped").touch()
                raise KeyboardInterrupt
            yield batch, inputs

    monkeypatch.setattr(passes, "read_batches", stopping)
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures").status == 130
    assert not Path("out/units.json").exists()
    done = seen[:4]  # in batches of two; the third was cut off
    seen.clear()
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures").status == 0
    assert len(seen) == 3 and not {*seen} & {*done}
    assert comparable("out") == comparable("whole")
    assert {file.name for file in Path("out").iterdir()} == {"units.json", "tensors.safetensors"}


def test_shards_join_to_the_whole(pathx_: Pathx, folder: str) -> None:
    one = (*OPTIONS[:-1], "1", "--no-pictures")
    pathx_("units", folder, *one, "--out", "whole")
    for number in (1, 2, 3):
        assert pathx_("units", folder, *one, "--out", "out", "--shard", f"{number}/3").status == 0
        assert not Path("out/units.json").exists()
    assert pathx_("units", folder, *one, "--out", "out").status == 0
    mine, whole = comparable("out"), comparable("whole")
    for (name, entry), (other, theirs) in zip(channels(mine), channels(whole), strict=True):
        assert (name, entry["references"], entry["words"]) == (other, theirs["references"], theirs["words"])
        assert entry["mean"] == pytest.approx(theirs["mean"])
    assert {file.name for file in Path("out").iterdir()} == {"units.json", "tensors.safetensors"}


def test_one_bad_image_costs_only_itself(pathx_: Pathx, folder: str) -> None:
    Path("photos/cat/bad.png").write_bytes(b"no image")
    done = pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures")
    assert done.status == 1
    assert "bad.png" in done.err
    assert document()["images"] == 7
    assert list(document()["failed"]) == ["photos/cat/bad.png"]
