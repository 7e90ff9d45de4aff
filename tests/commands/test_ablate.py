"""`pathx ablate`: the answer without a path, without units by name, and with their means."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.command_line import Pathx, network, scripted
from support.gathered import OPTIONS, channels, document, photos

import pathx
from pathx.models.load import load_model

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def folder() -> str:
    return photos()


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


def test_what_was_removed_or_kept_is_said_in_words(pathx_: Pathx, folder: str) -> None:
    how = ("ablate", "photos/cat/1.png", "--model", "model.pt", "--path", "--depth", "1", "--width", "4")
    removed, kept = pathx_(*how).out.splitlines(), pathx_(*how, "--keep").out.splitlines()
    (one,), (other,) = pathx_(*how, "--format", "json").documents, pathx_(*how, "--keep", "--format", "json").documents
    active = one["active"] + one["kept"]
    assert one["active"] == other["kept"] > 0 and other["active"] == one["kept"] > 0
    assert removed[0] == kept[0] == "photos/cat/1.png"
    label = one["target"]["label"]
    said = f"{one['active']} of {active} active units set to zero, {label} "
    assert removed[1].startswith(f"With {said}") and kept[1].startswith(f"With all but {said}")
    for lines, found in ((removed, one), (kept, other)):
        assert f"{found['after']['probability']:.1%}" in lines[1]


@pytest.mark.parametrize("size", ["x", -1, 10**9, None])
def test_units_of_other_shapes_are_refused_in_one_line(pathx_: Pathx, folder: str, size: object) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures")
    made = document()
    made["layers"][0]["tensors"][0]["shape"][0] = size
    Path("out/units.json").write_text(json.dumps(made))
    done = pathx_("ablate", "photos/cat/1.png", "--model", "model.pt", "--path", "--units", "out")
    assert done.status in (1, 2) and done.err.endswith(": gather the units again\n") and done.err.count("\n") == 1


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
    [
        ((), "nothing to remove"),
        (("--unit", "relu"), "--unit takes a name"),
        (("--unit", "x[1]"), "no activation named 'x'"),
    ],
)
def test_ablations_that_are_refused(pathx_: Pathx, folder: str, options: tuple[str, ...], message: str) -> None:
    done = pathx_("ablate", "photos/cat/1.png", "--model", "model.pt", *options)
    assert done.status == 2
    assert message in done.err
