"""names.json: what people call channels. A report's page writes it; pathx reads it from folders of results and of units."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from pathx.errors import PathxError
from pathx.results.files import read_document
from pathx.results.schema import misfit

NAMES = "names.json"
SCHEMA = "pathx/names@1"
_SHAPE = {"schema": str, "model": {"sha256": str}, "names": dict}
_LONGEST = 80


def channel_key(tensor: str, channel: int) -> str:
    """A channel as the command line names it: `features.3[7]`."""
    return f"{tensor}[{channel}]"


def read_names(folders: Iterable[Path], sha256: str) -> dict[str, str]:
    """By channel, the names that were given to those of one model; the first folder that names a channel counts.

    Args:
        folders: where a names.json may be; what is none, or damaged, adds nothing.
        sha256: of the model.
    """
    names: dict[str, str] = {}
    for folder in folders:
        with suppress(PathxError, OSError):
            document = read_document(folder / NAMES) if (folder / NAMES).is_file() else {}
            ours = misfit(document, _SHAPE) is None and document["schema"] == SCHEMA
            if ours and document["model"]["sha256"] == sha256:
                given = {str(key): str(name)[:_LONGEST] for key, name in document["names"].items() if name}
                names = {**given, **names}
    return names
