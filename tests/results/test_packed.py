"""A home of shards: a line is true once its shard has its name, and what a shard loses has failed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from pathx.errors import PathxError
from pathx.results import files as results_files
from pathx.results import packed, packs
from pathx.results.home import Contents, Home
from pathx.results.packed import Pack

DOCUMENT = b'{"a": 1}'


def contents(name: str) -> tuple[Contents, dict[str, Any]]:
    from hashlib import sha256

    made = {
        "folder": f"{name}/cat",
        "files": ["path.json"],
        "document": "path.json",
        "sha256": sha256(DOCUMENT).hexdigest(),
    }
    return Contents({f"{name}/cat/path.json": DOCUMENT}), {"name": name, "explanations": [made]}


def test_lines_come_with_the_shard_they_are_in(tmp_path: Path) -> None:
    home = Pack(Home(tmp_path), "tar")
    home.open()
    for name in ("a", "b"):
        assert home.keep(*contents(name))[0] == []  # nothing is true yet
    assert not list(tmp_path.glob("results-*"))
    lines = home.flush()
    (shard,) = tmp_path.glob("results-*.tar")
    assert [line["name"] for line in lines] == ["a", "b"] and not list(tmp_path.glob(".pathx-*"))
    for line in lines:
        (made,) = line["explanations"]
        assert made["pack"] == shard.name and home.document(made) == {"a": 1}
    assert home.flush() == []
    home.close()


def test_a_shard_that_is_large_enough_is_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "SHARD_BYTES", 1)
    home = Pack(Home(tmp_path), "tar")
    assert [len(home.keep(*contents(name))[0]) for name in ("a", "b")] == [1, 1]
    assert len(list(tmp_path.glob("results-*.tar"))) == 2
    home.close()


def test_images_of_a_shard_that_cannot_be_finished_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Pack(Home(tmp_path), "tar")
    home.keep(*contents("a"))

    def full(self: object, name: str, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(packs.TarShard, "add", full)
    with pytest.raises(PathxError, match="No space left"):
        home.keep(*contents("b"))
    (lost,) = home.flush()
    assert (lost["name"], lost["explanations"]) == ("a", []) and "No space left" in lost["error"]
    assert not list(tmp_path.iterdir())
    home.close()


def test_what_a_killed_run_left_open_goes_and_what_is_held_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = Pack(Home(tmp_path), "tar")
    running.keep(*contents("a"))
    (held,) = tmp_path.glob(".pathx-*")
    left = tmp_path / ".pathx-0123.pack"
    left.touch()
    os.utime(held, (1, 1))
    Pack(Home(tmp_path), "tar").open()
    assert held.exists() and not left.exists()
    os.utime(held)
    left.touch()
    with monkeypatch.context() as patch:
        patch.setattr(results_files, "fcntl", None)
        Pack(Home(tmp_path), "tar").open()
        assert held.exists() and left.exists()  # without locks, somebody may be writing to them
    running.close()
    assert not held.exists() and packed._STALE > 0
