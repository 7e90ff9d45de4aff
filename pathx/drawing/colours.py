"""The colours that users choose by name: exact on white for heatmaps, glowing for what lies on a photo. Needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

ZERO = 128
"""The place of zero in a table of 256 colours; -1 is at 1, +1 at 255."""

HEATS = ("path", "pixels", "layers")
"""What overlays and sheets show: the path map, or the exact pixel map smoothed."""


@dataclass(frozen=True)
class Colours:
    """A pair of hues.

    Args:
        stops: of the exact heatmap, from most against to most for; white in the middle.
        against: on a photo, from weak to strong.
        towards: the same for what supports the class.
    """

    stops: tuple[str, ...]
    against: tuple[str, ...]
    towards: tuple[str, ...]


COLOURS = {
    # ColorBrewer's RdBu: red for, blue against.
    "red-blue": Colours(
        ("#053061", "#2166ac", "#67a9cf", "#ffffff", "#ef6a4c", "#c4161c", "#67000d"),
        ("#0a148c", "#1446e6", "#1e96ff", "#78dcff"),
        ("#960014", "#e11e0a", "#ff6e00", "#ffbe1e"),
    ),
    # ColorBrewer's PuOr: orange for, purple against; told apart with any colour vision, and in most greys.
    "orange-purple": Colours(
        ("#2d004b", "#542788", "#998ec3", "#ffffff", "#f1a340", "#b35806", "#7f3b08"),
        ("#3c0078", "#6a1ed2", "#9646ff", "#c896ff"),
        ("#964600", "#e17800", "#ffa014", "#ffdc78"),
    ),
}
"""Every pair of hues by the name that users choose it by."""


@lru_cache(maxsize=8)
def heat_table(name: str) -> bytes:
    """256 colours, three bytes each, for exact values; zero is white."""
    return b"".join(_interpolate(_value(step) / 2 + 0.5, COLOURS[name].stops) for step in range(256))


@lru_cache(maxsize=8)
def glow_table(name: str) -> bytes:
    """256 colours, three bytes each, for what is laid on a photo: the stronger the brighter."""
    chosen = COLOURS[name]
    return b"".join(
        _interpolate(abs(_value(step)), chosen.towards if step >= ZERO else chosen.against) for step in range(256)
    )


def _value(step: int) -> float:
    return max(-1.0, (step - ZERO) / 127)


def _interpolate(place: float, stops: tuple[str, ...]) -> bytes:
    """The colour at a place from 0 to 1 along the stops."""
    below = min(int(place * (len(stops) - 1)), len(stops) - 2)
    share = place * (len(stops) - 1) - below
    ends = (bytes.fromhex(stop[1:]) for stop in stops[below : below + 2])
    return bytes(round(low + share * (high - low)) for low, high in zip(*ends, strict=True))
