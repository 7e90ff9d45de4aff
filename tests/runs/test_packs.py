"""Results packed into shards: all that folders would hold, in whole shards only, and runs that go on."""

from __future__ import annotations

import tarfile
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.command_line import Pathx, network, scripted
from support.faults import tree
from support.many import by_name, labelled

from pathx.errors import PathxError
from pathx.results import packs
from pathx.results.store import ResultStore, result_store

pytestmark = pytest.mark.usefixtures("here")
KINDS = ["tar", pytest.param("parquet", marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason=packs.INSTALL))]
QUICK = ("--no-pictures", "--depth", 2, "--width", 3, "--batch-size", 2)


def test_shards_hold_what_folders_would(pathx_: Pathx) -> None:
    options = ("--depth", 2, "--batch-size", 2, "--target", "top:2", "--save-tensors")
    for command, *more in (("explain", *options), ("decompose", *QUICK)):
        arguments = (command, labelled(2), "--model", scripted(network()), *more, "--out")
        assert pathx_(*arguments, f"{command}-local").status == 0
        ended = pathx_(*arguments, command, "--pack", "tar")
        assert ended.status == 0, ended.err
        (shard,) = Path(command).glob("results-*.tar")
        assert {file.name for file in Path(command).iterdir()} == {shard.name, "index.jsonl", "run.json"}
        for line in by_name(command).values():
            for made in line["explanations"]:
                assert made["pack"] == shard.name
                assert result_store(command).document(made)["target"]["index"] == made["target"]
        with tarfile.open(shard) as archive:
            assert all(name.startswith("photos/") for name in archive.getnames())
        assert tree(command) == tree(f"{command}-local")


@pytest.mark.parametrize("kind", KINDS)
def test_shards_end_at_their_size_and_a_run_goes_on(pathx_: Pathx, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SHARD_BYTES", 30_000)
    monkeypatch.setattr(packs, "GROUP_BYTES", 10_000)
    arguments = ("explain", labelled(8), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0
    assert pathx_(*arguments, "out", "--pack", kind).status == 0
    first, second, *_ = sorted(Path("out").glob(f"results-*.{kind}"))
    assert "0 explained, 8 done before" in pathx_(*arguments, "out", "--pack", kind).err
    of = {name: line["explanations"][0]["pack"] for name, line in by_name("out").items()}
    lost = sum(shard in (first.name, second.name) for shard in of.values())
    first.unlink()
    second.write_bytes(bytes(byte ^ 1 for byte in second.read_bytes()))  # a damaged shard is not believed
    again = pathx_(*arguments, "out", "--pack", kind)
    assert again.status == 0 and f"{lost} explained, {8 - lost} done before" in again.err
    assert tree("out") == tree("local")
    assert "0 explained, 8 done before" in pathx_(*arguments, "out").err  # whichever way they are kept


def test_failures_and_single_images_are_in_the_index(pathx_: Pathx) -> None:
    model = scripted(network())
    labelled(2)
    Path("photos/bad.png").write_bytes(b"no image")
    ended = pathx_("explain", "photos", "--model", model, *QUICK, "--pack", "tar")
    assert ended.status == 1
    assert [name for name, line in by_name().items() if "error" in line] == ["photos/bad.png"]
    ended = pathx_("explain", "photos/cat/0.png", "--model", model, *QUICK, "--pack", "tar", "--out", "one")
    assert ended.status == 0 and list(by_name("one")) == ["photos/cat/0.png"]
    assert "results-" in ended.out.replace("\n", "")


def test_images_of_a_shard_that_cannot_be_finished_have_failed(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = ("explain", labelled(4), "--model", scripted(network()), *QUICK, "--out")
    assert pathx_(*arguments, "local").status == 0

    def refuse(self: ResultStore, name: str, data: bytes) -> None:
        raise PathxError("the store says no")

    with monkeypatch.context() as patch:
        patch.setattr(ResultStore, "put", refuse)
        ended = pathx_(*arguments, "out", "--pack", "tar")
    assert ended.status == 1 and "4 images that were done are lost (the store says no)" in ended.err
    assert [line.get("error") for line in by_name("out").values()] == ["the store says no"] * 4
    assert not list(Path("out").glob("*.tar")) and not list(Path("out").glob(".pathx-*"))
    assert pathx_(*arguments, "out", "--pack", "tar").status == 0
    assert tree("out") == tree("local")


def test_other_settings_take_the_place_of_folders_and_shards(pathx_: Pathx) -> None:
    arguments = ("explain", labelled(2), "--model", scripted(network()), "--depth", 2, "--no-pictures")
    assert pathx_(*arguments, "--width", 3, "--out", "out").status == 0
    assert pathx_(*arguments, "--width", 2, "--out", "local").status == 0
    for part in ("1/2", "2/2"):  # of a run, which go together with shards of results
        assert pathx_(*arguments, "--width", 2, "--out", "out", "--pack", "tar", "--shard", part).status == 0
    assert not list(Path("out").rglob("path.json")) and not list(Path("out").glob("*-of-*"))
    assert set(tree("out")) == set(tree("local"))  # equal to rounding only, as batches are others
