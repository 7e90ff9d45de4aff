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
from support.stores import content, store

from pathx.errors import PathxError
from pathx.results import files as results_files
from pathx.results.store import Kind, RemoteStore, Result, ResultStore, State, check_in_folders, result_store

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


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"files": ["path.json", "heatmap.png"]}])
def test_a_document_is_whole_or_an_error(tmp_path: Path, change: dict[str, Any]) -> None:
    made = line(tmp_path, "a.png")["explanations"][0]
    assert ResultStore(tmp_path).document(made) == {}
    with pytest.raises((ValueError, OSError)):
        ResultStore(tmp_path).document({**made, **change})


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


# Shards


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
