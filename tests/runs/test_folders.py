"""Runs over many pictures lose nothing: they go on where they stopped, share work, and survive every kind of bad file."""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image
from support.command_line import (
    FILES,
    INDEX,
    SIDECAR,
    Finished,
    Pathx,
    config,
    document,
    files,
    network,
    picture,
    same,
    scripted,
)
from support.faults import in_a_child
from support.many import lines, photos

import pathx.runs.compute
from pathx.runs.run import Settings, State, explain_files

pytestmark = pytest.mark.usefixtures("here", "patience")


# Going on


def in_the_middle(phase: str, number: signal.Signals, *arguments: str) -> str:
    """Run a command that gets a signal at the third one of its events of a kind; what it printed."""
    log = Path("log.txt")
    status, phases = in_a_child((*arguments, "--out", "undisturbed"), log)
    assert status == 0, log.read_text()
    event = [at for at, one in enumerate(phases) if one == phase][2]
    assert in_a_child((*arguments, "--out", "pathx-out"), log, event, number)[0] == 128 + number, log.read_text()
    return log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_a_signal_ends_a_run_in_good_order(pathx_: Pathx) -> None:
    arguments = ("explain", photos(20), "--batch-size", "4", "--no-pictures")
    scripted(network())
    said = in_the_middle("compute", signal.SIGINT, *arguments)
    written = lines("pathx-out")
    done_so_far = f"{len(written)} of 20 images are done"
    assert said.splitlines()[-1] == f"pathx: interrupted: {done_so_far}; run the same command again to continue"
    assert len([file for file in files("pathx-out") if file.endswith("path.json")]) == len(written)
    assert not [file for file in files("pathx-out") if file.endswith(".part")]
    done = pathx_(*arguments, "--model", "model.pt")
    assert done.status == 0
    assert f"pathx: {20 - len(written)} explained, {len(written)} done before in " in done.err


def remade(pathx_: Pathx, *arguments: object) -> list[str]:
    """Which pictures a run makes again; it is the second one into the same folder."""
    before = {file: Path("pathx-out", file).stat().st_mtime_ns for file in files("pathx-out")}
    done = pathx_("explain", "photos", *arguments)
    assert done.status == 0, done.err
    after = {file: Path("pathx-out", file).stat().st_mtime_ns for file in files("pathx-out") if "path.json" in file}
    return sorted({str(Path(file).parents[1]) for file, at in after.items() if before.get(file) != at})


def test_only_what_is_whole_and_the_same_is_left_alone(pathx_: Pathx) -> None:
    everything = [f"photos/{folder}/{number}.png" for folder in "abc" for number in range(2)]
    photos(6)
    arguments = ("--model", scripted(network()), "--target", "cat", "--batch-size", 3, "--no-pictures")
    assert remade(pathx_, *arguments) == everything
    assert remade(pathx_, *arguments) == []
    assert remade(pathx_, *arguments, *config(workers=3)) == []  # how it is made does not matter
    assert remade(pathx_, *arguments, "--overwrite") == everything
    for changed in (("--depth", 1), ("--mean", 0), config(importance="effect"), ("--save-tensors",)):
        assert remade(pathx_, *arguments, *changed) == everything
        assert remade(pathx_, *arguments, *changed) == []
    shutil.copy("photos/b/0.png", "photos/a/1.png")  # another picture of that name
    (Path("pathx-out/photos/a/0.png/cat/path.json")).unlink()
    document_ = Path("pathx-out/photos/b/1.png/cat/path.json")
    document_.write_bytes(document_.read_bytes()[:-9])
    Path("pathx-out/photos/c/0.png/cat/tensors.safetensors").unlink()
    shutil.rmtree("pathx-out/photos/c/1.png")
    arguments += ("--save-tensors",)
    assert remade(pathx_, *arguments) == [f"photos/{name}.png" for name in ("a/0", "a/1", "b/1", "c/0", "c/1")]
    assert remade(pathx_, *arguments) == []
    pathx_(
        "explain", "photos/a/0.png", *arguments, "--depth", 1
    )  # which is named alone: always made, never in the index
    assert remade(pathx_, *arguments) == ["photos/a/0.png"]
    Path("pathx-out/index.jsonl").unlink()
    assert remade(pathx_, *arguments) == everything
    scripted(network(classes=4), sidecar={"input_size": [3, 8, 8], "mean": 0.5, "std": 0.25})
    assert remade(pathx_, *arguments[:2], "--target", "0", "--no-pictures") == everything


def test_failures_are_tried_again(pathx_: Pathx) -> None:
    photos(4)
    Path("photos/a/0.png").rename("aside.png")
    Path("photos/a/0.png").write_text("no picture")
    arguments = ("explain", "photos", "--model", scripted(network()), "--target", "cat")
    done = pathx_(*arguments)
    assert done.status == 1
    assert done.err.splitlines()[-1] == "pathx: 1 of 4 images failed; the rest is in pathx-out"
    failed = next(line for line in lines("pathx-out") if "error" in line)
    assert (failed["file"], failed["explanations"]) == ("photos/a/0.png", [])
    assert failed["error"].startswith("photos/a/0.png is not an image that pathx reads")
    shutil.move("aside.png", "photos/a/0.png")
    done = pathx_(*arguments)
    assert (done.status, done.err.splitlines()[-1].partition(" in ")[0]) == (0, "pathx: 1 explained, 3 done before")
    assert len(lines("pathx-out")) == 4
    for line in lines("pathx-out"):
        keys = ("file", "name", "explanations", "label", "correct", "top", "seconds", "command", "run")
        assert tuple(line) == keys and line["file"] == line["name"] and line["seconds"] > 0
        (made,) = line["explanations"]
        written = document(Path("pathx-out", made["folder"]))
        assert made["folder"].startswith(f"{line['name']}/") and written["image"]["file"] == line["file"]
        assert (written["target"]["index"], written["target"]["label"]) == (made["target"], made["label"])
        assert written["target"]["probability"] == made["probability"]
        assert written["linear_model"]["score"] == made["score"]
        assert set(made["files"]) == files(Path("pathx-out", made["folder"])) == FILES


def test_decompositions_go_on_as_well(pathx_: Pathx) -> None:
    folder, model = photos(3), scripted(network())
    arguments = ("decompose", folder, "--model", model, "--target", "top:2", "--no-pictures", "--format", "json")
    arguments += ("--save-tensors", "--width", 4)
    first = pathx_(*arguments)
    assert first.status == 0, first.err
    assert not [file for file in files("pathx-out") if file.endswith(".png") and Path("pathx-out", file).is_file()]
    again = pathx_(*arguments)
    assert again.err.startswith("pathx: 0 decomposed, 3 done before in ")
    assert again.documents == first.documents
    assert [made["schema"] for made in again.documents] == ["pathx/decomposition@2"] * 6
    for gone in ("*/feature-01/tensors.safetensors", "contrast.json", "*/decomposition.json"):
        next(Path("pathx-out/photos/a/0.png").glob(gone)).unlink()
        assert pathx_(*arguments).err.startswith("pathx: 1 decomposed, 2 done before in "), gone
    for line in lines("pathx-out"):
        assert all(set(made["files"]) == files(Path("pathx-out", made["folder"])) for made in line["explanations"])
    other = pathx_(*arguments, "--features", 1)  # all of them, as that is another way to decompose
    replaced = "results of 3 images with features None are replaced; "
    assert other.err == f"pathx: note: {replaced}to keep both, choose another folder with --out\n"
    assert pathx_("explain", *arguments[1:]).err == ""
    assert sorted(line["command"] for line in lines("pathx-out")) == ["decompose"] * 3 + ["explain"] * 3


def test_nothing_rests_on_an_explanation_that_was_replaced(pathx_: Pathx) -> None:
    """The parts and contrasts of an older explanation go with it, and are made again where they are asked for."""
    folder, model = photos(3), scripted(network())
    arguments = (folder, "--model", model, "--no-pictures", "--format", "json")
    apart = (*arguments, "--target", "top:2", "--width", 4)
    first = pathx_("decompose", *apart)
    assert pathx_("explain", *arguments, "--depth", 1, "--width", 1).status == 0
    of_one = [line for line in lines("pathx-out") if line["command"] == "explain"]
    for made in (line["explanations"][0] for line in of_one):
        assert not Path("pathx-out", made["folder"], "decomposition.json").exists()
        assert not Path("pathx-out", made["folder"]).parent.joinpath("contrast.json").exists()
    again = pathx_("decompose", *apart)
    assert again.documents == first.documents
    replaced = "results with depth 1, width 1 in pathx-out/photos/a/0.png are replaced; "
    assert again.err == f"pathx: note: {replaced}to keep both, choose another folder with --out\n"


# Shards


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
def test_shards_at_once_are_one_run(pathx_: Pathx) -> None:
    scripted(network())
    arguments = (photos(8), "--target", "cat", "--no-pictures")

    def run_shard(number: int) -> int:
        shard = ("explain", *arguments, "--out", "parts", "--shard", f"{number}/2")
        return in_a_child(shard, Path(f"log{number}"))[0]

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run_shard, (1, 2))) == [0, 0]
    arguments += ("--model", "model.pt")
    done = pathx_("merge", "parts")
    assert done == Finished(0, "parts/index.jsonl: 8 images, 8 done, 0 failed\n", "")
    assert pathx_("explain", *arguments, "--out", "whole").status == 0
    assert files("parts") == files("whole")
    for file in files("whole"):
        if file.endswith("path.json"):
            assert same(document(Path("parts", file).parent), document(Path("whole", file).parent))
    again = pathx_("explain", *arguments, "--out", "parts")
    assert again.err.startswith("pathx: 0 explained, 8 done before in ")


# Many


def test_every_way_of_naming_pictures(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(6)
    Path("list.txt").write_text("photos/c\n")
    stdin = SimpleNamespace(buffer=io.BytesIO(b"photos/b/0.png\nphotos/b/1.png\n"))
    monkeypatch.setattr(sys, "stdin", stdin)
    options = ("--model", scripted(network()), "--target", "cat", "--format", "json", "--no-pictures")
    done = pathx_("explain", "photos/a/*.png", "-", "list.txt", "photos", *options, "--out", "photos/out")
    assert done.status == 0
    expected = [f"photos/{folder}/{number}.png" for folder in "abc" for number in range(2)]
    assert [made["image"]["file"] for made in done.documents] == expected
    assert len(pathx_("explain", "photos", *options, "--out", "photos/out").documents) == 6
    assert len(pathx_("explain", "photos", *options, "--out", "photos/other").documents) == 6


def test_an_image_on_standard_input_is_an_image(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    with Image.open(picture()) as image:
        image.save(stream, "webp")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stream.getvalue())))
    done = pathx_("explain", "-", "--model", scripted(network()), "--no-pictures", "--format", "json")
    assert done.status == 0, done.err
    (made,) = done.documents
    assert made["image"]["sha256"] == hashlib.sha256(stream.getvalue()).hexdigest()
    (folder,) = (path for path in Path("pathx-out").iterdir() if path.is_dir())
    assert folder.name == made["image"]["file"] and folder.stem == "stdin"


def test_a_folder_called_as_two_classes_keeps_its_label_and_says_so(pathx_: Pathx) -> None:
    for number in range(3):
        picture(f"photos/Red_fox/{number}.png", seed=number)
    sidecar = {**SIDECAR, "labels": ["red fox", "Red Fox", "dog"]}
    done = pathx_("explain", "photos", "--model", scripted(network(), sidecar=sidecar), "--no-pictures", "--depth", 1)
    assert done.status == 0
    told = "the label red fox is ambiguous, as classes 0 and 1 have it: the likelier one counts"
    assert done.err.count(told) == 1
    assert {line["label"] for line in lines("pathx-out")} <= {"red fox", "Red Fox"}
    assert all(line["correct"] == (line["top"][0]["label"] != "dog") for line in lines("pathx-out"))


# Hostile folders


def test_a_folder_of_odd_files_costs_a_line_each(pathx_: Pathx) -> None:
    whole = Path(picture("p/good.png")).read_bytes()
    bad = {
        "empty.jpg": b"",
        "text.jpg": b"Dear diary",
        "cut.png": whole[: len(whole) // 2],
        "bomb.png": whole[:16] + (60_000).to_bytes(4, "big") * 2 + whole[24:],
        "two\nlines.gif": b"GIF89a",
    }
    for name, content in bad.items():
        Path("p", name).write_bytes(content)
    os.symlink("nowhere", "p/dangling.webp")
    os.mkfifo("p/pipe.jpg")
    Path("p/really a jpeg.png").write_bytes(Path(picture("q/x.jpg")).read_bytes())
    picture("p/1x1.png", (1, 1))
    picture("p/tall.png", (1, 5000))
    picture("p/wide.png", (5000, 1))
    picture("p/Zoë's café.png")
    odd = os.fsdecode(b"p/caf\xe9.png")
    shutil.copy("p/good.png", odd)
    good = {"p/good.png", "p/really a jpeg.png", "p/1x1.png", "p/tall.png", "p/wide.png", "p/Zoë's café.png", odd}
    done = pathx_("explain", "p", "--model", scripted(network()), "--target", "cat", "--batch-size", 5)
    assert done.status == 1
    found = lines("pathx-out")
    assert {line["file"] for line in found if "error" not in line} == good
    failed = {f"p/{name}" for name in (*bad, "dangling.webp", "pipe.jpg")}
    assert {line["file"] for line in found if "error" in line} == failed
    assert all(files(Path("pathx-out", file, "cat")) == FILES for file in good)
    *failures, summary, last = done.err.splitlines()
    assert len(failures) == len(failed) and all(line.startswith("pathx: ") for line in failures)
    assert summary.startswith("pathx: 7 explained, 7 failed in ")
    assert last == "pathx: 7 of 14 images failed; the rest is in pathx-out"


def test_files_that_vanish_or_change_while_it_runs() -> None:
    photos(9)
    names = [f"photos/{folder}/{number}.png" for folder in "abc" for number in range(3)]
    model = pathx.load_model(scripted(network()))
    results = explain_files(model, ["photos"], "out", settings=Settings(batch_size=1, workers=1, pictures=False))
    next(results)
    Path(names[-1]).unlink()
    shutil.copy(names[0], names[-2])
    *rest, changed, gone = results
    assert all(result.state is State.done for result in rest)
    assert gone.state is State.failed and "no such file" in str(gone.error)
    assert changed.state is State.done
    first = document(f"out/{names[0]}/{next(Path('out', names[0]).iterdir()).name}")
    assert changed.document["image"]["sha256"] == first["image"]["sha256"]


def test_a_picture_that_trips_us_costs_a_line(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathx import pipeline

    whole = pipeline.decode_image

    def decode_image(file: str, **options: bool) -> object:
        if file.endswith("b/0.png"):
            raise ZeroDivisionError("by zero")
        return whole(file, **options)

    monkeypatch.setattr(pipeline, "decode_image", decode_image)
    done = pathx_("explain", photos(4), "--model", scripted(network()), "--no-pictures", "--quiet")
    assert done.status == 1
    assert done.err.startswith("pathx: photos/b/0.png: unexpected ZeroDivisionError: by zero (set PATHX_DEBUG=1 ")
    assert len([line for line in lines("pathx-out") if "error" not in line]) == 3


def test_single_pictures_leave_no_index(pathx_: Pathx) -> None:
    model = scripted(network())
    for _ in range(2):  # and are made again
        done = pathx_("explain", picture(), "--model", model, "--target", "cat")
        assert (done.status, done.err) == (0, "")
        assert done.out.startswith("photo.png\n")
        assert files("pathx-out") == {f"photo.png/cat/{name}" for name in FILES}
    done = pathx_("explain", photos(1), "--model", model, "--target", "cat")
    assert done.out.startswith("photos/a/0.png\n")
    assert files("pathx-out") > INDEX
    done = pathx_("explain", "photos", "--model", model, "--target", "cat")
    assert done.out.startswith("photos/a/0.png: done before: cat ")
    assert Path("pathx-out/run.json").exists()
