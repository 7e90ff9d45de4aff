"""One photo explained as two classes, with its tensors saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.small import loaded, picture

from pathx.runs.run import Settings, explain_files


def run(tmp_path: Path, out: str = "out", *, decompose: bool = False, **options: Any) -> Path:
    settings = Settings(**{"depth": 2, "save_tensors": True, "removal": True, **options})
    file = picture(tmp_path / "photo.png", (40, 24))
    results = list(
        explain_files(
            loaded(),
            [file],
            tmp_path / out,
            targets=("cat", "dog"),
            settings=settings,
            decompose={} if decompose else None,
        )
    )
    assert not any(result.failed for result in results)
    return tmp_path / out
