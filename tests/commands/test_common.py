"""`pathx common`: its plots, its table and its refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.command_line import Pathx, picture, scripted
from support.measured import document
from torch import Tensor, nn

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("measured", "undrawn")


@pytest.mark.usefixtures("drawn")
def test_each_tensor_of_a_layer_has_its_plots(pathx_: Pathx) -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = (nn.Sequential(nn.Conv2d(3, 2, 3), nn.ReLU()) for _ in range(2))
            self.last = nn.Linear(144, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.cat([self.left(x), self.right(x)], 1).flatten(1))

    scripted(Branches().eval())
    assert pathx_("common", "pictures", "--model", "model.pt", "--depth", 1, "--out", "out").status == 0
    plots = {file.name for file in Path("out").glob("positions-1-*.png")}
    tensors = document("out/common.json")["layers"][0]["tensors"]
    assert len(tensors) == 2 and plots == {f"positions-1-{tensor['name']}.png" for tensor in tensors}


def test_what_common_prints_fits_a_terminal(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    arguments = ("--model", "model.pt", "--depth", "all", "--width", 5, "--group-by", "folder")
    for number in range(6, 11):
        picture(f"pictures/{'cat' if number < 8 else 'red fox'}/{number}.png", seed=number)
    done = pathx_("common", "pictures", *arguments, "--out", "out")
    assert done.status == 0 and "cat: 5 images" in done.out and "  layer 1 (1): " in done.out
    assert "dog: 3 images" not in done.out
    assert "fewer than 5 images are too few to say what the paths of a class share: dog (3), red fox (3)" in done.err
    assert [group["too_few"] for group in document("out/common.json")["classes"]] == [False, True, True]
    assert max(map(len, done.out.splitlines())) <= 80


def test_several_folders_that_a_user_names_are_classes(pathx_: Pathx) -> None:
    folders = ("pictures/cat", "pictures/dog", "--group-by", "folder")
    assert pathx_("common", *folders, "--model", "model.pt", "--out", "out").status == 0
    assert {group["label"] for group in document("out/common.json")["classes"]} == {"cat", "dog"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("pictures/cat", "--group-by", "folder"), "none of the images lie in folders named after classes"),
        (("pictures", "--threshold", "2"), "threshold 2 is out of range"),
        (("pictures", "--layers", "9"), "layer 9 is not on the paths, which have 3, 2, 1"),
        (("pictures", "--classes", "cow"), "no class is called 'cow'"),
    ],
)
def test_what_is_wrong_with_common_is_said(pathx_: Pathx, arguments: tuple[str, ...], text: str) -> None:
    done = pathx_("common", *arguments, "--model", "model.pt", "--out", "out")
    assert done.status == 2 and text in done.err


def test_the_first_table_names_the_class_that_shares_most(pathx_: Pathx) -> None:
    for number in range(6, 18):
        picture(f"pictures/{('cat', 'dog', 'red fox')[number % 3]}/{number}.png", seed=number)
    picture("pictures/red fox/18.png", seed=18)
    arguments = ("--model", "model.pt", "--depth", "all", "--group-by", "folder", "--out", "out")
    done = pathx_("common", "pictures", *arguments)
    made = document("out/common.json")
    labels, overlap = made["overlap"]["classes"], made["overlap"]["channels"]
    for line in done.out.splitlines()[3 : 3 + len(labels)]:
        (label,) = (label for label in labels if line.startswith(f"{label} "))
        row = overlap[labels.index(label)]
        best = max((place for place in range(3) if labels[place] != label), key=lambda place: row[place])
        assert line.split("  ")[-1].strip() == f"{row[best]:.0%}" and f" {labels[best]} " in line
