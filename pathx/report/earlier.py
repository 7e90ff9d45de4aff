"""What an earlier page of an explanation holds beyond its files: other depths and widths, and what single units saw.

These take the network. `pathx report` runs none, and takes them from the page that `--report` wrote, where it is of the very
same explanation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePath
from typing import Any

from pathx.errors import PathxError
from pathx.models.labels import slug
from pathx.regular import read_regular
from pathx.report.page import VERSION, data_in
from pathx.results.files import REPORT

MOST_PAGES = 50
"""Reports of more explanations than this are not looked through."""


@dataclass(frozen=True, eq=False)
class Earlier:
    """Parts of a page's data, as they stand there."""

    paths: list[dict[str, Any]]
    unit_maps: dict[str, Any]


def earlier(folder: Path, document: dict[str, Any]) -> Earlier | None:
    """What earlier pages add to an explanation; None where there is no page of it, or nothing more in it.

    Args:
        folder: of the explanation.
    """
    for file in _pages(folder, document):
        try:
            data = data_in(read_regular(file).decode())
            if _same(data, document) and (len(data["paths"]) > 1 or data["unit_maps"]):
                return Earlier(list(data["paths"]), dict(data["unit_maps"]))
        except (PathxError, OSError, ValueError, KeyError, TypeError, AttributeError, StopIteration):
            continue  # not a page of ours
    return None


def page_name(document: dict[str, Any]) -> tuple[str, str]:
    """What the names of pages in a gallery say: the image and the class."""
    return slug(PurePath(document["image"]["file"]).name)[:60], slug(document["target"]["label"])[:40]


def _pages(folder: Path, document: dict[str, Any]) -> Iterator[Path]:
    if (folder / REPORT).is_file():
        yield folder / REPORT
    image, label = map(escape, page_name(document))
    for above in folder.resolve().parents:
        if (above / "report" / "index.html").is_file():
            yield from sorted((above / "report" / "pages").glob(f"*-{image}-*-{label}.html"))[:MOST_PAGES]


def _same(data: dict[str, Any], document: dict[str, Any]) -> bool:
    """Whether a page, written by this version, is of an explanation: same image, model, class, settings and outcome."""
    own = next(path for path in data["paths"] if path["width"] == document["width"])
    score = own["models"][str(document["depth"])]["score"]
    about = {"depth": document["depth"], "width": document["width"]}
    return bool(
        data["version"] == VERSION
        and data["own"] == about
        and score == document["linear_model"]["score"]
        and data["image"] == document["image"]
        and data["model"] == document["model"]
        and data["target"] == document["target"]
        and data["against"] == document.get("against")
        and all(data[key] == document[key] for key in ("alpha", "skips"))
    )
