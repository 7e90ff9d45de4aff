"""Pictures in folders, where the folder that a picture lies in is its label."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathx.errors import PathxError
from pathx.pictures import shown

SUFFIXES = frozenset([".jpg", ".jpeg", ".png", ".gif", ".webp", ".bmp", ".tif", ".tiff", ".ppm", ".pgm"])


@dataclass(frozen=True)
class PictureFile:
    """A picture to work on.

    Args:
        name: its path below the folder that the user named.
        label: the name of the folder it lies in; None right below the folder that the user named.
    """

    file: str
    name: str
    label: str | None


def pictures_in(places: Sequence[str | Path]) -> list[PictureFile]:
    """The pictures below folders, by name; a file stands for itself."""
    found = []
    for place in map(Path, places):
        if not place.exists():
            raise PathxError(f"{shown(place)}: no such file or folder; check the path", usage=True)
        if not place.is_dir():
            found.append(PictureFile(str(place), place.name, None))
            continue
        for folder, below, files in os.walk(place):
            below[:] = sorted(name for name in below if not name.startswith("."))
            label = None if Path(folder) == place else Path(folder).name
            for name in sorted(files):
                file = Path(folder, name)
                if file.suffix.lower() in SUFFIXES and not name.startswith("."):
                    found.append(PictureFile(str(file), file.relative_to(place).as_posix(), label))
    if not found:
        folders = ", ".join(map(shown, places))
        raise PathxError(
            f"there are no pictures in {folders}: give a folder of {', '.join(sorted(SUFFIXES))}", usage=True
        )
    return found
