"""`pathx units`, `pathx unit` and `pathx ablate` over folders: references that are explain's, restarts, shards, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.command_line import Pathx, network, picture, scripted

import pathx
from pathx.models.load import load_model

pytestmark = pytest.mark.usefixtures("one_thread", "here")
OPTIONS = ("--model", "model.pt", "--depth", "2", "--width", "4", "--top", "3", "--batch-size", "2")


@pytest.fixture
def folder() -> str:
    """Seven photos in two folders, and a network."""
    scripted(network())
    for number in range(7):
        picture(f"photos/{'cat' if number % 2 else 'dog'}/{number}.png", seed=number)
    return "photos"


def document(out: str = "out") -> dict[str, Any]:
    content: dict[str, Any] = json.loads((Path(out) / "units.json").read_text())
    return content


def channels(made: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(t["name"], entry) for layer in made["layers"] for t in layer["tensors"] for entry in t["channels"]]


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


def test_words_and_entropy_count_the_classes_of_references(pathx_: Pathx, folder: str) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures", "--by", "activation", "--layers", "2")
    made = document()
    assert [layer["layer"] for layer in made["layers"]] == [2]
    assert not list(Path("out").glob("*.png"))
    for _, entry in channels(made):
        labels = [reference["label"] for reference in entry["references"]]
        for label in set(labels):
            assert f"{label} {labels.count(label)}" in entry["words"]
        assert (entry["entropy"] == 0) is (len(set(labels)) <= 1)


def test_a_pass_that_was_stopped_goes_on_and_ends_the_same(
    pathx_: Pathx, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pathx.units import folder as passes

    pathx_("units", folder, *OPTIONS, "--out", "whole", "--no-pictures")
    monkeypatch.setattr(passes, "SAVE_EVERY", -1.0)
    see, seen = passes.Pass._see, []

    def stopping(self: Any, state: Any, numbers: Any, inputs: Any) -> None:
        seen.extend(numbers)
        if len(seen) > 5 and not Path("stopped").exists():
            Path("stopped").touch()
            raise KeyboardInterrupt
        see(self, state, numbers, inputs)

    monkeypatch.setattr(passes.Pass, "_see", stopping)
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures").status == 130
    assert not Path("out/units.json").exists()
    seen.clear()
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures").status == 0
    assert seen == [4, 5, 6]
    assert comparable("out") == comparable("whole")
    assert {file.name for file in Path("out").iterdir()} == {"units.json", "tensors.safetensors"}


def test_a_damaged_state_is_made_again(pathx_: Pathx, folder: str) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "whole", "--no-pictures")
    Path("out").mkdir()
    Path("out/units.safetensors").write_bytes(b"\xff" * 40)
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures").status == 0
    assert comparable("out") == comparable("whole")


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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "luck"), "contribution or activation"),
        (("--top", "0"), "too few"),
        (("--layers", "9"), "no layer 9"),
        (("--layers", "1"), "not on the path"),
        (("--channels", "x"), "--channels takes numbers"),
    ],
)
def test_what_is_refused(pathx_: Pathx, folder: str, options: tuple[str, str], message: str) -> None:
    done = pathx_("units", folder, *OPTIONS, *options, "--out", "out")
    assert done.status == 2
    assert message in done.err
    assert not Path("out").exists()


def test_one_channel_is_shown(pathx_: Pathx, folder: str) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures", "--channels", "0-3")
    name, entry = next((name, entry) for name, entry in channels(document()) if entry["references"])
    done = pathx_("unit", name, entry["channel"], "--units", "out")
    assert done.status == 0
    assert entry["words"] in done.out
    assert entry["references"][0]["file"] in done.out
    assert pathx_("unit", "4", entry["channel"], "--units", "out", "--format", "json").documents[0]["layer"] == 4
    for arguments, message in (
        (("nothing", 0, "--units", "out"), "has no units of 'nothing'"),
        ((name, 99, "--units", "out"), "has no channel 99"),
        ((name, 0, "--units", "photos"), "no units.json"),
    ):
        done = pathx_("unit", *arguments)
        assert done.status == 2
        assert message in done.err


def test_ablation_of_a_path_and_of_units_by_name(pathx_: Pathx, folder: str) -> None:
    options = ("--model", "model.pt", "--format", "json")
    file = "photos/cat/1.png"
    (made,) = pathx_("ablate", file, *options, "--path", "--depth", "2", "--width", "4").documents
    loaded = load_model("model.pt")
    inputs = loaded.preprocessing(Image.open(file))[None]
    paths = pathx.explain(loaded.module, inputs, depth=2, width=4)
    (expected,) = pathx.ablate(loaded.module, inputs, path=paths)
    assert made["after"]["probability"] == pytest.approx(expected.probabilities[1])
    assert made["before"]["probability"] == pytest.approx(expected.probabilities[0])
    unit = paths[0].path[0].units[0]
    named = f"{unit.tensor} [{','.join(map(str, unit.index))}]"
    (made,) = pathx_("ablate", file, *options, "--unit", named, "--target", "dog").documents
    (expected,) = pathx.ablate(loaded.module, inputs, [unit], target=2)
    assert made["target"]["label"] == "dog"
    assert made["after"]["logit"] == pytest.approx(float(expected.after[2]))
    done = pathx_("ablate", file, "--model", "model.pt", "--channel", f"{unit.tensor}[{unit.index[0]}]")
    assert done.status == 0
    assert "before" in done.out and "after" in done.out


def test_units_are_set_to_the_means_of_the_folder(pathx_: Pathx, folder: str) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures")
    name, entry = channels(document())[0]
    options = ("--model", "model.pt", "--format", "json", "--channel", f"{name}[{entry['channel']}]")
    (made,) = pathx_("ablate", "photos/cat/1.png", *options, "--units", "out").documents
    loaded = load_model("model.pt")
    inputs = loaded.preprocessing(Image.open("photos/cat/1.png"))[None]
    means = {name: torch.tensor([e["mean"] for n, e in channels(document()) if n == name])}
    (expected,) = pathx.ablate(loaded.module, inputs, [(name, (entry["channel"],))], means=means)
    assert made["after"]["probability"] == pytest.approx(expected.probabilities[1])
    scripted(network(classes=2), "other.pt", {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25]})
    done = pathx_("ablate", "photos/cat/1.png", "--model", "other.pt", "--channel", f"{name}[0]", "--units", "out")
    assert done.status == 2
    assert "are of another model" in done.err


@pytest.mark.parametrize(
    ("options", "message"),
    [((), "nothing to remove"), (("--unit", "relu"), "--unit takes a name"), (("--unit", "x[1]"), "no ReLU named 'x'")],
)
def test_ablations_that_are_refused(pathx_: Pathx, folder: str, options: tuple[str, ...], message: str) -> None:
    done = pathx_("ablate", "photos/cat/1.png", "--model", "model.pt", *options)
    assert done.status == 2
    assert message in done.err
