"""Results of the small network that reports are made of."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.small import LABELS, loaded, picture

from pathx.report.build import report
from pathx.runs.run import Settings, explain_files

HOSTILE = (
    "</script><img src=x onerror=\"console.log('run')\">",
    "\"quotes' & <b>bold</b> \u202egnikcart \U0001f63a",
    "<script>console.log(1)</script>" + "x" * 300,
    "{{script}} NaN",
)


def results(
    folder: Path,
    names: Sequence[str] = ("photo.png",),
    *,
    targets: Sequence[str] = (),
    labels: Sequence[str] = LABELS,
    decompose: bool = False,
    **how: Any,
) -> Path:
    """Explanations of random images below `folder`/out."""
    model = replace(loaded(), labels=tuple(labels))
    pictures = [picture(folder / name, seed=number) for number, name in enumerate(names)]
    settings = Settings(**{"depth": 3, "width": 6, "workers": 0, **how})
    made = list(
        explain_files(
            model, pictures, folder / "out", targets=targets, settings=settings, decompose={} if decompose else None
        )
    )
    assert not any(result.failed for result in made), [result.error for result in made]
    return folder / "out"


def only_document(folder: Path) -> tuple[Path, dict[str, Any]]:
    """The one path.json below a folder."""
    (file,) = (file for file in folder.rglob("path.json") if not file.parent.name.startswith("feature-"))
    return file, json.loads(file.read_text())


def data_of(page: Path | str) -> dict[str, Any]:
    """The data that a page holds."""
    text = page.read_text(encoding="utf-8") if isinstance(page, Path) else page
    start = text.index(_DATA) + len(_DATA)
    data: dict[str, Any] = json.loads(text[start : text.index("</script>", start)])
    return data


_DATA = '<script type="application/json" id="data">'


def changed(folder: Path, **changes: Any) -> None:
    """The one path.json below a folder with other contents; None takes a key out."""
    file, document = only_document(folder)
    gone = {key for key, value in changes.items() if value is None}
    file.write_text(json.dumps({key: value for key, value in (document | changes).items() if key not in gone}))


def reported(folder: Path, **options: Any) -> tuple[dict[str, Any], list[str]]:
    """The data of a report of a folder, and what was said while it was made."""
    notes: list[str] = []
    return data_of(report([folder], note=notes.append, **options)), notes
