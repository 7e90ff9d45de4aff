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
        listed: the units of every branch as plain numbers, where shapes may depend on data.
    """

    units: Tensor
    margin: Tensor
    valid: Tensor
    below_alpha: Tensor
    listed: list[list[int]] | None = None

    def trimmed(self) -> Chosen:
        """Without columns in which no branch has a unit."""
        longest = max(1, int(self.valid.sum(1).max()))
        units, margins, valid = (part[:, :longest] for part in (self.units, self.margin, self.valid))
        numbers = zip(units.tolist(), valid.tolist(), strict=True)
        listed = [[unit for unit, real in zip(*pair, strict=True) if real] for pair in numbers]
        return Chosen(units, margins, valid, self.below_alpha, listed)

    def of(self, branches: Tensor) -> Chosen:
        """The same for each of the given branches (Q',)."""
        listed = None if self.listed is None else [self.listed[branch] for branch in branches.tolist()]
        return Chosen(
            self.units[branches], self.margin[branches], self.valid[branches], self.below_alpha[branches], listed
        )

    def apart(self, numbers: Tensor) -> Chosen:
        """Each of the given entries (Q',), counted through all branches, as the only one of a branch."""
        units, margins, valid = (part.flatten()[numbers][:, None] for part in (self.units, self.margin, self.valid))
        listed = None
        if self.listed is not None:
            listed = [unit if real else [] for unit, (real,) in zip(units.tolist(), valid.tolist(), strict=True)]
        return Chosen(units, margins, valid, self.below_alpha[numbers // self.units.shape[1]], listed)


def margin(z: Tensor, target: Tensor) -> Tensor:
    """Importance as a margin: z (Q, n, C) to (Q, n), in the order of softmax(z) at the target.

    It is 0 at importance 1/C, and -inf where all of z is 0: a unit that makes no difference is no candidate. Computed
    in place, so z is used up.
    """
    at = target[:, None, None].expand(-1, z.shape[1], 1)
    own = z.gather(2, at)
    most = z.scatter_(2, at, -math.inf).amax(2, keepdim=True)
    excess = z.sub_(most).expm1_().scatter_(2, at, 0.0).sum(2, keepdim=True)
    nothing = (own == 0) & (most == 0) & (excess == 0)
    margins = own.sub_(most).sub_(excess.div_(z.shape[2] - 1).log1p_())
    return margins.masked_fill_(nothing, -math.inf)[:, :, 0]


def importance(margins: Tensor, classes: int) -> Tensor:
    """Softmax over the classes at the target, from the margin."""
    return torch.sigmoid(margins - math.log(classes - 1))


def select(candidates: Candidates, width: int) -> Chosen:
    """The `width` best units above the threshold, or the single best where none is; ties go to the lower number."""
    if candidates.class_maps:
        margins, live = candidates.class_by_class()
        units = torch.arange(margins.shape[1], device=margins.device).expand(margins.shape)
        return best(units, margins.masked_fill(~live, -math.inf), width, candidates.threshold)[0]
    units, alive = candidates.reached()
    step = max(1, candidates.chunk // (len(units) * candidates.classes))
    parts = [alive[:, :0].to(candidates.gains[0].dtype)]
    for some in units.split(step, dim=1):
        if some.shape[1]:
            z = candidates.weights(some).transpose(1, 2) * candidates.gain(some)[:, :, None]
            parts.append(margin(z, candidates.target))
    return best(units, torch.cat(parts, 1).masked_fill(~alive, -math.inf), width, candidates.threshold)[0]


def best(units: Tensor, margins: Tensor, width: int, threshold: float) -> tuple[Chosen, Tensor]:
    """The best of candidates (Q, n) whose exact margins are known, and where among them each is."""
    if units.shape[1] == 0:
        units, margins = units.new_zeros(len(units), 1), margins.new_full((len(units), 1), -math.inf)
    by_number = torch.argsort(units, dim=1, stable=True)
    order = torch.argsort(margins.gather(1, by_number), dim=1, descending=True, stable=True)[:, :width]
    place = by_number.gather(1, order)
    units, margins = units.gather(1, place), margins.gather(1, place)
    valid = margins > threshold
    below_alpha = ~valid.any(1)
    first = torch.arange(units.shape[1], device=units.device) == 0
    valid = valid | (first & below_alpha[:, None] & (margins > -math.inf))
    return Chosen(units, margins, valid, below_alpha), place


def few(units: Tensor, margins: Tensor, width: int, threshold: float) -> tuple[Chosen, Tensor]:
    """The same with plain numbers, and without columns in which no branch has a unit."""
    kept: list[list[tuple[float, int, int]]] = []  # (-margin, unit, place)
    below = []
    for own_units, own_margins in zip(units.tolist(), margins.tolist(), strict=True):
        pairs = enumerate(zip(own_margins, own_units, strict=True))
        ranked = sorted((-value, unit, place) for place, (value, unit) in pairs if value > -math.inf)[:width]
        passing = [entry for entry in ranked if -entry[0] > threshold]
        below.append(not passing)
        kept.append(passing or ranked[:1])
    longest = max(1, *map(len, kept))
    filled = [some + [(math.inf, 0, 0)] * (longest - len(some)) for some in kept]
    chosen = Chosen(
        units=torch.tensor([[unit for _, unit, _ in some] for some in filled]),
        margin=torch.tensor([[-value for value, _, _ in some] for some in filled], dtype=margins.dtype),
        valid=torch.tensor([[value < math.inf for value, _, _ in some] for some in filled]),
        below_alpha=torch.tensor(below),
        listed=[[unit for _, unit, _ in some] for some in kept],
    )
    return chosen, torch.tensor([[place for _, _, place in some] for some in filled])
