"""`pathx explain`: what is written and printed, its options, and images that fail."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from PIL import Image
from support.command_line import (
    FILES,
    INDEX,
    SIDECAR,
    Finished,
    Pathx,
    check_document,
    config,
    document,
    files,
    network,
    picture,
    same,
    scripted,
)

from pathx.defaults import SKIPS, WIDTH
from pathx.drawing.words import removal_line
from pathx.explanation import Removal

pytestmark = pytest.mark.usefixtures("here")


# What is written and printed


def test_the_default_run(pathx_: Pathx) -> None:
    file = picture(size=(320, 240))
    done = pathx_("explain", file)
    assert (done.status, done.err) == (0, "")
    (folder,) = Path("pathx-out/photo.png").iterdir()
    assert files(folder) == FILES
    made = document(folder)
    check_document(made, (224, 224))
    assert made["model"]["name"] == "squeezenet1_1"
    assert (made["model"]["classes"], made["model"]["hidden_layers"]) == (1000, 17)
    assert (made["depth"], made["width"], made["alpha"], made["skips"]) == (3, 64, 0.001, "all")
    assert (made["image"]["width"], made["image"]["height"], made["target"]["rank"]) == (320, 240, 1)
    assert folder.name == made["target"]["label"].lower().replace(" ", "-")
    assert made["files"] == {"figure": "figure.png", "heatmap": "heatmap.png", "overlay": "overlay.png"}
    with Image.open(folder / "heatmap.png") as heatmap, Image.open(folder / "overlay.png") as overlay:
        assert heatmap.size == (224, 224)
        assert overlay.width / overlay.height == pytest.approx(320 / 240, rel=0.01)
    lines = done.out.splitlines()
    assert lines[0] == "photo.png"
    best = f"  {made['target']['label']} {made['target']['probability']:.1%}, "
    assert lines[1].startswith(best)
    assert any(
        line.startswith(f"{made['target']['label']}: {made['target']['probability']:.1%}, class ") for line in lines
    )
    strongest = made["layers"][0]["units"][0]
    row = f"   17 {len(made['layers'][0]['units']):>5}  "
    named = f"{strongest['tensor']} {strongest['index']}".replace(", ", ",")
    assert any(line.startswith(row) for line in lines) and any(line.endswith(named) for line in lines)
    removal = Removal(**made["removal"])
    assert removal_line(removal, made["target"]["label"]) in lines
    assert f"{made['target']['probability']:.1%}" in removal_line(removal, made["target"]["label"])
    assert f"{folder}/: figure.png, heatmap.png, overlay.png, path.json" in lines


@pytest.mark.parametrize("width", [60, None])
def test_the_table_fits_the_terminal(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch, width: int | None) -> None:
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    done = pathx_("explain", picture(), "--input-size", "3,64,64", "--alpha", 0, "--target", "tiger cat")
    assert done.status == 0, done.err
    lines = done.out.splitlines()
    assert max(len(line.rstrip()) for line in lines if not line.startswith("pathx-out")) <= (width or 1000)
    start = next(number for number, line in enumerate(lines) if line.startswith("layer "))
    rows = lines[start + 1 : next(number for number, line in enumerate(lines) if line.startswith("importance: "))]
    made = document("pathx-out/photo.png/tiger-cat")
    shown = [unit for layer in made["layers"] for unit in layer["units"][:2]]
    assert len(rows) == 2 * len(shown)  # no row is broken in two
    for layer, (first, second) in zip(made["layers"], zip(rows[::4], rows[1::4], strict=True), strict=True):
        sums: dict[int, float] = {}
        for unit in layer["units"]:
            sums[unit["index"][0]] = sums.get(unit["index"][0], 0) + unit["contribution"]
        total, best = sum(sums.values()), sorted(sums, key=lambda channel: -sums[channel])
        for row, channel in zip((first, second), best, strict=False):
            share, _, index, count, noun = row.split()[-5:]
            assert (share, index) == (f"{sums[channel] / total:.1%}", f"[{channel}],")
            assert int(count) == sum(unit["index"][0] == channel for unit in layer["units"])
            assert noun == ("unit" if count == "1" else "units")
    rows = [row for number, row in enumerate(rows) if number % 4 > 1]
    for row, unit in zip(rows, shown, strict=True):
        importance, share, name, index = row.split()[-4:]
        assert index == str(unit["index"]).replace(" ", "")
        assert importance == f"{unit['importance'] * 1000:.3f}x"
        assert share.endswith("%")
        assert name == unit["tensor"] or (width == 60 and name[0] == "…" and unit["tensor"].endswith(name[2:]))


def test_json_is_all_there_is_on_stdout(pathx_: Pathx) -> None:
    model = scripted(network())
    arguments = ("explain", picture("a.png"), picture("b.png", seed=1), "--model", model, "--format", "json")
    done = pathx_(*arguments, "--target", "top:2")
    assert (done.status, done.err) == (0, "")
    assert [made["image"]["file"] for made in done.documents] == ["a.png", "a.png", "b.png", "b.png"]
    assert [made["target"]["rank"] for made in done.documents] == [1, 2, 1, 2]
    for made in done.documents:
        check_document(made)
        slug = made["target"]["label"].replace(" ", "-")
        assert document(f"pathx-out/{made['image']['file']}/{slug}") == made
    assert len(pathx_(*arguments, "--quiet").documents) == 2


def test_quiet(pathx_: Pathx) -> None:
    assert pathx_("explain", picture(), "--model", scripted(network()), "-q") == Finished(0, "", "")
    assert len(files("pathx-out")) == 4
    done = pathx_("explain", "no.png", "--model", "model.pt", "-q")
    assert done == Finished(1, "", "pathx: no.png: no such file; check the path\n")


def test_notes_go_to_stderr_once_per_picture(pathx_: Pathx) -> None:
    frames = [Image.new("RGB", (9, 9), colour) for colour in ("red", "blue")]
    frames[0].save("moving.gif", save_all=True, append_images=frames[1:])
    arguments = ("explain", "moving.gif", "--model", scripted(network()), "--target", "top:2")
    done = pathx_(*arguments)
    assert done.status == 0
    assert done.err == "pathx: note: moving.gif: animated: first frame used\n"
    assert "animated" not in done.out
    assert pathx_(*arguments, "--quiet").err == ""


# Options


@pytest.mark.parametrize("given", [("--width", WIDTH), ("--depth", "maps:3"), ("--width", 2)])
def test_giving_one_option_changes_no_other(pathx_: Pathx, given: tuple[object, ...]) -> None:
    (made,) = pathx_("explain", picture(), "--model", scripted(network()), "--format", "json", *given).documents
    assert (made["depth"], made["width"], made["skips"]) == (4, 2 if 2 in given else WIDTH, SKIPS)


def test_options_describe_a_model_file(pathx_: Pathx) -> None:
    model = scripted(network(), sidecar=None)
    described = ("--input-size", "3,8,8", "--mean", "0.5,0.5,0.5", "--std", "0.25,0.25,0.25", "--format", "json")
    (bare,) = pathx_("explain", picture(), "--model", model, *described).documents
    assert bare["target"]["label"] == f"class {bare['target']['index']}"
    Path("names.txt").write_text("cat\nred fox\ndog\n")
    (named,) = pathx_("explain", "photo.png", "--model", model, *described, "--labels", "names.txt").documents
    Path("model.json").write_text(json.dumps(SIDECAR))
    (sidecar,) = pathx_("explain", "photo.png", "--model", model, "--format", "json").documents
    assert sidecar["target"]["label"] == SIDECAR["labels"][bare["target"]["index"]]
    assert same(named, sidecar)
    (other,) = pathx_("explain", "photo.png", "--model", model, "--mean", "0", "--format", "json").documents
    assert other["target"]["logit"] != pytest.approx(sidecar["target"]["logit"], rel=1e-3)


# Images that fail: the others are done


def test_one_bad_picture_among_several(pathx_: Pathx) -> None:
    Path("b.png").write_text("no picture")
    names = [picture("a.png"), "b.png", picture("c.png", seed=1), "d.png"]
    for size in (1, 3):
        options = ("--target", "cat", "--batch-size", size, "--overwrite")
        done = pathx_("explain", *names, "--model", scripted(network()), *options)
        assert done.status == 1
        first, second, summary = done.err.splitlines()
        assert first.startswith("pathx: b.png is not an image")
        assert second == "pathx: d.png: no such file; check the path"
        assert summary == "pathx: 2 of 4 images failed; the rest is in pathx-out"
        assert files("pathx-out") == {f"{name}/cat/{file}" for name in ("a.png", "c.png") for file in FILES} | INDEX
    done = pathx_("explain", "b.png", "d.png", "--model", "model.pt")
    assert done.err.splitlines()[-1] == "pathx: 2 of 2 images failed"


def test_a_folder_of_results_that_cannot_be_made(pathx_: Pathx) -> None:
    Path("pathx-out").mkdir()
    Path("pathx-out/photo.png").write_text("in the way")
    names = (picture(), picture("b.png"))
    done = pathx_("explain", *names, "--model", scripted(network()), "--target", "cat", "--target", "dog")
    assert done.status == 1
    *failures, summary = done.err.splitlines()
    reasons = [line.partition(" (")[0] for line in failures]
    places = ("photo.png/cat", "photo.png/dog", "photo.png/cat-against-dog")  # the last for the contrast
    assert reasons == [f"pathx: cannot write results to pathx-out/{place}" for place in places]
    assert all(line.endswith(": choose another folder with --out") for line in failures)
    assert summary == "pathx: 1 of 2 images failed; the rest is in pathx-out"
    assert len(files("pathx-out/b.png")) == 14


# Classes compared with each other


def test_several_targets_are_compared(pathx_: Pathx) -> None:
    arguments = (picture(), "--model", scripted(network()), "--target", "cat", "--target", "dog")
    for command in ("explain", "decompose"):
        done = pathx_(command, *arguments, "--out", command)
        assert "why cat and not dog: Without these " in done.out
        assert done.out.endswith(f"{command}/photo.png/: cat-against-dog/, contrast.png, contrast.json\n\n")
        made = json.loads(Path(command, "photo.png/contrast.json").read_text())
        assert made["schema"] == "pathx/contrast@1"
        (pair,) = made["pairs"]
        assert pair["folder"] == "cat-against-dog" and files(Path(command, "photo.png", pair["folder"])) == FILES
        between = document(Path(command, "photo.png", pair["folder"]))
        assert between["linear_model"]["score"] == pair["score"] and between["alpha"] == 0.5


def test_one_class_is_explained_against_another(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--against")
    done = pathx_(*arguments, "dog", "--target", "cat", "--format", "json")
    (made,) = done.documents
    assert (made["target"]["label"], made["against"]["label"], made["alpha"]) == ("cat", "dog", 0.5)
    assert files("pathx-out") == {f"photo.png/cat-against-dog/{name}" for name in FILES}
    said = pathx_(*arguments, "dog", "--target", "cat").out
    assert "why cat and not dog: logits " in said and " ahead of " in said
    itself = pathx_(*arguments, "cat", "--target", "cat")
    assert itself.status == 2 and "cat is compared with itself" in itself.err
    predicted = min(SIDECAR["labels"], key=lambda label: pathx_(*arguments, label).status == 0)
    assert f"{predicted} is compared with itself" in pathx_(*arguments, predicted).err  # which costs that image alone
    assert pathx_(*arguments, "unicorn").status == 2


def test_a_wrong_prediction_is_explained_against_the_label(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--depth", 1)
    (predicted,) = pathx_(*arguments, "--format", "json").documents
    right = predicted["target"]["label"]
    wrong = next(label for label in SIDECAR["labels"] if label != right)
    done = pathx_(*arguments, *config(truth=wrong))
    assert f"The network says {right}; the label is {wrong}.\n" in done.out
    assert pathx_(*arguments, *config(truth=wrong), "--target", wrong, "--format", "json").documents[1:] == []
    assert len(pathx_(*arguments, *config(truth=right), "--format", "json").documents) == 1
    unknown = pathx_(*arguments, *config(truth="unicorn"))
    assert unknown.status == 2 and unknown.err.startswith("pathx: no class is called 'unicorn'")


def test_removal_is_for_images_that_somebody_looks_at(pathx_: Pathx) -> None:
    """On for images named one by one and for reports; an option decides otherwise."""
    one, other = picture("photos/a.png"), picture("photos/b.png", seed=1)
    model = ("--model", scripted(network()), "--no-pictures", "--format", "json", "--quiet")
    for arguments, expected in (
        ((one,), True),
        ((one, other), True),
        (("photos",), False),
        (("photos/*.png",), False),
        ((one, "--no-removal"), False),
        (("photos", "--removal"), True),
        (("photos", "--report"), True),
        (("photos", "--report", "--no-removal"), False),
        ((one, *config(removal=False)), False),
    ):
        done = pathx_("explain", *arguments, *model, "--out", "out")
        assert done.status == 0, done.err
        assert {made["removal"] is not None for made in done.documents} == {expected}, arguments
        index = Path("out/index.jsonl")
        for made in [json.loads(line) for line in index.read_text().splitlines()] if index.exists() else ():
            for entry in made["explanations"]:
                written = document(Path("out", entry["folder"]))["removal"]
                keys = ("before", "after", "at_random")
                assert entry.get("removal") == (written and {key: written[key] for key in keys})
        shutil.rmtree("out")
