"""A home in a store: files before their line, lines in parts, and what is there found again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.stores import content, put, store

pytest.importorskip("fsspec", reason="stores need fsspec: pip install 'pathx-relu[remote]'")
from pathx.results.home import Contents
from pathx.results.stored import Store

MADE: dict[str, Any] = {
    "folder": "a/cat",
    "files": ["path.json"],
    "document": "path.json",
    "sha256": sha256(b"{}").hexdigest(),
}
LINE = {"name": "a", "explanations": [MADE]}


@pytest.fixture
def place() -> Iterator[str]:
    with store("memory") as address:
        yield f"{address}/out"


def test_files_are_there_before_their_line(place: str) -> None:
    home = Store(place)
    home.open()
    assert home.keep(Contents({"a/cat/path.json": b"{}"}), LINE)[0] == [LINE]
    assert content(place) == {"a/cat/path.json": b"{}"} and home.document(MADE) == {}
    home.log(Path("index.jsonl"), LINE)
    assert list(content(place)) == ["a/cat/path.json"]  # lines wait for others
    home.settle()
    (part,) = (name for name in content(place) if name.endswith(".part"))
    assert json.loads(content(place)[part]) == LINE
    home.close()
    assert not home.records.exists()


def test_another_run_finds_records_and_the_parts_of_indexes(place: str) -> None:
    put(f"{place}/run.json", b"{}")
    put(f"{place}/index.jsonl", b'{"name": "old"}\n')
    put(f"{place}/index.jsonl-00000000000000000001-0a.part", b'{"name": "one"}\n')
    put(f"{place}/index.jsonl-00000000000000000002-0b.part", b'{"name": "two"}\n')
    put(f"{place}/notes.txt", b"somebody else's")
    home = Store(place)
    home.open()
    assert {file.name for file in home.records.iterdir()} == {"run.json", "index.jsonl"}
    lines = (home.records / "index.jsonl").read_text().splitlines()
    assert [json.loads(one)["name"] for one in lines] == ["old", "one", "two"]
    home.publish([home.records / "index.jsonl"])  # the parts are in it now
    assert set(content(place)) == {"run.json", "index.jsonl", "notes.txt"}
    assert content(place)["index.jsonl"].count(b"\n") == 3
    home.close()


def test_what_is_gone_or_another_is_not_whole(place: str) -> None:
    home = Store(place)
    home.keep(Contents({"a/cat/path.json": b"{}"}), LINE)
    for made in ({**MADE, "sha256": "0" * 64}, {**MADE, "files": ["path.json", "heatmap.png"]}):
        with pytest.raises(ValueError, match="not what was written"):
            home.document(made)


def test_what_took_the_place_of_others_leaves_nothing_of_them(place: str) -> None:
    home = Store(place)
    older = {"name": "a", "explanations": [{**MADE, "files": ["heatmap.png", "path.json"]}]}
    home.keep(Contents({"a/cat/heatmap.png": b"x", "a/cat/path.json": b"{}"}), older)
    home.forget(older, LINE)
    assert list(content(place)) == ["a/cat/path.json"]


def test_shards_go_there_and_are_read_in_parts(place: str, tmp_path: Path) -> None:
    home, shard = Store(place), tmp_path / "shard"
    shard.write_bytes(b"0123456789")
    home.put(shard, "results-1.tar")
    assert not shard.exists() and home.read("results-1.tar", (2, 3)) == b"234"
    with home.read("results-1.tar", None) as stream:
        assert stream.read() == b"0123456789"
