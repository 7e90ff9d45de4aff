"""What others wrote stays, what is true stays, and nothing waits for ever."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import ROOT, Pathx, document, files, network, picture, scripted
from support.faults import check_nothing_is_half_written, check_nothing_is_left_over, in_a_child, tree
from support.many import by_name, lines, photos

pytestmark = pytest.mark.usefixtures("here")


BASE = ("--depth", 2, "--width", 3, "--target", "cat", "--batch-size", 3)


# Results do not vanish


def test_fewer_files_are_no_reason_to_remove_any(pathx_: Pathx) -> None:
    arguments = ("explain", photos(3), "--model", scripted(network()), *BASE)
    assert pathx_(*arguments).status == 0
    before = {name: Path("pathx-out", name).read_bytes() for name in files("pathx-out") if name.endswith(".png")}
    assert before and pathx_(*arguments, "--no-pictures").status == 0
    assert {name: Path("pathx-out", name).read_bytes() for name in before} == before
    assert all("heatmap.png" in line["explanations"][0]["files"] for line in lines("pathx-out"))


def test_other_preprocessing_pixels_or_weights_leave_no_class_of_before(pathx_: Pathx) -> None:
    """Nor do other pixels under the same name: what lies side by side is of one image, seen in one way."""
    photo, model = picture(), scripted(network())
    arguments = ("explain", photo, "--model", model, "--depth", 1, "--no-pictures")
    assert pathx_(*arguments, "--target", "cat").err == ""
    assert pathx_(*arguments, "--target", "dog").err == ""
    other = pathx_(*arguments, "--target", "cat", "--mean", "0.2")
    assert "note: results with other preprocessing in pathx-out/photo.png are replaced" in other.err
    assert os.listdir("pathx-out/photo.png") == ["cat"]
    picture(seed=5)
    again = pathx_(*arguments, "--target", "dog", "--mean", "0.2")
    assert "note: results of an earlier version of the image in pathx-out/photo.png are replaced" in again.err
    assert os.listdir("pathx-out/photo.png") == ["dog"]
    changed = network()
    torch.nn.init.ones_(next(changed.parameters()))
    other = ("explain", photo, "--model", scripted(changed, "other.pt"), "--target", "cat", "--mean", "0.2")
    done = pathx_(*other, "--depth", 1, "--no-pictures")
    assert done.err.count("are replaced") == 1 and "results with model model.pt in pathx-out/photo.png" in done.err
    assert os.listdir("pathx-out/photo.png") == ["cat"]


def test_new_settings_for_one_question_leave_results_of_others(pathx_: Pathx) -> None:
    arguments = ("explain", picture(), "--model", scripted(network()), "--no-pictures", "--target", "cat")
    folder = Path("pathx-out/photo.png")
    assert pathx_(*arguments, "--against", "dog", "--depth", 3).status == 0
    assert pathx_(*arguments, "--depth", 3).status == 0
    before = {name: (folder / name).read_bytes() for name in files(folder)}
    done = pathx_(*arguments, "--against", "red fox", "--depth", 1)
    assert (done.status, done.err) == (0, "")
    assert pathx_(*arguments[:-1], "dog", "--depth", 1).err == ""
    assert {name: (folder / name).read_bytes() for name in before} == before
    assert sorted(os.listdir(folder)) == ["cat", "cat-against-dog", "cat-against-red-fox", "dog"]
    again = pathx_(*arguments, "--depth", 1)
    assert again.err.count("are replaced") == 1 and "results with depth 3 in pathx-out/photo.png" in again.err


def test_accuracy_and_where_to_look(pathx_: Pathx) -> None:
    for number, label in enumerate(("cat", "dog", "red fox", "dog", "else")):
        picture(f"photos/{label}/{number}.png", (12, 9), seed=number)
    done = pathx_("explain", "photos", "--model", scripted(network()), "--no-pictures")
    assert done.status == 0
    found = by_name()
    assert found["photos/else/4.png"]["label"] is None and found["photos/else/4.png"]["correct"] is None
    labelled = [line for line in found.values() if line["label"] is not None]
    assert [line["label"] for line in labelled] == ["cat", "dog", "dog", "red fox"]
    for line in labelled:
        assert line["correct"] is (line["top"][0]["label"] == line["label"]) and len(line["top"]) == 3
    right = sum(line["correct"] for line in labelled)
    assert f"pathx: {right} of 4 images with a label are predicted as labelled ({right / 4:.1%})\n" in done.err
    wrong = [line for line in done.err.splitlines() if line.startswith("pathx: wrong: ")]
    assert len(wrong) == 4 - right > 0
    again = pathx_("explain", "photos", "--model", "model.pt", "--no-pictures")
    assert [line for line in again.err.splitlines() if "wrong: " in line] == wrong


# Files of others


@pytest.mark.parametrize(("name", "content"), [("index.jsonl", '{"mine": 1}\n'), ("run.json", "no JSON at all")])
def test_files_of_others_in_the_place_of_ours(pathx_: Pathx, name: str, content: str) -> None:
    Path("pathx-out").mkdir()
    Path("pathx-out", name).write_text(content)
    done = pathx_("explain", photos(3), "--model", scripted(network()))
    assert done.status == 2
    assert (
        done.err
        == f"pathx: pathx-out/{name} was not written by pathx and is left alone: choose another folder with --out\n"
    )
    assert files("pathx-out") == {name} and Path("pathx-out", name).read_text() == content


def test_a_path_json_of_somebody_else(pathx_: Pathx) -> None:
    place = Path("pathx-out/photo.png/cat/path.json")
    place.parent.mkdir(parents=True)
    place.write_text("mine")
    done = pathx_("explain", picture(), "--model", scripted(network()), "--target", "cat")
    assert done.status == 1 and f"{place} was not written by pathx and is left alone" in done.err
    assert files("pathx-out") == {"photo.png/cat/path.json"} and place.read_text() == "mine"


def test_evaluations_leave_files_of_others_alone(pathx_: Pathx) -> None:
    arguments = ("evaluate", photos(3), "--model", scripted(network()), "--methods", "random", "--steps", 2)
    for name in ("evaluation.json", "records.jsonl", "images.csv"):
        out = Path(f"out-{name}")
        out.mkdir()
        (out / name).write_text("mine\n")
        done = pathx_(*arguments, "--out", out)
        assert done.status == 2 and done.err.startswith(f"pathx: {out / name} was not written by pathx")
        assert files(out) == {name} and (out / name).read_text() == "mine\n"


# One bad image


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("command", ["evaluate", "grid", "common"])
def test_one_bad_image_costs_itself(pathx_: Pathx, command: str) -> None:
    photos(2)
    Path("photos/00.png").write_text("no picture")  # the first of all
    os.symlink("nowhere", "photos/dangling.png")
    options = ("--methods", "random", "--steps", 2) if command != "common" else ()
    options += ("--grid", "1/2") if command == "grid" else ()
    name = command.replace("grid", "evaluate")
    done = pathx_(name, "photos", "none.png", "--model", scripted(network()), *options, "--out", "out", "--quiet")
    assert done.status == 1
    assert len(done.err.splitlines()) == 3 and all(line.startswith("pathx: ") for line in done.err.splitlines())
    document_ = next(Path("out").glob(f"{command.replace('evaluate', 'evaluation')}.json"))
    assert json.loads(document_.read_text())["images"] == 2
    assert command != "grid" or Path("out/sheet.png").exists()
    assert pathx_(name, "none.png", "--model", "model.pt", *options).status == 2


# Nothing waits for ever


def test_pipes_in_the_place_of_files(pathx_: Pathx) -> None:
    arguments = ("explain", photos(3), "--model", scripted(network()), "--no-pictures")
    assert pathx_(*arguments).status == 0
    Path("photos/b/0.png").unlink()
    os.mkfifo("photos/b/0.png")  # in the place of an image that was done
    done = pathx_(*arguments)
    assert done.status == 1 and "photos/b/0.png cannot be read: it is not a regular file" in done.err
    Path("pathx-out/run.json").unlink()
    os.mkfifo("pathx-out/run.json")
    assert pathx_(*arguments).err.startswith("pathx: pathx-out/run.json was not written by pathx")


def test_a_great_many_shards(pathx_: Pathx) -> None:
    arguments = (
        "explain",
        photos(3),
        "--model",
        scripted(network()),
        "--no-pictures",
        "--shard",
        "999999999/999999999",
    )
    assert pathx_(*arguments).status == 0
    done = pathx_("merge", "pathx-out")
    assert done.status == 1 and "pathx: shard 1/999999999 has not been run" in done.err
    assert len(done.err.splitlines()) < 30


# Two at once


def test_a_second_run_with_other_settings_is_told_before_it_begins(pathx_: Pathx) -> None:
    import pathx
    from pathx.runs.run import Settings, explain_files

    model = pathx.load_model(scripted(network()))
    first = explain_files(model, [photos(6)], "pathx-out", settings=Settings(batch_size=1, depth=2, pictures=False))
    next(first)
    done = pathx_("explain", "photos", "--model", "model.pt", "--depth", 1)
    assert done.status == 2
    assert done.err.startswith("pathx: another run with other settings is writing to pathx-out: wait until it")
    assert len(list(first)) == 5
    assert {document(Path(file).parent)["depth"] for file in Path("pathx-out").rglob("path.json")} == {2}
    assert pathx_("explain", "photos", "--model", "model.pt", "--depth", 1, "--no-pictures").status == 0


EQUAL: dict[str, tuple[str, ...]] = {
    "explain": ("explain", "--target", "top:2", "--no-pictures"),
    "overwrite": ("explain", "--overwrite", "--no-pictures"),
    "decompose": ("decompose", "--depth", "2", "--width", "2", "--no-pictures"),
    "report": ("explain", "--no-pictures", "--report"),
    "pack": ("explain", "--no-pictures", "--pack", "tar"),
    "units": ("units", "--top", "2", "--no-pictures"),
    "evaluate": ("evaluate", "--methods", "saliency", "--steps", "3"),
}


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name == "explain" else pytest.mark.slow) for name in EQUAL]
)
def test_equal_commands_at_once_all_succeed(name: str) -> None:
    photos(6)
    scripted(network())
    command, *options = EQUAL[name]
    arguments = (command, "photos", *options, "--batch-size", "2")
    assert in_a_child((*arguments, "--out", "alone"), Path("log"))[0] == 0
    whole = tree("alone")
    with ThreadPoolExecutor(3) as pool:
        logs = [Path(f"log-{number}") for number in range(3)]
        ended = list(pool.map(lambda log: in_a_child((*arguments, "--out", "out"), log), logs))
    assert [status for status, _ in ended] == [0] * 3, "".join(log.read_text() for log in logs)
    assert not any("unexpected" in log.read_text() for log in logs)
    check_nothing_is_half_written("out")
    check_nothing_is_left_over("out")
    if name != "pack":  # each has shards of its own, and records of its own
        assert {**tree("out"), "records.jsonl": []} == {**whole, "records.jsonl": []}


# Memory


def test_short_memory_while_files_are_written_is_tried_again(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    import pathx.runs.run as writing

    whole, failed = writing.explanation_files, set()

    def explanation_files(explanation: Any, subject: Any, *rest: Any) -> Any:
        if subject.image.file not in failed:
            failed.add(subject.image.file)
            raise MemoryError
        return whole(explanation, subject, *rest)

    monkeypatch.setattr(writing, "explanation_files", explanation_files)
    done = pathx_("explain", photos(3), "--model", scripted(network()), "--no-pictures", "--quiet")
    assert (done.status, done.err, len(failed)) == (0, "", 3)


# Where output goes


def shell(command: str) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, env=environment, check=False)
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_output_that_cannot_be_written() -> None:
    pathx = f"{sys.executable} -m pathx"
    for command, status in ((f"{pathx} --version > /dev/full", 1), (f"{pathx} --help >&-", 2)):
        code, err = shell(command)
        assert code == status and len(err.splitlines()) == 1 and err.startswith("pathx: "), err
    assert shell(f"{pathx} --version 2>&- >/dev/null") == (0, "")
    run = f"{pathx} explain {photos(2)} --model {scripted(network())} --no-pictures"
    code, err = shell(f"{run} --overwrite > /dev/full")
    assert code == 1 and err.splitlines() == [
        "pathx: cannot write to standard output (No space left on device): results are in their files"
    ]
    assert len(lines("pathx-out")) == 2


@pytest.mark.parametrize("number", [2, 15])
def test_signals_while_everything_is_loaded(number: int) -> None:
    """The interpreter is told to stop in the middle of `import torch`."""
    script = f"""
import os, sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            os.kill(os.getpid(), {number})
sys.meta_path.insert(0, Finder())
sys.argv = ["pathx", "explain", "x.png"]
from pathx.__main__ import run
run()
"""
    Path("script.py").write_text(script)
    code, err = shell(f"{sys.executable} script.py")
    assert (code, err) == (128 + number, "pathx: interrupted; run the same command again to continue\n")


@pytest.mark.slow
def test_common_paths_are_the_same_whatever_the_hash_seed() -> None:
    photos(4)
    scripted(network())
    for seed in (1, 2, 3):
        command = f"{sys.executable} -m pathx common photos --model model.pt --width 4 --out out{seed}"
        assert shell(f"PYTHONHASHSEED={seed} OMP_NUM_THREADS=1 {command} > /dev/null")[0] == 0
    assert Path("out1/common.json").read_bytes() == Path("out2/common.json").read_bytes()
    assert Path("out1/common.json").read_bytes() == Path("out3/common.json").read_bytes()
    shutil.rmtree("out1")


@pytest.mark.parametrize("number", [signal.SIGTERM])
def test_the_second_signal_ends_the_process_there_and_then(number: signal.Signals) -> None:
    script = f"""
import os
from pathx.runs.stop import Stop
with Stop().on_signals():
    for _ in range(3):
        os.kill(os.getpid(), {int(number)})
print("never")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert done.stderr.splitlines()[-1] == "pathx: interrupted; run the same command again to continue"
