"""Which units of a layer a branch keeps: the best by exact importance, found without computing everyone's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pathx.arrivals import Candidates


@dataclass(frozen=True, eq=False)
class Chosen:
    """Kept units by falling importance.

    Args:
        units: (Q, K) number of the unit in its layer.
        margin: (Q, K) importance as a margin, 0 at 1/C.
        valid: (Q, K) which entries are units at all.
        below_alpha: (Q,) no unit was above alpha and the best was kept for want of a better.
    """

    units: Tensor
    margin: Tensor
    valid: Tensor
    below_alpha: Tensor


def margin(z: Tensor, target: Tensor) -> Tensor:
    """Importance as a margin: z (Q, C, n) to (Q, n). 0 exactly where z is 0, and in the order of softmax(z) at the target."""
    at = target[:, None, None].expand(-1, 1, z.shape[2])
    own = z.gather(1, at)
    others = z.scatter(1, at, -math.inf)
    most = others.amax(1, keepdim=True)
    excess = torch.expm1(others - most).scatter_(1, at, 0.0)
    return (own - most - torch.log1p(excess.sum(1, keepdim=True) / (z.shape[1] - 1)))[:, 0]


def importance(margins: Tensor, classes: int) -> Tensor:
    """Softmax over the classes at the target, from the margin."""
    return torch.sigmoid(margins - math.log(classes - 1))


def select(candidates: Candidates, width: int, threshold: float, *, prune: bool) -> Chosen:
    """The `width` best units above the threshold, or the single best where none is; ties go to the lower number."""
    if candidates.class_maps:
        margins, live = candidates.class_by_class()
        units = torch.arange(margins.shape[1], device=margins.device).expand(margins.shape)
        chosen = _best(units, margins.masked_fill(~live, -math.inf), width, threshold)
    else:
        chosen = _search(candidates, width, threshold, prune=prune)
    if candidates.compact:
        longest = max(1, int(chosen.valid.sum(1).max()))
        units, margins, valid = (part[:, :longest] for part in (chosen.units, chosen.margin, chosen.valid))
        chosen = Chosen(units, margins, valid, chosen.below_alpha)
    return chosen


def _search(candidates: Candidates, width: int, threshold: float, *, prune: bool) -> Chosen:
    """Exact margins in the order of their upper bounds, until no bound that is left could change the choice."""
    units, bound = candidates.bounds()
    total = units.shape[1]
    if not prune:
        return _best(units, _margins(candidates, units, bound), width, threshold)
    seen = min(total, 2 * width + 32)
    first = bound.topk(min(total, 8 * seen), dim=1)  # sorting everything is dearer than everything else
    exhaustive = first.values.shape[1] == total
    ranked, limits = units.gather(1, first.indices), first.values
    margins = _margins(candidates, ranked[:, :seen], limits[:, :seen])
    while seen < total:
        if seen == ranked.shape[1] and not exhaustive:
            order = torch.sort(bound, dim=1, descending=True)
            ranked, limits, exhaustive = units.gather(1, order.indices), order.values, True
            seen = 0
            margins = margins[:, :0]
        elif not bool((limits[:, seen] > _enough(margins, width, threshold)).any()):
            break
        more = min(ranked.shape[1], max(2 * seen, 2 * width + 32))
        fresh = _margins(candidates, ranked[:, seen:more], limits[:, seen:more])
        margins, seen = torch.cat([margins, fresh], 1), more
    return _best(ranked[:, :seen], margins, width, threshold)


def _margins(candidates: Candidates, units: Tensor, bound: Tensor) -> Tensor:
    """(Q, n) exact margins; -inf where nothing arrived."""
    step = max(1, candidates.chunk // (len(units) * candidates.classes))
    parts = [bound[:, :0]]
    for some in units.split(step, dim=1):
        if some.shape[1]:
            z = candidates.weights(some) * candidates.gain(some)[:, None]
            parts.append(margin(z, candidates.target).masked_fill((z == 0).all(1), -math.inf))
    return torch.cat(parts, 1).masked_fill(bound == -math.inf, -math.inf)


def _enough(margins: Tensor, width: int, threshold: float) -> Tensor:
    """(Q,) a bound up to which no further unit can change the choice; a hair lower, for rounding."""
    if margins.shape[1] == 0:
        return margins.new_full((len(margins),), -math.inf)
    last = margins.topk(min(width, margins.shape[1]), dim=1).values[:, -1]
    best = margins.amax(1)
    full = (margins > threshold).sum(1) >= width
    floor = torch.where(best > threshold, torch.full_like(best, threshold), best)
    enough = torch.where(full, last, floor)
    return enough - 1e-4 * enough.abs()


def _best(units: Tensor, margins: Tensor, width: int, threshold: float) -> Chosen:
    """The best of the candidates whose exact margins are known."""
    if units.shape[1] == 0:
        units, margins = units.new_zeros(len(units), 1), margins.new_full((len(units), 1), -math.inf)
    by_number = torch.argsort(units, dim=1, stable=True)
    units, margins = units.gather(1, by_number), margins.gather(1, by_number)
    order = torch.argsort(margins, dim=1, descending=True, stable=True)[:, :width]
    units, margins = units.gather(1, order), margins.gather(1, order)
    valid = margins > threshold
    below_alpha = ~valid.any(1)
    best = torch.arange(units.shape[1], device=units.device) == 0
    valid = valid | (best & below_alpha[:, None] & (margins > -math.inf))
    return Chosen(units, margins, valid, below_alpha)
