"""Images in folders, where the folder that an image lies in is its label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from pathx.errors import PathxError, shown
from pathx.images.find import ImageFile, find_images
from pathx.images.web import is_address


def images_in(places: Sequence[str | Path], out: str | Path | None = None) -> list[ImageFile]:
    """The images that folders, patterns, lists and files lead to, labelled; the folder `out` is left out.

    An image right below a folder that the user named has no label. Where not one of them is there, the call was wrong.
    Else those that are not are in the list with their error.
    """
    named = {os.path.abspath(place) for place in places}
    images = []
    for found in find_images(places, out=out):
        error = found.error
        if found.member is not None:
            images.append(replace(found, label=found.member.label or found.member.folder))
            continue
        if error is None and not (os.path.exists(found.file) or is_address(found.file)):
            error = PathxError(f"{shown(found.file)}: no such file or folder; check the path")
        folder = os.path.dirname(os.path.abspath(found.file))
        below = folder not in named and os.path.abspath(found.file) not in named
        images.append(replace(found, error=error, label=os.path.basename(folder) if below else None))
    first = next((image.error for image in images if image.error is not None), None)
    if first is not None and all(image.error is not None for image in images):
        raise PathxError(str(first), usage=True)
    return images
