"""One photo whose classes are compared, and the numbers of a document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.small import loaded, picture

from pathx.models.load import LoadedModel
from pathx.results.files import Kind
from pathx.results.store import Result
from pathx.runs.run import Settings, explain_files


def contrasted(tmp_path: Path, model: LoadedModel | None, targets: tuple[str, ...], **options: Any) -> Result:
    file = picture(tmp_path / "photo.png")
    results = list(
        explain_files(model or loaded(), [file], tmp_path / "out", targets=targets, settings=Settings(**options))
    )
    last = results[-1]
    assert last.kind is Kind.contrast
    return last


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from numbers(entry)
    elif isinstance(value, float):
        yield value
