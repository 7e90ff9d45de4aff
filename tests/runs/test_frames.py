"""Frames from the command line to the index: each has its results, goes on as other images do, and fails alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.clips import write_pages, write_video
from support.command_line import Pathx

QUICK = ("--weights", "none", "--input-size", "3,64,64", "--no-pictures", "--depth", "1", "--batch-size", "2")


def index() -> list[dict[str, object]]:
    return [json.loads(line) for line in Path("pathx-out/index.jsonl").read_text().splitlines()]


def test_every_tenth_frame_of_a_clip(pathx_: Pathx, here: Path) -> None:
    write_video(Path("clip.mp4"), 45)
    ended = pathx_("explain", "clip.mp4", "--every", "10", *QUICK)
    assert ended.status == 0, ended.err
    names = [f"clip.mp4/frame-{number:05d}" for number in range(0, 45, 10)]
    assert sorted(str(line["name"]) for line in index()) == names  # the index is in the order of finishing
    made = [json.loads(next(Path("pathx-out", name).glob("*/path.json")).read_text()) for name in names]
    assert [one["image"]["file"] for one in made] == [f"clip.mp4#frame={number}" for number in range(0, 45, 10)]
    assert len({one["image"]["sha256"] for one in made}) == 5


def test_a_run_goes_on_with_frames_that_are_missing(pathx_: Pathx, here: Path) -> None:
    write_pages(Path("pages.gif"), 4)
    assert pathx_("explain", "pages.gif", "--every", 1, *QUICK).status == 0
    files = {file: file.stat().st_mtime_ns for file in Path("pathx-out").glob("pages.gif/*/*/path.json")}
    assert len(files) == 4
    gone = next(file for file in files if "frame-00002" in file.parts)
    before = gone.read_bytes()
    gone.unlink()
    assert pathx_("explain", "pages.gif", "--every", 1, *QUICK).status == 0
    assert gone.read_bytes() == before
    assert all(file.stat().st_mtime_ns == time for file, time in files.items() if file != gone)
    write_pages(Path("pages.gif"), 5)
    assert pathx_("explain", "pages.gif", "--every", 1, *QUICK).status == 0
    assert all(file.stat().st_mtime_ns != time for file, time in files.items() if file.exists())


def test_a_bad_clip_costs_itself(pathx_: Pathx, here: Path) -> None:
    pytest.importorskip("av", reason="videos need PyAV")
    Path("photos").mkdir()
    write_pages(Path("photos/a.tif"), 2)
    Path("photos/b.mp4").write_bytes(b"no video at all")
    ended = pathx_("explain", "photos", "--every", 1, *QUICK)
    assert ended.status == 1
    assert "photos/b.mp4 is damaged or no video" in ended.err.replace("\n", " ")
    errors = {line["name"]: "error" in line for line in index()}
    assert errors == {"photos/a.tif/frame-00000": False, "photos/a.tif/frame-00001": False, "photos/b.mp4": True}


@pytest.mark.parametrize("step", ["0", "-3", "ten", "1.5"])
def test_steps_that_are_none(pathx_: Pathx, here: Path, step: str) -> None:
    ended = pathx_("explain", "clip.mp4", f"--every={step}")
    assert ended.status == 2
    assert "--every takes" in ended.err
