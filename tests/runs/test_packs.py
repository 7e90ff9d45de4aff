"""Results packed into shards: all that folders would hold, in whole shards only, and runs that go on."""

from __future__ import annotations

import json
import tarfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx, network, picture, scripted

from pathx.errors import PathxError
from pathx.results import packs
from pathx.results.store import ResultStore, result_store

pytestmark = pytest.mark.usefixtures("one_thread", "here")
KINDS = ["tar", pytest.param("parquet", marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason=packs.INSTALL))]
QUICK = ("--no-pictures", "--depth", 2, "--width", 3, "--batch-size", 2)


def photos(count: int = 5) -> str:
    for number in range(count):
        picture(f"photos/{'cat' if number % 2 else 'dog'}/{number}.png", seed=number)
    return "photos"


def index(out: str) -> dict[str, dict[str, Any]]:
    lines = [json.loads(text) for text in Path(out, "index.jsonl").read_text().splitlines()]
    assert len({line["name"] for line in lines}) == len(lines)
    return {line["name"]: line for line in lines}


def in_folder(out: str) -> dict[str, bytes]:
    """Every file, but for the index, whose lines come in any order."""
    files = {str(file.relative_to(out)): file.read_bytes() for file in Path(out).rglob("*") if file.is_file()}
    return {name: data for name, data in files.items() if name != "index.jsonl"}


def check_unpacked(pathx_: Pathx, out: str, local: str) -> None:
    """Unpacked, they are the files of a run that does not pack, and the same lines but for their seconds."""
    ended = pathx_("merge", out, "--unpack", f"{out}-unpacked")
    assert ended.status == 0, ended.err
    assert in_folder(f"{out}-unpacked") == in_folder(local)
    ours, theirs = index(f"{out}-unpacked"), index(local)
    assert {name: line | {"seconds": 0} for name, line in ours.items()} == {
        name: line | {"seconds": 0} for name, line in theirs.items()
    }


@pytest.mark.parametrize("kind", KINDS)
def test_shards_hold_what_folders_would(pathx_: Pathx, kind: str) -> None:
    options = ("--depth", 2, "--batch-size", 2, "--target", "top:2", "--save-tensors")
    arguments = ("explain", photos(3), "--model", scripted(network()), *options, "--out")
    assert pathx_(*arguments, "local").status == 0
    ended = pathx_(*arguments, "out", "--pack", kind)
    assert ended.status == 0, ended.err
    (shard,) = [file for file in Path("out").iterdir() if file.suffix == f".{kind}"]
    assert {file.name for file in Path("out").iterdir()} == {shard.name, "index.jsonl", "run.json"}
    for line in index("out").values():
        assert {made["pack"] for made in line["explanations"]} == {shard.name}
        assert all(
            result_store("out").document(made)["target"]["index"] == made["target"] for made in line["explanations"]
        )
    check_unpacked(pathx_, "out", "local")


def test_decompositions_are_packed_too(pathx_: Pathx) -> None:
    arguments = ("decompose", photos(2), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0
    assert pathx_(*arguments, "out", "--pack", "tar").status == 0
    (shard,) = Path("out").glob("results-*.tar")
    with tarfile.open(shard) as archive:
        assert all(name.startswith("photos/") for name in archive.getnames())
    check_unpacked(pathx_, "out", "local")


@pytest.mark.parametrize("kind", KINDS)
def test_shards_end_at_their_size_and_a_run_goes_on(pathx_: Pathx, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SHARD_BYTES", 60_000)
    monkeypatch.setattr(packs, "GROUP_BYTES", 20_000)
    arguments = ("explain", photos(8), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0
    assert pathx_(*arguments, "out", "--pack", kind).status == 0
    shards = sorted(Path("out").glob(f"results-*.{kind}"))
    assert len(shards) > 1
    again = pathx_(*arguments, "out", "--pack", kind)
    assert again.status == 0 and "0 explained, 8 done before" in again.err
    lost = [name for name, line in index("out").items() if line["explanations"][0]["pack"] == shards[0].name]
    shards[0].unlink()
    again = pathx_(*arguments, "out", "--pack", kind)
    assert again.status == 0 and f"{len(lost)} explained, {8 - len(lost)} done before" in again.err
    check_unpacked(pathx_, "out", "local")
    assert "0 explained, 8 done before" in pathx_(*arguments, "out").err  # whichever way they are kept


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_shard_is_not_believed(pathx_: Pathx, kind: str) -> None:
    arguments = ("explain", photos(3), "--model", scripted(network()), *QUICK, "--out", "out", "--pack", kind)
    assert pathx_(*arguments).status == 0
    (shard,) = Path("out").glob(f"results-*.{kind}")
    shard.write_bytes(bytes(byte ^ 1 for byte in shard.read_bytes()))
    ended = pathx_(*arguments)
    assert ended.status == 0 and "done before" not in ended.err
    assert shard.name not in {line["explanations"][0]["pack"] for line in index("out").values()}


def test_failures_and_single_images_are_in_the_index(pathx_: Pathx) -> None:
    model = scripted(network())
    photos(2)
    Path("photos/bad.png").write_bytes(b"no image")
    ended = pathx_("explain", "photos", "--model", model, *QUICK, "--pack", "tar")
    assert ended.status == 1
    assert [name for name, line in index("pathx-out").items() if "error" in line] == ["photos/bad.png"]
    ended = pathx_("explain", "photos/cat/1.png", "--model", model, *QUICK, "--pack", "tar", "--out", "one")
    assert ended.status == 0 and list(index("one")) == ["photos/cat/1.png"]
    assert "results-" in ended.out.replace("\n", "")


def test_images_of_a_shard_that_cannot_be_finished_have_failed(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("explain", photos(4), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0

    def refuse(self: ResultStore, name: str, data: bytes) -> None:
        raise PathxError("the store says no")

    with monkeypatch.context() as patch:
        patch.setattr(ResultStore, "put", refuse)
        ended = pathx_(*arguments, "out", "--pack", "tar")
    assert ended.status == 1 and "4 images that were done are lost (the store says no)" in ended.err
    assert [line.get("error") for line in index("out").values()] == ["the store says no"] * 4
    assert not list(Path("out").glob("*.tar")) and not list(Path("out").glob(".pathx-*"))
    assert pathx_(*arguments, "out", "--pack", "tar").status == 0
    check_unpacked(pathx_, "out", "local")


def test_other_settings_take_the_place_of_folders_and_shards(pathx_: Pathx) -> None:
    arguments = ("explain", photos(2), "--model", scripted(network()), "--depth", 2, "--no-pictures")
    assert pathx_(*arguments, "--width", 3, "--out", "out").status == 0
    assert pathx_(*arguments, "--width", 2, "--out", "local").status == 0
    assert pathx_(*arguments, "--width", 2, "--out", "out", "--pack", "tar").status == 0
    assert not list(Path("out").rglob("path.json"))
    check_unpacked(pathx_, "out", "local")


def test_shards_of_a_run_and_packs_go_together(pathx_: Pathx) -> None:
    arguments = ("explain", photos(), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0
    for part in ("1/2", "2/2"):
        assert pathx_(*arguments, "out", "--pack", "tar", "--shard", part).status == 0
    ended = pathx_("merge", "out")
    assert ended.status == 0 and "5 done" in ended.out
    assert set(index("out")) == set(index("local"))
