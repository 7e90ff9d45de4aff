"""Means that say how sure they are: bootstrap intervals, of figures and of paired differences. Seeded, so reproducible."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

LEVEL, RESAMPLES, SEED = 0.95, 2000, 0


@dataclass(frozen=True)
class Interval:
    """A mean, and the bounds between which the bootstrap puts it."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedDifference:
    """One method minus another over the same images.

    Args:
        higher: the share of images where the first is higher; ties count half.
    """

    difference: Interval
    higher: float
    images: int


def generator_of(*names: str) -> torch.Generator:
    """Random numbers that are the same whenever the same names come."""
    text = "\n".join(names).encode(errors="surrogateescape")
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)


def bootstrap(values: Sequence[float]) -> Interval:
    """The mean with the percentile interval of means over resampled images; one value is its own bounds."""
    sample = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(SEED)
    means = torch.cat([_resample(sample, count, generator) for count in _portions(len(sample))])
    tail = (1 - LEVEL) / 2
    low, high = means.quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return Interval(float(sample.mean()), low, high)


def compare(first: Sequence[float], second: Sequence[float]) -> PairedDifference:
    """The paired difference of two methods, image by image."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    higher = sum(0.5 if value == 0 else float(value > 0) for value in differences) / len(differences)
    return PairedDifference(bootstrap(differences), higher, len(differences))


def spearman(first: Tensor, second: Tensor) -> float | None:
    """The rank correlation of two maps, ties given their mean rank; None where one of them is the same everywhere."""
    ranks = [_mean_ranks(values.flatten().double()) for values in (first, second)]
    centred = [values - values.mean() for values in ranks]
    norm = float(centred[0].norm() * centred[1].norm())
    return None if norm == 0 else float(centred[0] @ centred[1]) / norm


def _mean_ranks(values: Tensor) -> Tensor:
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = (last - (counts - 1) / 2)[place]
    return ranks


def _portions(images: int) -> list[int]:
    """Resamples at a time, so that many images do not fill the memory."""
    size = max(1, min(RESAMPLES, 2_000_000 // max(1, images)))
    return [min(size, RESAMPLES - start) for start in range(0, RESAMPLES, size)]


def _resample(sample: Tensor, count: int, generator: torch.Generator) -> Tensor:
    chosen = torch.randint(len(sample), (count, len(sample)), generator=generator)
    return sample[chosen].mean(1)
