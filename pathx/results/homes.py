"""Which home the results of a run have."""

from __future__ import annotations

import os
from pathlib import Path

from pathx.errors import PathxError, shown
from pathx.images.regular import path_problem
from pathx.images.stores import is_stored
from pathx.results import packs
from pathx.results.home import Home
from pathx.results.packed import Pack
from pathx.results.stored import Store

_UNPACK = "--unpack FOLDER"


def home_of(out: str | Path, pack: str | None = None) -> Home:
    """Where the results of a run go that names its output folder so. Raises PathxError."""
    base = Store(os.fspath(out)) if is_stored(out) else Home(out)
    if not is_stored(out):
        _check_path(out)
    if pack is None:
        return base
    packs.check_pack(pack)
    return Pack(base, pack)


def check_in_folders(place: str | Path) -> None:
    """Refuse results that are not in folders of this machine, where these are needed."""
    if is_stored(place):
        raise PathxError(f"{place} is in a store: copy it to a folder of this machine first", usage=True)
    _check_path(place)
    if any(Path(place).glob("results-*-*.tar")) or any(Path(place).glob("results-*-*.parquet")):
        raise PathxError(f"{shown(place)} holds packed results: run `pathx merge {place} {_UNPACK}` first", usage=True)


def _check_path(place: str | Path) -> None:
    if (reason := path_problem(place)) is not None:
        raise PathxError(f"{shown(place)} cannot be a folder ({reason}): check the path", usage=True)
