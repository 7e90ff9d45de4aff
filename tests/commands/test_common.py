"""`pathx common`: its plots, its table and its refusals."""

from __future__ import annotations

import csv
import json
import os
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


@pytest.mark.usefixtures("drawn")
def test_common_paths_from_pictures_and_from_results_are_the_same(
    pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6, 10):
        picture(f"pictures/{('cat', 'dog')[number % 2]}/{number}.png", seed=number)
    settings = ("--model", "model.pt", "--depth", "all", "--width", 3)
    done = pathx_("common", "pictures", *settings, "--group-by", "folder", "--layers", "1,3", "--out", "one")
    assert done.status == 0
    drawn = {file.name for file in Path("one").glob("*.png")}
    kinds = {"units-3.png", "units-1.png", "channels-1-1.png", "positions-1-1.png"}
    assert drawn == kinds | {"overlap-units.png", "overlap-channels.png"}
    files = sorted(map(str, Path("pictures").rglob("*.png")))
    pathx_("explain", *files, *settings, "--out", "explained", "--quiet")
    Path("model.pt").unlink()  # the network is not needed any more
    monkeypatch.setattr("pathx.evaluation.plots.can_plot", lambda note: False)
    assert pathx_("common", "explained", "--group-by", "folder", "--layers", "3", "--out", "other").status == 0
    one, other = document("one/common.json"), document("other/common.json")
    assert one["schema"] == "pathx/common@1"
    assert one["classes"] == other["classes"] and one["overlap"] == other["overlap"]
    assert one["settings"] == other["settings"]


def test_features_of_a_decomposition_are_not_counted_beside_the_whole(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", 2, "--width", 3)
    assert pathx_("decompose", "pictures/cat/0.png", *settings, "--out", "parts", "--quiet").status == 0
    assert len(list(Path("parts").rglob("path.json"))) > 1
    assert pathx_("common", "parts", "--out", "out").status == 0
    assert document("out/common.json")["images"] == 1


def test_results_among_pictures_are_not_taken_for_all_there_is(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", 2)
    assert pathx_("explain", "pictures/cat", *settings, "--out", "pictures/explained").status == 0
    assert pathx_("common", "pictures", *settings, "--out", "out").status == 0
    assert document("out/common.json")["images"] == 6
    done = pathx_("common", "pictures/explained", "pictures/explained/pictures", "--out", "twice")
    assert "note: 3 explanations are there twice and count once" in done.err
    assert document("twice/common.json")["images"] == 3


def test_names_that_are_not_text(pathx_: Pathx) -> None:
    odd = os.fsdecode(b"odd/a b\n\xff.png")
    try:
        picture(odd, seed=1)
    except OSError:
        pytest.skip("this file system takes text only")
    arguments = ("odd", "--model", "model.pt", "--depth", 2)
    assert pathx_("evaluate", *arguments, "--methods", "pathx,random", "--out", "out").status == 0
    with Path("out/images.csv").open(newline="") as stream:
        assert [row[0] for row in csv.reader(stream)][1:] == [
            "odd/a b\\n\\udcff.png"
        ] * 2  # nothing that acts on a terminal
    Path(odd).write_bytes(b"no picture")
    picture("odd/b.png", seed=2)
    assert pathx_("evaluate", *arguments, "--methods", "pathx", "--out", "out").status == 1
    assert list(document("out/evaluation.json")["unread"]) == [odd]
    assert pathx_("common", *arguments, "--out", "shared").status == 1
    assert list(document("shared/common.json")["unread"]) == [odd]


def test_shares_are_counted_over_the_paths(pathx_: Pathx) -> None:
    settings = ("--model", "model.pt", "--depth", "all", "--width", 3)
    files = sorted(map(str, Path("pictures/cat").glob("*.png")))
    pathx_("explain", *files, *settings, "--out", "explained", "--quiet")
    pathx_("common", "explained", "--group-by", "folder", "--threshold", "0.6", "--out", "out")
    paths = [json.loads(file.read_text()) for file in Path("explained").rglob("path.json")]
    paths = [path for path in paths if path["target"]["rank"] == 1 and "against" not in path]  # explain may add others
    (group,) = document("out/common.json")["classes"]
    assert group["label"] == "cat" and group["images"] == 3
    for layer in group["layers"]:
        own = [next(n for n in path["layers"] if n["layer"] == layer["layer"])["units"] for path in paths]
        for kind, part in (("units", slice(None)), ("channels", slice(1)), ("positions", slice(1, None))):
            for entry in layer[kind]:
                holds = [
                    any(u["tensor"] == entry["tensor"] and u["index"][part] == entry["index"] for u in p) for p in own
                ]
                assert entry["share"] == pytest.approx(sum(holds) / 3)
        often = [{"tensor": u["tensor"], "index": u["index"]} for u in layer["units"] if u["share"] >= 0.6]
        assert layer["common_path"] == often
        assert bool(layer["positions"]) == (len(own[0][0]["index"]) == 3)


def test_explanations_of_several_kinds_are_not_mixed(pathx_: Pathx) -> None:
    explain = ("explain", "pictures/cat/0.png", "--model", "model.pt", "--quiet")
    for depth in (1, 2):
        pathx_(*explain, "--depth", depth, "--out", f"mixed/{depth}")
    done = pathx_("common", "mixed", "--out", "out")
    assert done.status == 2 and "not of one kind (model.pt, depth 1" in done.err
    done = pathx_("common", "mixed/1", "--depth", 3, "--out", "out")
    assert done.status == 2 and "these are finished explanations" in done.err
    pathx_(*explain, "--depth", 1, "--target", "top:3", "--out", "top")
    done = pathx_("common", "top", "--out", "out")
    assert done.status == 0 and "2 explanations of classes that were not predicted are left out" in done.err
