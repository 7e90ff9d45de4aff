"""`pathx.report`: a page for one explanation, of a measurement or of units; a gallery with a page of each for several."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote

from pathx.errors import PathxError, shown
from pathx.models.labels import slug
from pathx.regular import MARKER
from pathx.report.collect import Collected, ExplanationFiles, collect, path_map
from pathx.report.explanation import (
    NetworkDataOf,
    channels_of,
    explanation_page,
    path_overlay,
    whole,
    write_network_data,
)
from pathx.report.measures import Shown, atlas_page, measure_page, page_title
from pathx.report.page import Report, encode_jpeg, is_page, page
from pathx.results.files import MARKER_SCHEMA, REPORT, foreign, own_files, replace_folder
from pathx.results.saved import Photo, find_photo
from pathx.results.schema import channel_key, document_bytes

_THUMBNAIL = 300
"""Pixels on the longer side of a small picture."""

_OURS = re.compile(r"\d+(-.+-\d+-.*\.html|\.jpg)|(evaluation|grid|common|units)-\d+\.html")

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
    if len(found.explanations) + len(others) != 1 or found.failures:
        return _write_gallery(found, _gallery_file(results, out), note, advance)
    if found.explanations:
        return _write_single(found, out, note)
    (file, document) = others[0]
    write = measure_page if found.measures else atlas_page
    return Report(write(file, document, found.references)).save(out or file.with_name(REPORT))


def _gallery_file(results: Sequence[str | Path], out: str | Path | None) -> Path:
    if out is not None:
        return Path(out) if Path(out).suffix.lower() in (".html", ".htm") else Path(out) / "index.html"
    first = Path(results[0])
    return (first if first.is_dir() else first.parent) / "report" / "index.html"


def _write_single(found: Collected, out: str | Path | None, note: Note) -> Path:
    (one,) = found.explanations
    one = replace(one, notes=(*one.notes, *found.problems))
    made, notes = explanation_page(one, found, find_photo(one.document, one.folder))
    for text in (text for text in notes if text not in found.problems):
        note(f"{shown(one.folder)}: {text}")
    return Report(made).save(out or one.folder / REPORT)


@dataclass(frozen=True, eq=False)
class _Image:
    """One image of the gallery: its explanations, the predicted class first, and the names of their pages."""

    found: Sequence[ExplanationFiles]
    pages: Sequence[str]
    thumbnail: str

    @property
    def best(self) -> ExplanationFiles:
        return self.found[0]

    @property
    def predicted(self) -> str | None:
        target = self.best.document["target"]
        return self.best.top[0][0] if self.best.top else target["label"] if target["rank"] == 1 else None

    @property
    def wrong(self) -> bool:
        return self.best.truth is not None and self.predicted is not None and self.best.truth != self.predicted


def _write_gallery(found: Collected, file: Path, note: Note, advance: Callable[[int], None]) -> Path:
    """Write the pages and small pictures, and last the index, which is returned; all at once, or nothing."""
    base = "" if file.name == "index.html" else f"{file.stem}-files/"
    images = sorted(_images(found.explanations, base), key=lambda image: not image.wrong)
    _check_own(file, base, images)
    rows: list[dict[str, Any]] = []
    problems = list(found.problems)
    with replace_folder(file.parent) as new:
        ours = {"schema": MARKER_SCHEMA, "files": sorted(PurePath(image.thumbnail).name for image in images)}
        new.put(f"{base}thumbnails/{MARKER}", document_bytes(ours))  # small pictures are no photos to explain
        for number, image in enumerate(images):
            opened, problem = photo = find_photo(image.best.document, image.best.folder)
            try:
                for name, made in _pages(image, photo, _around(images, number, file), found):
                    new.put(name, made.encode())
            except PathxError as error:
                problems.append(str(error))
                note(str(error))
                continue
            if opened is not None:
                picture = opened.pixels
                document, values = image.best.document, path_map(image.best.document)
                small = picture if values is None else path_overlay(document, values, picture).crop
                new.put(image.thumbnail, encode_jpeg(small, _THUMBNAIL))
            else:
                note(problem)
            rows.append(_row(image, opened is not None))
            advance(1)
        with_links = partial(atlas_page, shown=_channels_shown(images))
        others = [(measure_page, *one) for one in found.measures] + [(with_links, *one) for one in found.units]
        links = []
        for number, (write, path, document) in enumerate(others, 1):
            name = f"{base}pages/{path.stem}-{number}.html"
            try:
                new.put(name, write(path, document, found.references).encode())
            except PathxError as error:
                problems.append(str(error))
                note(str(error))
                continue
            links.append({"title": page_title(path), "page": quote(name)})
        rows += [{"file": name, "error": reason} for name, reason in found.failures]
        data = {"rows": rows, "links": links, "notes": problems[:50]}
        new.put(file.name, page("gallery.js", "pathx report", data, pictures="'self' file: data:").encode())
        written = {image.thumbnail for image in images} | {name for image in images for name in image.pages}
        new.commit(_stale(file.parent, base, written | {unquote(link["page"]) for link in links}))
    return file


def _channels_shown(images: Sequence[_Image]) -> Shown:
    """By channel, the explanations whose path it is on, and their pages."""
    shown: dict[str, list[tuple[str, str]]] = {}
    for image in images:
        for one, name in zip(image.found, image.pages, strict=True):
            for channel in channels_of(one.document):
                place = one.document["image"]["file"], quote(PurePath(name).name)
                shown.setdefault(channel_key(*channel), []).append(place)
    return shown


def _check_own(file: Path, base: str, images: Sequence[_Image]) -> None:
    """Refuse to replace files of others."""
    pages = [file, *(file.parent / name for image in images for name in image.pages)]
    listed = own_files(file.parent / base / "thumbnails")
    small = [file.parent / image.thumbnail for image in images if PurePath(image.thumbnail).name not in listed]
    for other in (*(one for one in pages if not is_page(one)), *small):
        if os.path.lexists(other):
            raise foreign(other)


def _stale(folder: Path, base: str, written: set[str]) -> list[str]:
    """Pages and small pictures of an earlier report that this one has no use for."""
    pages = [file.name for file in (folder / base / "pages").glob("*.html") if is_page(file)]
    small = own_files(folder / base / "thumbnails")
    found = [f"{base}pages/{name}" for name in pages if _OURS.fullmatch(name)]
    found += [f"{base}thumbnails/{name}" for name in small if _OURS.fullmatch(name)]
    return sorted(set(found) - written)


def _images(explanations: Sequence[ExplanationFiles], base: str) -> list[_Image]:
    grouped: dict[tuple[str, str, str], list[ExplanationFiles]] = {}
    for one in explanations:
        about = one.document["image"]
        grouped.setdefault((about["file"], about["sha256"], str(one.folder.parent)), []).append(one)
    digits = len(str(len(grouped)))
    images = []
    for number, several in enumerate(grouped.values(), 1):
        several.sort(key=lambda one: ("against" in one.document, one.document["target"]["rank"]))
        start = f"{number:0{digits}}"
        image = slug(PurePath(several[0].document["image"]["file"]).name)[:60]
        labels = [slug(one.document["target"]["label"])[:40] for one in several]
        names = [f"{base}pages/{start}-{image}-{at}-{label}.html" for at, label in enumerate(labels, 1)]
        images.append(_Image(several, names, f"{base}thumbnails/{start}.jpg"))
    return images


def _around(images: Sequence[_Image], number: int, file: Path) -> dict[str, str | None]:
    def address(other: int) -> str | None:
        return quote(PurePath(images[other].pages[0]).name) if 0 <= other < len(images) else None

    index = os.path.relpath(file, file.parent / PurePath(images[number].pages[0]).parent)
    return {"index": quote(index.replace(os.sep, "/")), "previous": address(number - 1), "next": address(number + 1)}


def _pages(image: _Image, photo: Photo, around: dict[str, str | None], beside: Collected) -> Iterator[tuple[str, str]]:
    """Names and contents of an image's pages."""
    labels = [whole(one.document)["label"] for one in image.found]
    links = [(label, quote(PurePath(name).name)) for label, name in zip(labels, image.pages, strict=True)]
    for link, one, name in zip(links, image.found, image.pages, strict=True):
        others = [other for other in links if other is not link]
        made, _ = explanation_page(one, beside, photo, around, others)
        yield name, made


def _row(image: _Image, thumbnail: bool) -> dict[str, Any]:
    """What the gallery says of an image."""
    document, top = image.best.document, image.best.top
    target, removal = document["target"], document.get("removal") or {}
    return {
        "file": document["image"]["file"],
        "page": quote(image.pages[0]),
        "thumbnail": quote(image.thumbnail) if thumbnail else None,
        "truth": image.best.truth,
        "predicted": image.predicted,
        "target": target["label"],
        "probability": top[0][1] if top else target["probability"],
        "margin": top[0][1] - top[1][1] if len(top) > 1 else None,
        "removal": {key: removal.get(key) for key in ("before", "after", "at_random")} if removal else None,
        "wrong": image.wrong,
    }
