"""`pathx units`: what is refused, and what is shown of one channel."""

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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "luck"), "contribution or activation"),
        (("--top", "0"), "too few"),
        (("--layers", "9"), "no layer 9"),
        (("--layers", "1"), "not on the path"),
        (("--channels", "x"), "--channels takes numbers"),
        (
            ("--show", "4", "x"),
            "--show takes an activation or a layer, and a channel's number, such as 17 50; not '4 x'",
        ),
    ],
)
def test_what_is_refused(pathx_: Pathx, folder: str, options: tuple[str, str], message: str) -> None:
    done = pathx_("units", folder, *OPTIONS, *options, "--out", "out")
    assert done.status == 2
    assert message in done.err
    assert not Path("out").exists()


def test_more_references_than_images_take_no_memory(pathx_: Pathx, folder: str) -> None:
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures", "--top", 10**12).status == 0
    assert max(len(entry["references"]) for _, entry in channels(document())) == document()["images"]


def test_one_channel_is_shown(pathx_: Pathx, folder: str) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures", "--channels", "0-3")
    name, entry = next((name, entry) for name, entry in channels(document()) if entry["references"])
    done = pathx_("units", "--show", name, entry["channel"], "--out", "out")
    assert done.status == 0
    assert entry["words"] in done.out
    assert entry["references"][0]["file"] in done.out
    assert (
        pathx_("units", "--show", "4", entry["channel"], "--out", "out", "--format", "json").documents[0]["layer"] == 4
    )
    for arguments, message in (
        (("nothing", 0, "--out", "out"), "has no units of 'nothing'"),
        ((name, 99, "--out", "out"), "has no channel 99"),
        ((name, 0, "--out", "photos"), "no units.json"),
    ):
        done = pathx_("units", "--show", *arguments)
        assert done.status == 2
        assert message in done.err
    nothing = pathx_("units")
    assert nothing.status == 2 and "give images or folders of them, or --show LAYER CHANNEL" in nothing.err


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
