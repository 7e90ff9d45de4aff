"""Stores of results: a folder, an address, or shards at either; what is committed is there before its line is true."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.indexes import line
from support.stores import content, put, store

from pathx.errors import PathxError
from pathx.results import files as results_files
from pathx.results import packs
from pathx.results.result import Kind, Result, State
from pathx.results.store import RemoteStore, ResultStore, check_in_folders, described, files_of, result_store

DOCUMENT = b'{"a": 1}'
MADE: dict[str, Any] = {
    "folder": "a/cat",
    "files": ["path.json"],
    "document": "path.json",
    "sha256": sha256(DOCUMENT).hexdigest(),
}
LINE: dict[str, Any] = {"file": "a", "name": "a", "explanations": [MADE]}


def written(to: ResultStore, name: str = "a", *files: str) -> tuple[list[Result], dict[str, Any]]:
    """Results of an image in the staging folder of a store, and their line."""
    names = (*files, "path.json")
    folder = to.results / name / "cat"
    folder.mkdir(parents=True, exist_ok=True)
    for file in names:
        (folder / file).write_bytes(DOCUMENT)
    made = {**MADE, "folder": f"{name}/cat", "files": list(names)}
    return [Result(name, State.done, Kind.explanation, folder, {}, names)], {
        **LINE,
        "file": name,
        "name": name,
        "explanations": [made],
    }


@pytest.fixture
def address() -> Iterator[str]:
    pytest.importorskip("fsspec", reason="stores need fsspec: pip install 'pathx-relu[remote]'")
    with store("memory") as place:
        yield f"{place}/out"


def test_the_name_of_an_output_says_where_it_is(tmp_path: Path) -> None:
    assert type(result_store(tmp_path)) is ResultStore and type(result_store("s3://bucket/out", "tar")) is RemoteStore
    with pytest.raises(PathxError, match="into tar or parquet, not into 'zip'"):
        result_store(tmp_path, "zip")


def test_some_things_are_made_of_folders_only(tmp_path: Path) -> None:
    check_in_folders(tmp_path)
    with pytest.raises(PathxError, match="is in a store: copy it to a folder"):
        check_in_folders("s3://bucket/out")
    (tmp_path / "results-20260101-000000-abcd.tar").touch()
    with pytest.raises(PathxError, match="run `pathx merge --unpack FOLDER` on it first"):
        check_in_folders(tmp_path)


# A folder


def test_results_of_a_folder_stay_where_they_were_written(tmp_path: Path) -> None:
    home = ResultStore(tmp_path)
    results, made = written(home)
    assert home.commit(results, made) == (results, [made]) and home.document(MADE) == {"a": 1}
    assert home.where(MADE) == tmp_path / "a/cat"


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"files": ["path.json", "heatmap.png"]}])
def test_a_document_is_whole_or_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    made = line(tmp_path, "a.png")["explanations"][0]
    assert ResultStore(tmp_path).document(made) == {}
    with pytest.raises((ValueError, OSError)):
        ResultStore(tmp_path).document({**made, **change})


def test_files_are_removed_with_folders_that_are_empty_then(tmp_path: Path) -> None:
    home = ResultStore(tmp_path)
    written(home, "x/a", "heatmap.png")
    home.remove(["x/a/cat/path.json", "nowhere/path.json"])
    assert (tmp_path / "x/a/cat/heatmap.png").is_file()
    home.remove(["x/a/cat/heatmap.png"])
    assert not list(tmp_path.iterdir()) and tmp_path.is_dir()


def test_a_line_tells_of_every_file_of_an_image() -> None:
    one = {"folder": "a/cat", "files": ["heatmap.png", "path.json"], "document": "path.json"}
    other = {**one, "folder": "a/dog"}
    contrast = {"folder": "a", "files": ["contrast.png", "contrast.json"], "document": "contrast.json"}
    whole = {"name": "a", "explanations": [one, other], "contrast": contrast}
    assert list(described(whole)) == [one, other, contrast]
    between = {"a/cat-against-dog/heatmap.png", "a/cat-against-dog/path.json"}
    own = {f"a/{label}/{name}" for label in ("cat", "dog") for name in one["files"]}
    assert files_of(whole) == {*own, *between, "a/contrast.png", "a/contrast.json"}
    assert files_of({"name": "a", "explanations": [{**one, "pack": "results-1.tar"}]}) == set()


# An address


def test_files_are_there_before_their_line(address: str) -> None:
    home = RemoteStore(address)
    home.open()
    results, made = written(home)
    (moved,), lines = home.commit(results, made)
    assert lines == [made] and str(moved.folder) == f"{address}/a/cat"
    assert content(address) == {"a/cat/path.json": DOCUMENT} and home.document(MADE) == {"a": 1}
    assert not list(home.results.rglob("*"))  # gone from this machine
    home.log(Path("index.jsonl"), LINE)
    assert list(content(address)) == ["a/cat/path.json"]  # lines wait for others
    home.close()
    (part,) = (name for name in content(address) if name.endswith(".part"))
    assert json.loads(content(address)[part]) == LINE
    assert not home.records.exists() and not home.results.exists()


def test_another_run_finds_records_and_the_parts_of_indexes(address: str) -> None:
    put(f"{address}/run.json", b"{}")
    put(f"{address}/index.jsonl", b'{"name": "old"}\n')
    put(f"{address}/index.jsonl-00000000000000000001-0a.part", b'{"name": "one"}\n')
    put(f"{address}/index.jsonl-00000000000000000002-0b.part", b'{"name": "two"}\n')
    put(f"{address}/notes.txt", b"somebody else's")
    home = RemoteStore(address)
    home.open()
    assert {file.name for file in home.records.iterdir()} == {"run.json", "index.jsonl"}
    lines = (home.records / "index.jsonl").read_text().splitlines()
    assert [json.loads(one)["name"] for one in lines] == ["old", "one", "two"]
    home.publish([home.records / "index.jsonl"])  # the parts are in it now
    assert set(content(address)) == {"run.json", "index.jsonl", "notes.txt"}
    assert content(address)["index.jsonl"].count(b"\n") == 3
    home.close()


def test_what_is_gone_or_another_is_not_whole(address: str) -> None:
    home = RemoteStore(address)
    home.commit(*written(home))
    for made in ({**MADE, "sha256": "0" * 64}, {**MADE, "files": ["path.json", "heatmap.png"]}):
        with pytest.raises(ValueError, match="not what was written"):
            home.document(made)


def test_what_took_the_place_of_others_leaves_nothing_of_them(address: str) -> None:
    home = RemoteStore(address)
    results, older = written(home, "a", "heatmap.png")
    home.commit(results, older)
    home.forget(older, LINE)
    assert list(content(address)) == ["a/cat/path.json"]


def test_shards_go_to_an_address_and_are_read_in_parts(address: str, tmp_path: Path) -> None:
    home, shard = RemoteStore(address), tmp_path / "shard"
    shard.write_bytes(b"0123456789")
    home.put(shard, "results-1.tar")
    assert not shard.exists() and home.read("results-1.tar", (2, 3)) == b"234"
    with home.read("results-1.tar", None) as stream:
        assert stream.read() == b"0123456789"


# Shards


def test_lines_come_with_the_shard_they_are_in(tmp_path: Path) -> None:
    home = result_store(tmp_path, "tar")
    home.open()
    for name in ("a", "b"):
        assert home.commit(*written(home, name))[1] == []  # nothing is true yet
    assert not list(tmp_path.glob("results-*"))
    lines = home.flush()
    (shard,) = tmp_path.glob("results-*.tar")
    assert [line["name"] for line in lines] == ["a", "b"] and not list(tmp_path.glob(".pathx-*"))
    for one in lines:
        (made,) = one["explanations"]
        assert made["pack"] == shard.name and home.document(made) == {"a": 1}
    assert home.flush() == []
    home.close()


def test_a_shard_that_is_large_enough_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SHARD_BYTES", 1)
    home = result_store(tmp_path, "tar")
    assert [len(home.commit(*written(home, name))[1]) for name in ("a", "b")] == [1, 1]
    assert len(list(tmp_path.glob("results-*.tar"))) == 2
    home.close()


def test_images_of_a_shard_that_cannot_be_finished_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = result_store(tmp_path, "tar")
    home.commit(*written(home, "a"))

    def full(self: object, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packs.TarShard, "add", full)
    (failed,), (own,) = home.commit(*written(home, "b"))
    assert "No space left" in str(failed.error) and (own["name"], own["explanations"]) == ("b", [])
    (lost,) = home.flush()
    assert (lost["name"], lost["explanations"]) == ("a", []) and "No space left" in lost["error"]
    assert not list(tmp_path.iterdir())
    home.close()


def test_what_a_killed_run_left_open_goes_and_what_is_held_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = result_store(tmp_path, "tar")
    running.commit(*written(running))
    (held,) = tmp_path.glob(".pathx-*")
    left = tmp_path / ".pathx-0123.pack"
    left.touch()
    os.utime(held, (1, 1))
    result_store(tmp_path, "tar").open()
    assert held.exists() and not left.exists()
    os.utime(held)
    left.touch()
    with monkeypatch.context() as patch:
        patch.setattr(results_files, "fcntl", None)
        result_store(tmp_path, "tar").open()
        assert held.exists() and left.exists()  # without locks, somebody may be writing to them
    running.close()
    assert not held.exists()
