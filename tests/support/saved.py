"""One photo explained as some classes, and the numbers of a document."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from support.small import loaded, picture

from pathx.models.load import LoadedModel
from pathx.results.store import Result
from pathx.runs.run import Settings, explain_files


def explained(
    tmp_path: Path, *targets: str, model: LoadedModel | None = None, out: str = "out", apart: Any = None, **options: Any
) -> list[Result]:
    """What becomes of one photo.

    Args:
        apart: how to decompose; None to explain.
    """
    file = tmp_path / "photo.png"
    file = file if file.exists() else picture(file, (40, 24))
    settings = Settings(**{"depth": 2, **options})
    run = explain_files(model or loaded(), [file], tmp_path / out, targets=targets, settings=settings, decompose=apart)
    results = list(run)
    for result in results:
        if result.error is not None:
            raise result.error
    return results


def run(tmp_path: Path, out: str = "out", *, decompose: bool = False, **options: Any) -> Path:
    """A folder of results of two classes, with their tensors."""
    options = {"save_tensors": True, "removal": True, **options}
    explained(tmp_path, "cat", "dog", out=out, apart={} if decompose else None, **options)
    return tmp_path / out


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for entry in value:
            yield from numbers(entry)
    elif isinstance(value, float):
        yield value
