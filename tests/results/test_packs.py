"""Shards of results: files come back from where they were said to be, and unpacking stays in its folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from pathx.errors import PathxError
from pathx.results import packs
from pathx.results.homes import home_of


def test_unpacking_stays_in_its_folder(here: Path) -> None:
    shard = packs.TarShard(here / "results-1-1.tar")
    for name in ("../up/path.json", "/abs/path.json", "a/../../b/path.json", "a/cat/path.json", "older/cat/path.json"):
        shard.add(name, b"{}")
    shard.close()
    line = {"name": "a", "explanations": [{"pack": "results-1-1.tar"}]}
    everything = [{"name": name, "explanations": line["explanations"]} for name in ("a", "..", "../up", "/abs", "/")]
    packs.unpack(home_of(here).read, everything, here / "into")
    assert [str(file.relative_to(here)) for file in here.rglob("*.json")] == ["into/a/cat/path.json"]
    with pytest.raises((PathxError, ValueError, OSError)):
        packs.packed_bytes(home_of(here).read, "../results-1-1.tar", (0, 10))
