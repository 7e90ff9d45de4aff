"""Results in a store: what is committed is there before its line is true."""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.stores import content, store

from pathx.results.store import RemoteStore

DOCUMENT = b'{"a": 1}'
MADE: dict[str, Any] = {
    "folder": "a/cat",
    "files": ["path.json"],
    "document": "path.json",
    "sha256": sha256(DOCUMENT).hexdigest(),
}
LINE: dict[str, Any] = {"file": "a", "name": "a", "explanations": [MADE]}


@pytest.fixture
def address() -> Iterator[str]:
    pytest.importorskip("fsspec", reason="stores need fsspec: pip install 'pathx-relu[remote]'")
    with store("memory") as place:
        yield f"{place}/out"


def test_files_are_there_before_their_line(address: str) -> None:
    home = RemoteStore(address)
    home.open()
    place, lines = home.commit({"a/cat/path.json": DOCUMENT}, LINE)
    assert lines == [LINE] and str(place / "a/cat") == f"{address}/a/cat"
    assert content(address) == {"a/cat/path.json": DOCUMENT} and home.document(MADE) == {"a": 1}
    home.log(Path("index.jsonl"), LINE)
    assert list(content(address)) == ["a/cat/path.json"]  # lines wait for others
    home.close()
    (part,) = (name for name in content(address) if name.endswith(".part"))
    assert json.loads(content(address)[part]) == LINE
    assert not home.records.exists()
