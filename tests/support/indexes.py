"""Indexes to write: by a test, or by processes of their own, which can import only what is here."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from pathx.results.store import ResultStore
from pathx.runs.index import Index, Shard


def index(out: Path, *names: str, run: str = "r1", shard: Shard | None = None, command: str = "explain") -> Index:
    record = {"command": command, "run": run, "model": {}, "preprocessing": {}, "settings": {}}
    return Index(ResultStore(out), shard, record, names)


def line(out: Path, name: str, **more: Any) -> dict[str, Any]:
    """A line of results that are whole."""
    (out / name / "cat").mkdir(parents=True, exist_ok=True)
    (out / name / "cat" / "path.json").write_text("{}")
    made = {
        "folder": f"{name}/cat",
        "files": ["path.json"],
        "document": "path.json",
        "sha256": sha256(b"{}").hexdigest(),
    }
    return {"file": name, "name": name, "explanations": [made], "seconds": 0.1, **more}


def write_many(out: Path, start: int) -> None:
    for number in range(start, start + 40):
        one = index(out, str(number))
        if number % 10 == 0:
            one.begin()
        one.append(line(out, str(number), padding="x" * 5000))
        if number % 10 == 5:
            one.finish()
