"""Shards of results: files come back from where they were said to be, and unpacking stays in its folder."""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from pathx.errors import PathxError
from pathx.results import packs
from pathx.results.store import files_of, result_store


def test_unpacking_stays_in_its_folder(here: Path) -> None:
    good, other = "a/cat/path.json", "older/cat/path.json"
    names = ("../up/path.json", "/abs/path.json", "a/../../b/path.json", "path.json", "a/cat/.bashrc", good)
    shard, _ = packs.tar_shard(dict.fromkeys((*names, other), b'{"schema": "pathx/path@1"}'))
    (here / "results-1-1.tar").write_bytes(shard)
    made = [{"pack": "results-1-1.tar", "folder": os.path.dirname(n), "files": [os.path.basename(n)]} for n in names]
    lines = [{"name": "a", "explanations": [one]} for one in made]
    plain = [{key: value for key, value in one.items() if key != "pack"} for one in made]
    wanted = set().union(*(files_of({"explanations": [one]}) for one in plain))
    assert packs.unpack(result_store(here).read, lines, wanted, here / "into") == ()
    assert [str(file.relative_to(here)) for file in here.rglob("*.json")] == [f"into/{good}"]
    assert not list(here.rglob(".bashrc"))
    with pytest.raises((PathxError, ValueError, OSError)):
        packs.packed_bytes(result_store(here).read, "../results-1-1.tar", (0, 10))


@pytest.mark.parametrize(
    "kind",
    ["tar", pytest.param("parquet", marks=pytest.mark.skipif(find_spec("pyarrow") is None, reason=packs.INSTALL))],
)
def test_a_file_is_read_from_where_it_was_said_to_be(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "GROUP_BYTES", 1000)  # several groups
    name, contents = (
        f"results-1-1.{kind}",
        {f"a/{n}/path.json": json.dumps({"schema": "pathx/path@1", "of": "x" * 300 * n}).encode() for n in range(5)},
    )
    shard, places = packs.SHARDS[kind](contents)
    (tmp_path / name).write_bytes(shard)
    read = result_store(tmp_path).read
    assert {file: packs.packed_bytes(read, name, place) for file, place in places.items()} == contents
    lines = [{"name": "a", "explanations": [{"pack": name}]}, {"name": "b", "explanations": [{}]}]
    assert packs.unpack(read, lines, set(contents), tmp_path / "into") == ()
    assert {f: (tmp_path / "into" / f).read_bytes() for f in contents} == contents


def test_a_shard_that_is_damaged_is_said(tmp_path: Path) -> None:
    (tmp_path / "results-1-1.tar").write_bytes(b"x" * 700)
    lines = [{"name": "a", "explanations": [{"pack": "results-1-1.tar"}]}]
    (said,) = packs.unpack(result_store(tmp_path).read, lines, {"a/path.json"}, tmp_path / "into")
    assert "results-1-1.tar" in said and "damaged" in said
