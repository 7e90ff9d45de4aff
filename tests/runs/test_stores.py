"""Runs whose images or results are in a store: what is there afterwards, and how they go on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.archives import image_bytes, shard
from support.command_line import Pathx, network, picture, scripted
from support.faults import killed_after, timeless, tree
from support.many import labelled
from support.stores import content, put, s3_server, store

import pathx.images.read
from pathx.errors import PathxError
from pathx.results import packs
from pathx.results.store import RemoteStore

fsspec = pytest.importorskip("fsspec", reason="stores are an extra: pip install 'pathx-relu[remote]'")
pytestmark = pytest.mark.usefixtures("here")
QUICK = ("--no-pictures", "--depth", 2, "--width", 3, "--batch-size", 2)


@pytest.fixture(scope="module", params=["memory", pytest.param("s3", marks=pytest.mark.slow)])
def place(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where a store is."""
    with store(request.param) as address:
        yield address


def lines(data: bytes) -> dict[str, dict[str, Any]]:
    found = [json.loads(text) for text in data.splitlines()]
    assert len({line["name"] for line in found}) == len(found)
    return {line["name"]: line for line in found}


def test_images_in_a_store_are_explained_once_and_not_read_again(
    place: str, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        put(f"{place}/photos/{number}.png", image_bytes(number))
    shard("shard.tar", 2)
    put(f"{place}/shard.tar", Path("shard.tar").read_bytes())
    model = scripted(network())
    arguments = ("explain", f"{place}/photos", f"{place}/shard.tar", "--model", model, *QUICK)
    ended = pathx_(*arguments)
    assert ended.status == 0, ended.err
    bucket = place.partition("://")[2]
    photos, members = (
        [f"{bucket}/photos/{number}.png" for number in range(3)],
        [f"{bucket}/shard.tar/0000{n}" for n in (0, 1)],
    )
    assert set(lines(Path("pathx-out/index.jsonl").read_bytes())) == {*photos, *members}
    fetched: list[object] = []
    for name in ("fetch_stored", "member_bytes"):
        whole = getattr(pathx.images.read, name)
        monkeypatch.setattr(pathx.images.read, name, lambda *one, whole=whole: (fetched.append(one[0]), whole(*one))[1])
    ended = pathx_(*arguments)
    assert ended.status == 0 and "0 explained, 5 done before" in ended.err
    assert len(fetched) == 1  # one is computed again, to see that the network is the same
    put(f"{place}/photos/1.png", image_bytes(11))
    ended = pathx_(*arguments)
    assert ended.status == 0 and "1 explained, 4 done before" in ended.err


def test_what_is_missing_in_a_store_costs_itself(place: str, pathx_: Pathx) -> None:
    put(f"{place}/some/a.png", image_bytes(1))
    put(f"{place}/some/b.png", b"no image")
    ended = pathx_("explain", f"{place}/some", f"{place}/gone.png", "--model", scripted(network()), *QUICK)
    assert ended.status == 1
    errors = [line["error"] for line in lines(Path("pathx-out/index.jsonl").read_bytes()).values() if "error" in line]
    assert len(errors) == 2 and any("the store holds nothing there" in error for error in errors)


# Results in a store


@pytest.mark.parametrize(
    ("place", "command"),
    [
        ("s3", ("explain", "--save-tensors", "--target", "top:2")),
        ("memory", ("explain", "--save-tensors", "--target", "top:2")),
        ("memory", ("decompose", "--no-pictures")),
    ],
    indirect=["place"],
)
def test_a_store_holds_what_a_folder_would(place: str, pathx_: Pathx, command: tuple[str, ...]) -> None:
    out, (name, *options) = f"{place}/out-{command[0]}", command
    how = ("--depth", 2, "--width", 3, "--batch-size", 2)
    arguments = (name, labelled(3), "--model", scripted(network()), *how, *options)
    local, stored = pathx_(*arguments, "--out", "local"), pathx_(*arguments, "--out", out)
    assert stored.status == local.status == 0, stored.err
    assert timeless(content(out)) == tree("local")
    again = pathx_(*arguments, "--out", out)
    assert again.status == 0 and "3 done before in" in again.err and f": {out}/index.jsonl" in again.err
    assert timeless(content(out)) == tree("local")


def test_what_is_gone_from_a_store_is_made_again(place: str, pathx_: Pathx) -> None:
    out = f"{place}/mended"
    arguments = ("explain", labelled(5), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0
    assert pathx_(*arguments, out).status == 0
    system, path = fsspec.core.url_to_fs(out)
    system.rm_file(f"{path}/{next(name for name in content(out) if 'cat/1.png' in name)}")
    put(f"{out}/{next(name for name in content(out) if 'dog/0.png' in name)}", b"{}")
    ended = pathx_(*arguments, out)
    assert ended.status == 0 and "2 explained, 3 done before" in ended.err
    assert timeless(content(out)) == tree("local")


@pytest.mark.slow
def test_a_killed_run_goes_on_in_a_store(pathx_: Pathx, here: Path) -> None:
    with s3_server() as place:
        out, model = f"{place}/killed", scripted(network())
        arguments = ("explain", labelled(8), "--model", model, *QUICK, "--out")
        assert pathx_(*arguments, "local").status == 0
        killed_after(3, "pathx.results.store:RemoteStore._flush_lines", (*arguments, out))
        before = content(out)
        assert any(name.endswith(".part") for name in before)
        ended = pathx_(*arguments, out)
        assert ended.status == 0 and "done before" in ended.err, ended.err
        assert timeless(content(out)) == tree("local")


def test_other_settings_leave_nothing_of_the_old_ones(place: str, pathx_: Pathx) -> None:
    out = f"{place}/replaced"
    arguments = ("explain", labelled(2), "--model", scripted(network()), "--depth", 2, "--width", 3, "--out")
    assert pathx_(*arguments, out, "--save-tensors").status == 0
    ended = pathx_(*arguments, out, "--no-pictures", "--width", 2)
    assert ended.status == 0 and "are replaced" in ended.err
    assert {Path(name).name for name in content(out)} == {"path.json", "contrast.json", "index.jsonl", "run.json"}


def test_shards_of_a_run_are_joined_in_a_store(place: str, pathx_: Pathx) -> None:
    out = f"{place}/joined"
    arguments = ("explain", labelled(5), "--model", scripted(network()), *QUICK, "--out", out)
    assert pathx_(*arguments, "--shard", "1/2").status == 0
    ended = pathx_("merge", out)
    assert ended.status == 1 and "shard 2/2 has not been run" in ended.err
    assert pathx_(*arguments, "--shard", "2/2").status == 0
    ended = pathx_("merge", out)
    assert ended.status == 0 and ended.out == f"{out}/index.jsonl: 5 images, 5 done, 0 failed\n"
    assert len(lines(content(out)["index.jsonl"])) == 5
    assert not [name for name in content(out) if "-of-" in name]


def test_an_upload_that_fails_costs_its_image(place: str, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    out, whole = f"{place}/refused", RemoteStore._upload

    def refuse(self: RemoteStore, files: dict[str, bytes]) -> None:
        if any("dog/1.png/" in name for name in files):
            raise PathxError("the store says no")
        whole(self, files)

    arguments = ("explain", labelled(5), "--model", scripted(network()), *QUICK, "--out", out)
    with monkeypatch.context() as patch:
        patch.setattr(RemoteStore, "_upload", refuse)
        ended = pathx_(*arguments)
    assert ended.status == 1 and "the store says no" in ended.err
    found = lines(content(out)["index.jsonl"])
    assert [name for name, line in found.items() if "error" in line] == ["photos/dog/1.png"]
    assert "1 explained, 4 done before" in pathx_(*arguments).err


def test_one_image_and_what_cannot_be_in_a_store(place: str, pathx_: Pathx, here: Path) -> None:
    model = scripted(network())
    ended = pathx_("explain", picture(), "--model", model, *QUICK, "--out", f"{place}/one")
    assert ended.status == 0 and f"{place}/one/photo.png/" in ended.out.replace("\n", "")
    assert [Path(name).name for name in content(f"{place}/one")] == ["path.json"]
    ended = pathx_("explain", "photo.png", "--model", model, "--report", "--out", f"{place}/one")
    assert ended.status == 2 and "--report" in ended.err
    ended = pathx_("evaluate", "photo.png", "--model", model, "--out", f"{place}/one")
    assert ended.status == 2 and "a folder of this machine" in ended.err
    ended = pathx_("report", f"{place}/one")
    assert ended.status == 2 and "copy" in ended.err
    ended = pathx_("redraw", f"{place}/one")
    assert ended.status == 2 and "copy" in ended.err
    assert not [file for file in here.iterdir() if ":" in file.name]


def test_shards_in_a_store(place: str, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SHARD_BYTES", 20_000)
    out = f"{place}/packed"
    arguments = ("explain", labelled(5), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0
    assert pathx_(*arguments, out, "--pack", "tar").status == 0
    shards = [name for name in content(out) if name.endswith(".tar")]
    assert len(shards) > 1 and set(content(out)) == {*shards, "index.jsonl", "run.json"}
    assert "0 explained, 5 done before" in pathx_(*arguments, out, "--pack", "tar").err
    fsspec.core.url_to_fs(out)[0].rm_file(f"{fsspec.core.url_to_fs(out)[1]}/{shards[0]}")
    ended = pathx_(*arguments, out, "--pack", "tar")
    assert ended.status == 0 and " 0 explained" not in ended.err and "done before" in ended.err
    assert pathx_("merge", out, "--unpack", "unpacked").status == 0
    assert tree("unpacked") == tree("local")
