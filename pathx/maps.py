"""Maps: the path map from the places of units; the plane of an attribution, its centre and box; overlap; smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pathx.explanation import PathLayer, Places

WITHIN = 0.8
"""The share of the magnitude that a box holds along each axis; the rest is equally divided between its two sides."""

SPOT = 0.05
"""Attributions are smoothed by this share of the shorter side before their overlap is measured.

Units that look at one spot weight its pixels differently; smoothing compares spots instead of pixels.
"""


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


def plane(attribution: Tensor) -> Tensor:
    """The values summed over channels, (H, W) in float64, on the CPU; NaN and infinite values count as 0."""
    values = attribution.detach().cpu()
    summed = values.sum(0, dtype=torch.float64) if values.dim() == 3 else values.double()
    return summed if summed.sum().isfinite() else plane(values.double().nan_to_num(0.0, 0.0, 0.0))


def contribution_grids(layer: PathLayer) -> list[tuple[Places, Tensor]]:
    """A layer's contributions at the places of its feature maps, (h, w) in float64, channels added up."""
    numbers, values = (part.detach().cpu() for part in layer.contributions())
    parts, first = [], 0
    for tensor in layer.tensors:
        here = (numbers >= first) & (numbers < first + prod(tensor.shape))
        if tensor.places is not None:
            cells, size = tensor.cells(numbers[here] - first)
            grid = torch.zeros(prod(size), dtype=torch.float64)
            grid.index_add_(0, cells[cells >= 0], values[here][cells >= 0].double())
            parts.append((tensor.places, grid.reshape(size)))
        first += prod(tensor.shape)
    return parts


def enlarge(parts: Sequence[tuple[Places, Tensor]], size: tuple[int, int], sigma: float = 0.0) -> Tensor:
    """Maps of places, each spread over an image (H, W) and added up. Every value keeps its sum.

    Args:
        sigma: of a Gaussian that the image is blurred with, as `smooth` does it, but before the few places become many pixels.
    """
    total = torch.zeros(size, dtype=torch.float64)
    alike: dict[tuple[Places, torch.Size], Tensor] = {}
    for places, grid in parts:
        alike[places, grid.shape] = alike[places, grid.shape] + grid if (places, grid.shape) in alike else grid
    for ((down, across), shape), grid in alike.items():
        rows, columns = (
            _spread(pixels, count, *line, sigma * min(size))
            for pixels, count, line in zip(size, shape, (down, across), strict=True)
        )
        total += rows @ grid @ columns.mT
    return total


@lru_cache(maxsize=64)  # the same for every image of a run
def _spread(pixels: int, count: int, centre: float, step: float, sigma: float) -> Tensor:
    """The weights that spread `count` places over the pixels of a line, (pixels, count); each column sums to 1.

    They are cubic B-splines: smooth, nowhere negative, and constant in sum where all places are alike. Places outside the
    image count at its edge. Tents, Catmull-Rom splines and Gaussians did worse (docs/lab/path-map-2026-11.md).
    """
    places = (centre + step * torch.arange(count, dtype=torch.float64)).clamp(0.5, pixels - 0.5)
    apart = (torch.arange(pixels, dtype=torch.float64)[:, None] + 0.5 - places).abs() / max(step, 1)
    near, far = 2 / 3 - apart**2 + apart**3 / 2, (2 - apart).clamp(min=0) ** 3 / 6
    weights = torch.where(apart < 1, near, far)
    weights = weights / weights.sum(0)
    return _reflected_gaussian(pixels, sigma) @ weights if sigma else weights


def place(attribution: Tensor) -> Place | None:
    """The place of an attribution (C, H, W) or (H, W), or None where it is all zero or not of an image."""
    if attribution.dim() not in (2, 3):
        return None
    magnitude = plane(attribution).abs()
    if not magnitude.any():
        return None
    magnitude = magnitude / magnitude.max()  # so that no sum overflows or vanishes
    (x, left, right), (y, top, bottom) = _middle(magnitude.sum(0)), _middle(magnitude.sum(1))
    return Place((x, y), (left, top, right, bottom))


def no_place() -> dict[str, None]:
    """The entries of JSON if there is no place."""
    return {"centre": None, "box": None}


def _middle(mass: Tensor) -> tuple[float, int, int]:
    """Centre, start and end of the mass along one axis."""
    share = mass / mass.sum()
    centre = float((share * (torch.arange(len(mass), dtype=mass.dtype) + 0.5)).sum())
    outside = (1 - WITHIN) / 2
    start = int((share.cumsum(0) <= outside).sum())
    end = len(mass) - int((share.flip(0).cumsum(0) <= outside).sum())
    return centre, start, max(end, start + 1)


def overlaps(attributions: Sequence[Tensor]) -> Tensor:
    """(n, n) cosines between attributions, summed over channels and smoothed to spots.

    1 for alike, 0 where they share nothing or one is all zero, below 0 where one supports what the other counts against.
    """
    if not attributions:
        return torch.zeros(0, 0, dtype=torch.float64)
    rows = torch.stack([_spots(attribution) for attribution in attributions])
    largest = rows.abs().amax(1, keepdim=True)
    rows = rows / largest.where(largest > 0, 1.0)  # so that no square overflows or vanishes
    norms = rows.norm(dim=1, keepdim=True)
    rows = rows / norms.where(norms > 0, 1.0)
    return torch.clamp(rows @ rows.T, -1, 1)


def _spots(attribution: Tensor) -> Tensor:
    if attribution.dim() in (2, 3):
        return smooth(attribution, SPOT).flatten()
    return attribution.detach().cpu().double().flatten()


def smooth(attribution: Tensor, sigma: float) -> Tensor:
    """The values summed over channels, (H, W), blurred for display; their sum is kept.

    The Gaussian is reflected at the edges, so nothing is lost there and a flat map stays flat.

    Args:
        sigma: as a share of the shorter side; 0 for none.
    """
    values = plane(attribution)
    width = sigma * min(values.shape)
    if width == 0:
        return values
    rows, columns = (_reflected_gaussian(length, width) for length in values.shape)
    return rows @ values @ columns


@lru_cache(maxsize=8)  # the same for every image of a run
def _reflected_gaussian(length: int, sigma: float) -> Tensor:
    # Rows and columns both sum to one. (length, length)
    at = torch.arange(length, dtype=torch.float64)
    weights = torch.zeros(length, length, dtype=torch.float64)
    for turn in range(-2, 3):
        for mirrored in (at, -1 - at):
            weights += torch.exp(-0.5 * ((at[:, None] - mirrored - 2 * length * turn) / sigma) ** 2)
    return weights / weights.sum(0)
