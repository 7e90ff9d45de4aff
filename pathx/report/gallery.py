"""Many explanations: an index with a small picture of each image, and a page for every explanation."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote, unquote

from pathx.errors import PathxError
from pathx.models.labels import slug
from pathx.regular import MARKER
from pathx.report.atlas import Shown, atlas_page, atlas_title
from pathx.report.collect import Collected, ExplanationFiles
from pathx.report.encoding import encode_jpeg
from pathx.report.explanation import path_map, path_overlay, whole
from pathx.report.measures import measure_page, measure_title
from pathx.report.page import is_page, page
from pathx.report.saved import Photo, channels_of, explanation_page
from pathx.results.files import MARKER_SCHEMA, channel_key, document_bytes, foreign, own_files, replacing

_THUMBNAIL = 300
"""Pixels on the longer side of a small picture."""

_OURS = re.compile(r"\d+(-.+-\d+-.*\.html|\.jpg)|(evaluation|grid|common|units)-\d+\.html")


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


def write_gallery(found: Collected, file: Path, note: Callable[[str], None], advance: Callable[[int], None]) -> Path:
    """Write the pages and small pictures, and last the index, which is returned; all at once, or nothing."""
    base = "" if file.name == "index.html" else f"{file.stem}-files/"
    images = sorted(_images(found.explanations, base), key=lambda image: not image.wrong)
    _check_own(file, base, images)
    rows: list[dict[str, Any]] = []
    problems = list(found.problems)
    with replacing(file.parent) as new:
        ours = {"schema": MARKER_SCHEMA, "files": sorted(PurePath(image.thumbnail).name for image in images)}
        new.put(f"{base}thumbnails/{MARKER}", document_bytes(ours))  # small pictures are no photos to explain
        for number, image in enumerate(images):
            photo = Photo.of(image.best)
            try:
                for name, made in _pages(image, photo, _around(images, number, file), found):
                    new.put(name, made.encode())
            except PathxError as error:
                problems.append(str(error))
                note(str(error))
                continue
            if photo.image is not None:
                document, values = image.best.document, path_map(image.best.document)
                picture = photo.image if values is None else path_overlay(document, values, photo.image).crop
                new.put(image.thumbnail, encode_jpeg(picture, _THUMBNAIL))
            else:
                note(photo.problem)
            rows.append(_row(image, photo.image is not None))
            advance(1)
        shown = _channels_shown(images)
        others = [(path, document, measure_title, measure_page) for path, document in found.measures]
        others += [(path, document, atlas_title, partial(atlas_page, shown=shown)) for path, document in found.units]
        links = []
        for number, (path, document, title, write) in enumerate(others, 1):
            name = f"{base}pages/{path.stem}-{number}.html"
            try:
                new.put(name, write(path, document, found.references).encode())
            except PathxError as error:
                problems.append(str(error))
                note(str(error))
                continue
            links.append({"title": title(path), "page": quote(name)})
        rows += [{"file": name, "error": reason} for name, reason in found.failures]
        data = {"kind": "gallery", "rows": rows, "links": links, "notes": problems[:50]}
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
    pages = [
        file.name for file in (folder / base / "pages").glob("*.html") if _OURS.fullmatch(file.name) and is_page(file)
    ]
    listed = own_files(folder / base / "thumbnails")
    found = [f"{base}pages/{name}" for name in pages]
    found += [f"{base}thumbnails/{name}" for name in listed if _OURS.fullmatch(name)]
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
        parts = [_page_name(one.document) for one in several]
        names = [
            f"{base}pages/{number:0{digits}}-{image}-{at}-{label}.html" for at, (image, label) in enumerate(parts, 1)
        ]
        images.append(_Image(several, names, f"{base}thumbnails/{number:0{digits}}.jpg"))
    return images


def _page_name(document: dict[str, Any]) -> tuple[str, str]:
    """What the names of pages say: the image and the class."""
    return slug(PurePath(document["image"]["file"]).name)[:60], slug(document["target"]["label"])[:40]


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
        "classes": [whole(one.document)["label"] for one in image.found],
    }
