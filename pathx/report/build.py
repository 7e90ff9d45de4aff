"""Reports of results: a page for one explanation, a gallery for many, pages of measurements."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pathx.errors import shown
from pathx.report.atlas import atlas_page
from pathx.report.collect import Collected, collect
from pathx.report.gallery import write_gallery
from pathx.report.measures import measure_page
from pathx.report.notebook import Report
from pathx.report.saved import NetworkDataOf, Photo, explanation_page, write_network_data
from pathx.results.files import REPORT

Note = Callable[[str], None]


def report(
    results: Sequence[str | Path],
    out: str | Path | None = None,
    *,
    network: NetworkDataOf = lambda found: None,
    note: Note = lambda text: None,
    advance: Callable[[int], None] = lambda done: None,
) -> Path:
    """Make the report of finished results and return its first page.

    One explanation gives a single page, `report.html` beside its path.json; more give a gallery, `report/index.html`
    in the first of the folders. Measurements give pages of their own, and units an atlas of their channels.

    Args:
        results: folders of results, or documents in them.
        out: the file to write instead.
        network: gives what the network adds to an explanation; it is written as report.json beside it.
        note: hears what could not be shown, and why.
        advance: hears how many pages were made just now.
    """
    found = collect(results)
    for problem in found.problems:
        note(problem)
    for one in found.explanations:
        if (data := network(one)) is not None:
            write_network_data(one, data)
    others = [*found.measures, *([] if found.explanations or found.measures else found.units)]
    if len(found.explanations) + len(found.failures) + len(others) != 1 or found.failures:
        return write_gallery(found, _gallery_file(results, out), note, advance)
    if found.explanations:
        return _single(found, out, note)
    (file, document) = others[0]
    write = measure_page if found.measures else atlas_page
    return Report(write(file, document, found.references)).save(out or file.with_name(REPORT))


def _gallery_file(results: Sequence[str | Path], out: str | Path | None) -> Path:
    if out is not None:
        return Path(out) if Path(out).suffix.lower() in (".html", ".htm") else Path(out) / "index.html"
    first = Path(results[0])
    return (first if first.is_dir() else first.parent) / "report" / "index.html"


def _single(found: Collected, out: str | Path | None, note: Note) -> Path:
    (one,) = found.explanations
    one = replace(one, notes=(*one.notes, *found.problems))
    made, notes = explanation_page(one, found, Photo.of(one))
    for text in (text for text in notes if text not in found.problems):
        note(f"{shown(one.folder)}: {text}")
    return Report(made).save(out or one.folder / REPORT)
