"""`pathx merge`: the indexes of shards joined, what is missing, and packed results unpacked."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx, network, scripted
from support.many import lines, photos

pytestmark = pytest.mark.usefixtures("here", "patience")


def test_the_environment_names_the_shard(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("explain", photos(12), "--model", scripted(network()))
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    done = pathx_(*arguments)
    assert done.err.splitlines()[0] == "pathx: note: this is shard 1/3, says RANK; for everything use --shard 1/1"
    assert 0 < len(lines("pathx-out", "index.1-of-3.jsonl")) < 12
    merged = pathx_("merge", "pathx-out", "--format", "json")
    assert merged.status == 1
    assert merged.documents[0]["shards"] == ["2/3", "3/3"]
    assert "pathx: shard 2/3 has not been run: run it with --shard 2/3\n" in merged.err
    assert len(lines("pathx-out")) == len(lines("pathx-out", "index.1-of-3.jsonl"))
    assert pathx_(*arguments, "--shard", "1/1", "--out", "all").err.startswith("pathx: 12 explained in ")
    assert len(lines("all")) == 12
    assert pathx_("explain", "photos/a/0.png", "--model", "model.pt", "--quiet").status == 0  # named alone: no share
    assert Path("pathx-out/photos/a/0.png").is_dir()


def test_a_shard_without_pictures_has_been_run_all_the_same(pathx_: Pathx) -> None:
    arguments = ("explain", photos(1), "--model", scripted(network()))
    done = [pathx_(*arguments, "--shard", f"{number}/3") for number in (1, 2, 3)]
    assert [one.status for one in done] == [0, 0, 0]
    assert sum(f"pathx: note: no image falls to shard {at}/3\n" in one.err for at, one in enumerate(done, 1)) == 2
    merged = "pathx: note: all shards have finished and are merged: pathx-out\n"
    assert [merged in one.err for one in done] == [False, False, True]
    assert len(lines("pathx-out")) == 1 and not list(Path("pathx-out").glob("*-of-*"))
    assert pathx_("merge", "pathx-out").out == "pathx-out/index.jsonl: 1 images, 1 done, 0 failed\n"


QUICK = ("--no-pictures", "--depth", 2, "--width", 3, "--batch-size", 2)


def test_what_cannot_be_packed_or_unpacked_is_one_line(pathx_: Pathx) -> None:
    folder, model = photos(3), scripted(network())
    ended = pathx_("explain", folder, "--model", model, "--pack", "zip")
    assert ended.status == 2 and "into tar or parquet, not into 'zip'" in ended.err
    ended = pathx_("explain", folder, "--model", model, "--pack", "tar", "--report")
    assert ended.status == 2 and "--report" in ended.err
    assert pathx_("explain", folder, "--model", model, *QUICK, "--pack", "tar").status == 0
    for command in ("report", "redraw"):
        ended = pathx_(command, "pathx-out")
        assert ended.status == 2 and "run `pathx merge --unpack FOLDER` on it first" in ended.err
    ended = pathx_("merge", folder, "--unpack", "elsewhere")
    assert ended.status == 2 and "holds no packed results" in ended.err
    assert pathx_("merge", "pathx-out", "--unpack", "into").out == "into: the results of 3 images\n"
