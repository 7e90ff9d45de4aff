"""Seeded bootstrap intervals of means and of paired differences; rank correlation."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

LEVEL, RESAMPLES, SEED = 0.95, 2000, 0


def generator_of(*names: str) -> torch.Generator:
    """A random generator that is seeded by names."""
    text = "\n".join(names).encode(errors="surrogateescape")
    return torch.Generator().manual_seed(int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1)


def bootstrap(values: Sequence[float]) -> dict[str, float]:
    """The `mean`, and `low` and `high`: the percentile interval of means over resampled images."""
    sample = torch.tensor(values, dtype=torch.float64)
    generator = torch.Generator().manual_seed(SEED)
    size = max(1, 2_000_000 // len(sample))  # resamples at once, to bound memory
    means = [
        sample[torch.randint(len(sample), (min(size, RESAMPLES - start), len(sample)), generator=generator)].mean(1)
        for start in range(0, RESAMPLES, size)
    ]
    tail = (1 - LEVEL) / 2
    low, high = torch.cat(means).quantile(torch.tensor([tail, 1 - tail], dtype=torch.float64)).tolist()
    return {"mean": float(sample.mean()), "low": low, "high": high}


def compare(first: Sequence[float], second: Sequence[float]) -> dict[str, float]:
    """The first minus the second in pairs, and the share of images where the first is `higher`; ties count half."""
    differences = [one - other for one, other in zip(first, second, strict=True)]
    higher = sum(0.5 if value == 0 else float(value > 0) for value in differences) / len(differences)
    return {**bootstrap(differences), "higher": higher, "images": len(differences)}


def spearman(first: Tensor, second: Tensor) -> float | None:
    """The rank correlation of two maps, with mean ranks for ties; None if one of them is constant."""
    ranks = [_mean_ranks(values.flatten().double()) for values in (first, second)]
    centred = [values - values.mean() for values in ranks]
    norm = float(centred[0].norm() * centred[1].norm())
    return None if norm == 0 else float(centred[0] @ centred[1]) / norm


def _mean_ranks(values: Tensor) -> Tensor:
    _, place, counts = values.unique(return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks: Tensor = (last - (counts - 1) / 2)[place]
    return ranks
