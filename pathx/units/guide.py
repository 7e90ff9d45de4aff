"""References beside explanations: what the strongest units of a path look for in other images."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pathx.drawing.page import Panel, strip
from pathx.errors import shown
from pathx.explanation import Explanation, Unit
from pathx.pipeline import Note, no_notes, once
from pathx.regular import read_regular
from pathx.units.files import DOCUMENT, Channel, Units, check_same_model, crops, read_units

if TYPE_CHECKING:
    from collections.abc import Iterable

    from PIL import Image

    from pathx.pipeline import Prepared

STRONGEST, CROPS = 3, 3


class Guide:
    """Gathered units, to be shown with explanations of the same model.

    Args:
        folder: written by `pathx units`; refused if it is of another model or preprocessing.
    """

    def __init__(self, folder: str | Path, prepared: Prepared, note: Note = no_notes) -> None:
        self.folder, self._prepared = Path(folder), prepared
        self.units: Units = read_units(folder)
        check_same_model(self.units, folder, prepared.about, asdict(prepared.model.preprocessing))
        self._note = once(note)
        self._strips: dict[tuple[str, int], Image.Image | None] = {}

    @cached_property
    def key(self) -> str:
        """Equal for guides that would show the same."""
        names = repr(sorted((place, one.given) for place, one in self.units.channels.items() if one.given))
        return hashlib.sha256(read_regular(self.folder / DOCUMENT) + names.encode()).hexdigest()

    @property
    def nothing(self) -> str:
        """The message if no unit of a path has references."""
        return f"{shown(self.folder)} has no references of these units: gather units over images of this class"

    def strongest(self, explanation: Explanation) -> list[tuple[Unit, Channel]]:
        """The units of a path with the largest shares of their layers and with references, one of each channel."""
        ranked: list[tuple[float, Unit]] = []
        for layer in explanation.path:
            total = sum(abs(unit.contribution) for unit in layer.units)
            ranked += [(abs(unit.contribution) / total, unit) for unit in layer.units if total]
        ranked.sort(key=lambda entry: -entry[0])  # stable: equal ones stay from the output down
        return self._first(unit for _, unit in ranked)

    def _first(self, units: Iterable[Unit]) -> list[tuple[Unit, Channel]]:
        """The first units that have references, one of each channel."""
        found: dict[tuple[str, int], tuple[Unit, Channel]] = {}
        for unit in units:
            channel = self.units.of(unit.tensor, unit.index)
            if channel is not None and channel.references:
                found.setdefault((channel.tensor, channel.channel), (unit, channel))
        return list(found.values())[:STRONGEST]

    def words(self, unit: Unit) -> str:
        """What a unit's channel looks for, in words; empty if it was not gathered."""
        channel = self.units.of(unit.tensor, unit.index)
        return channel.words if channel is not None and channel.references else ""

    def panels(self, explanation: Explanation) -> list[Panel]:
        """The strongest units, each with crops of its channel's references, for a figure."""
        return self._panels(self.strongest(explanation))

    def panels_of(self, units: Iterable[Unit]) -> list[Panel]:
        """The same for a list of units: the first that have references, one of each channel."""
        return self._panels(self._first(units))

    def _panels(self, units: Iterable[tuple[Unit, Channel]]) -> list[Panel]:
        panels = []
        for unit, channel in units:
            picture = self._strip(channel)
            if picture is not None:
                index = ",".join(map(str, unit.index))
                panels.append(Panel(picture, f"{unit.tensor} [{index}] looks for", (channel.words,)))
        return panels

    def _strip(self, channel: Channel) -> Image.Image | None:
        place = channel.tensor, channel.channel
        if place not in self._strips:
            own = [(channel.tensor, reference) for reference in channel.references[:CROPS]]
            pictures = crops(self._prepared, own, self._note)
            self._strips[place] = strip(list(pictures.values())) if pictures else None
        return self._strips[place]
