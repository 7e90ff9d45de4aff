"""How units are ranked, and which of some candidates are kept."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathx.engine.window import made_once


def margin(z: Tensor, target: Tensor, rivals: Tensor) -> Tensor:
    """Importance as a margin: z (Q, n, C) to (Q, n), in the order of softmax(z) at the target.

    It is 0 at importance 1/C, and -inf where all of z is 0: a unit that makes no difference is no candidate. Computed
    in place, so z is used up.

    Args:
        rivals: (Q, C, 1) 0 at the target and 1 / (C - 1) at the others, so that a product with it is their mean.
    """
    at = target[:, None, None].expand(-1, z.shape[1], 1)
    own = z.gather(2, at)
    most = z.scatter_(2, at, -math.inf).amax(2, keepdim=True)
    excess = torch.bmm(z.sub_(most).expm1_(), rivals)
    alive = own.logical_or(most).logical_or_(excess)  # if the others' maximum and mean are 0, so are they all
    own.sub_(most).sub_(excess.log1p_())
    nothing = made_once(("nothing", z.dtype), z.device, lambda: torch.tensor(-math.inf, dtype=z.dtype))
    return torch.where(alive, own, nothing).squeeze(2)


def importance(margins: Tensor, classes: int) -> Tensor:
    """Softmax over the classes at the target, from the margin."""
    return torch.sigmoid(margins - math.log(classes - 1))


def threshold_of(alpha: float | None, classes: int) -> float:
    """The margin above which a unit's importance is above alpha; exactly 0 for alpha = 1/C."""
    if alpha is None or alpha == 1 / classes:
        return 0.0
    if alpha <= 0:
        return -math.inf
    return math.log(alpha / (1 - alpha)) + math.log(classes - 1) if alpha < 1 else math.inf


@dataclass(frozen=True, eq=False)
class Best:
    """The best candidates by falling importance.

    Args:
        place: (Q, K) where each is among the candidates.
        margin: (Q, K) their importance as a margin.
        valid: (Q, K) which are kept: those above the threshold, or the first alone where none is.
    """

    place: Tensor
    margin: Tensor
    valid: Tensor


def best(margins: Tensor, width: int, limits: Tensor) -> Best:
    """The `width` best of candidates (Q, n) that are in the order of their numbers: ties go to the lower one.

    Args:
        limits: (width or n,) the margins that the first, the second, … must be above, as `limits_of` gives them.
    """
    values, place = margins.sort(dim=1, descending=True, stable=True)
    values, place = values[:, :width], place[:, :width]
    return Best(place, values, values > limits)


def limits_of(threshold: float, width: int, like: Tensor) -> Tensor:
    """(width,) the threshold, but for the first: it is kept in any case, if it makes a difference at all."""
    limits = torch.full((width,), threshold, dtype=like.dtype, device=like.device)
    limits[:1].fill_(-math.inf)
    return limits


@dataclass(frozen=True, eq=False)
class Evidence:
    """What says whether the units that were not looked at could have changed the choice, (Q,) each.

    Args:
        unseen: the highest bound of a unit that was not looked at.
        first, last: the highest margin found, and the lowest one that may be kept.
    """

    unseen: Tensor
    first: Tensor
    last: Tensor


def certain(evidence: list[Evidence], threshold: float) -> Tensor:
    """(layers, Q) whether the choice stands, whatever the exact margins of the others are. A hair is left for rounding."""
    unseen, first, last = (
        torch.stack(parts) for parts in zip(*((e.unseen, e.first, e.last) for e in evidence), strict=True)
    )
    alone = first <= threshold
    enough = torch.where(alone, first, last.clamp(min=threshold))
    alike = alone & (unseen >= enough - 1e-6) & unseen.isfinite()  # of which the one with the lowest number is kept
    return ~((unseen > enough - 1e-4 * enough.abs()) | alike)  # (what is not a number is refused later)
