"""Pictures in folders, where the folder that a picture lies in is its label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathx.errors import PathxError
from pathx.inputs import find_pictures
from pathx.pictures import shown


@dataclass(frozen=True)
class PictureFile:
    """A picture to work on.

    Args:
        name: what it is called in results; never another picture's.
        label: the name of the folder it lies in; None right below a folder that the user named.
    """

    file: str
    name: str
    label: str | None


def pictures_in(places: Sequence[str | Path], out: str | Path | None = None) -> list[PictureFile]:
    """The pictures that folders, patterns, lists and files lead to; the folder `out` is left out."""
    named = {os.path.abspath(place) for place in places}
    pictures = []
    for found in find_pictures(places, out=out):
        if found.error is not None:
            raise PathxError(str(found.error), usage=True)
        if not os.path.exists(found.file):
            raise PathxError(f"{shown(found.file)}: no such file or folder; check the path", usage=True)
        folder = os.path.dirname(os.path.abspath(found.file))
        below = folder not in named and os.path.abspath(found.file) not in named
        pictures.append(PictureFile(found.file, found.name, os.path.basename(folder) if below else None))
    return pictures
