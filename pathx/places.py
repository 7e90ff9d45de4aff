"""Where in the picture an attribution is: its centre and its box."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from pathx.render import plane

WITHIN = 0.8
"""Along each axis a box leaves out the same share of the magnitude on both sides, and holds this much."""


@dataclass(frozen=True)
class Place:
    """Where the magnitude of an attribution is, in pixels of the network's input.

    Args:
        centre: (x, y), the mean weighted by magnitude.
        box: (left, top, right, bottom), right and bottom exclusive: along each axis the middle 80 % of the magnitude.
    """

    centre: tuple[float, float]
    box: tuple[int, int, int, int]

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return {key: list(value) for key, value in asdict(self).items()}


def place(attribution: Tensor) -> Place | None:
    """The place of an attribution (C, H, W) or (H, W), or None where it is all zero or not of a picture."""
    if attribution.dim() not in (2, 3):
        return None
    magnitude = plane(attribution).abs()
    if not magnitude.any():
        return None
    magnitude = magnitude / magnitude.max()  # so that no sum overflows or vanishes
    (x, left, right), (y, top, bottom) = _middle(magnitude.sum(0)), _middle(magnitude.sum(1))
    return Place((x, y), (left, top, right, bottom))


def no_place() -> dict[str, None]:
    """What JSON has where there is no place."""
    return {"centre": None, "box": None}


def _middle(mass: Tensor) -> tuple[float, int, int]:
    """Centre, start and end of the mass along one axis."""
    share = mass / mass.sum()
    centre = float((share * (torch.arange(len(mass), dtype=mass.dtype) + 0.5)).sum())
    outside = (1 - WITHIN) / 2
    start = int((share.cumsum(0) <= outside).sum())
    end = len(mass) - int((share.flip(0).cumsum(0) <= outside).sum())
    return centre, start, max(end, start + 1)
