"""Which units of a layer a branch keeps: importance margins of everything that arrived there, and the best of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from pathx.window import Window

Arrival = tuple[int, Window, Tensor | None, int]  # gate, rows that arrived there, (Q, C, K) weights of the rows, K


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


@dataclass(frozen=True, eq=False)
class Candidates:
    """What arrived at the gates of one layer, ready to be ranked.

    Args:
        image, target: (Q,) picture and class of every branch.
        gains: of each gate of the layer, (B, *shape): what its units pass on, 0 where they are not active.
        chunk: how many numbers an intermediate result may have.
        compact: shapes may depend on data.
    """

    image: Tensor
    target: Tensor
    classes: int
    gains: list[Tensor]
    arrivals: list[Arrival]
    chunk: int
    compact: bool

    @cached_property
    def offsets(self) -> list[int]:
        """Number of the first unit of each gate, and of the unit after the last."""
        offsets = [0]
        for gain in self.gains:
            offsets.append(offsets[-1] + prod(gain.shape[1:]))
        return offsets

    def gain(self, units: Tensor) -> Tensor:
        """(Q, n) what the units pass on."""
        result = torch.zeros(units.shape, dtype=self.gains[0].dtype, device=units.device)
        for gain, start, end in zip(self.gains, self.offsets, self.offsets[1:], strict=False):
            here = (units >= start) & (units < end)
            flat = (units - start).clamp(0, end - start - 1) + self.image[:, None] * (end - start)
            result = torch.where(here, gain.reshape(-1)[flat], result)
        return result

    def weights(self, units: Tensor) -> Tensor:
        """(Q, C, n) what the units' outputs send to every class: W of Algorithm 1, for these columns only."""
        branches, count = units.shape
        result = torch.zeros(branches, self.classes, count, dtype=self.gains[0].dtype, device=units.device)
        by_source: dict[int, Tensor] = {}
        meanings: dict[int, Tensor | None] = {}
        for gate, window, weights, rows in self.arrivals:
            key = id(weights)
            if key not in by_source:
                by_source[key] = result.new_zeros(branches * rows, count)
                meanings[key] = weights
            local = units - self.offsets[gate]
            here = (local >= 0) & (local < self.offsets[gate + 1] - self.offsets[gate])
            values = _columns(window, local, here, rows)
            by_source[key] = by_source[key].index_add_(0, window.row, values)
        for key, jacobian in by_source.items():
            weights = meanings[key]
            jacobian = jacobian.reshape(branches, len(jacobian) // branches, count)
            result = result + (jacobian if weights is None else weights @ jacobian)
        return result

    def margins(self, units: Tensor) -> tuple[Tensor, Tensor]:
        """(Q, n) importance margins, and whether anything at all arrived at the units."""
        step = max(1, self.chunk // (len(self.image) * self.classes))
        parts = []
        for some in units.split(step, dim=1):
            z = self.weights(some) * self.gain(some)[:, None]
            parts.append((margin(z, self.target), (z != 0).any(1)))
        return torch.cat([m for m, _ in parts], 1), torch.cat([live for _, live in parts], 1)

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Every unit that something arrived at, (Q, n), and an upper bound of its margin, -inf where there is none.

        By Jensen's inequality log mean exp(z_c) >= mean z_c, so the margin is at most z_t - mean of the others, which
        takes one weighted sum of the rows instead of one per class.
        """
        found = [part for gate in range(len(self.gains)) for part in self._bounds_at(gate)]
        if not found:
            nothing = torch.zeros(len(self.image), 0, dtype=torch.long, device=self.image.device)
            return nothing, nothing.to(self.gains[0].dtype)
        return torch.cat([units for units, _ in found], 1), torch.cat([bound for _, bound in found], 1)

    def _bounds_at(self, gate: int) -> Iterator[tuple[Tensor, Tensor]]:
        arrivals = [(w, self._lean(weights, rows), rows) for g, w, weights, rows in self.arrivals if g == gate]
        if not arrivals:
            return
        gain = self.gains[gate].flatten(1)
        if any(window.is_full for window, _, _ in arrivals):
            units, bound = self._full_bounds(arrivals, gain)
        else:
            units, bound = self._window_bounds(arrivals, gain)
        yield units + self.offsets[gate], bound

    def _lean(self, weights: Tensor | None, rows: int) -> Tensor:
        """(Q * K,) how much more a row sends to the target than to the mean of the other classes."""
        others = self.classes - 1
        if weights is None:
            lean = torch.full((len(self.target), rows), -1 / others, dtype=self.gains[0].dtype, device=self.image.device)
            return lean.scatter_(1, self.target[:, None], 1.0).flatten()
        at_target = weights.gather(1, self.target[:, None, None].expand(-1, 1, weights.shape[2]))[:, 0]
        return (at_target - (weights.sum(1) - at_target) / others).flatten()

    def _full_bounds(self, arrivals: list[tuple[Window, Tensor, int]], gain: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of all units of a gate, where some rows arrived as whole maps."""
        total = gain.new_zeros(len(self.image), gain.shape[1])
        reached = torch.zeros_like(total, dtype=torch.bool)
        for window, lean, rows in arrivals:
            branch = window.row // rows
            maps = window.dense().data.flatten(1)
            if len(maps) == len(self.image) * rows:
                grouped = maps.reshape(len(self.image), rows, -1)
                total = total + (lean.reshape(len(self.image), 1, rows) @ grouped)[:, 0]
            else:
                total = total.index_add(0, branch, maps * lean[window.row][:, None])
            reached[:] = True
        own = gain[self.image]
        bound = (total * own).masked_fill(~((own != 0) & reached), -math.inf)
        units = torch.arange(gain.shape[1], device=gain.device).expand(len(self.image), -1)
        return units, bound

    def _window_bounds(self, arrivals: list[tuple[Window, Tensor, int]], gain: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds of the units under the windows, each unit once however many windows overlap there."""
        keys, values = [], []
        size = gain.shape[1]
        for window, lean, rows in arrivals:
            sent = window.cleaned().data * window.read(gain.reshape(-1, *window.shape))
            unit = window.index().expand_as(sent)
            own = (window.row // rows * size).reshape(-1, *(1,) * len(window.shape))
            value = sent * lean[window.row].reshape(own.shape)
            keys.append((unit + own).flatten())
            values.append(torch.where(sent != 0, value, math.nan).flatten())
        key, value = torch.cat(keys), torch.cat(values)
        live = ~value.isnan()
        if self.compact:
            some = torch.nonzero(live).flatten()
            key, value, live = key[some], value[some], live[some]
        # Whichever duplicate is written last owns the unit and collects the sum.
        numbers = torch.arange(len(key), device=key.device)
        spare = len(self.image) * size
        owner = torch.empty(spare + 1, dtype=torch.long, device=key.device)
        key = torch.where(live, key, spare)
        owner[key] = numbers
        slot = owner[key]
        total = value.new_zeros(len(key)).index_add_(0, slot, value.nan_to_num(0.0))
        first = live & (slot == numbers)
        bound = total.masked_fill(~first, -math.inf)
        unit = key.clamp(max=spare - 1) % size
        return self._by_branch(key // size, unit, bound, first)

    def _by_branch(self, branch: Tensor, unit: Tensor, bound: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Flat lists as (Q, n) tables."""
        count = len(self.image)
        if count == 1:
            return unit[None], bound[None]
        if not self.compact:  # rows come in the order of their branches, as many of each
            return unit.reshape(count, -1), bound.reshape(count, -1)
        some = torch.nonzero(first).flatten()
        branch, unit, bound = branch[some], unit[some], bound[some]
        order = torch.argsort(branch, stable=True)
        branch, unit, bound = branch[order], unit[order], bound[order]
        sizes = torch.bincount(branch, minlength=count)
        place = torch.arange(len(branch), device=branch.device) - (sizes.cumsum(0) - sizes)[branch]
        longest = int(sizes.max())
        units = unit.new_zeros(count, longest)
        bounds = bound.new_full((count, longest), -math.inf)
        units[branch, place], bounds[branch, place] = unit, bound
        return units, bounds


def _columns(window: Window, units: Tensor, here: Tensor, rows: int) -> Tensor:
    """(P, n) what the cotangents hold at units (Q, n) of their own branch; 0 outside their boxes."""
    branch = window.row // rows
    inside = here[branch]
    local = units.clamp(0, prod(window.shape) - 1)
    index = torch.zeros(1, dtype=torch.long, device=units.device)
    coordinates = torch.unravel_index(local, window.shape)
    for dim, size in enumerate(window.extent):
        place = coordinates[dim][branch]
        origin = window.origin[dim]
        if not window.covers(dim):
            place = place - (origin[:, None] if isinstance(origin, Tensor) else origin)
            inside = inside & (place >= 0) & (place < size)
            place = place.clamp(0, max(size - 1, 0))
        index = index * size + place
    values = window.data.flatten(1).gather(1, index)
    return torch.where(inside, values, torch.zeros((), dtype=values.dtype, device=values.device))


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
    units, bound = candidates.bounds()
    total = units.shape[1]
    if prune:
        order = torch.argsort(bound, dim=1, descending=True, stable=True)
        units, bound = units.gather(1, order), bound.gather(1, order)
    seen = min(total, 2 * width + 32) if prune else total
    margins, live = candidates.margins(units[:, :seen])
    margins = margins.masked_fill(~live | (bound[:, :seen] == -math.inf), -math.inf)
    while seen < total and bool((bound[:, seen] > _enough(margins, width, threshold)).any()):
        more = min(total, 2 * seen)
        fresh, live = candidates.margins(units[:, seen:more])
        fresh = fresh.masked_fill(~live | (bound[:, seen:more] == -math.inf), -math.inf)
        margins, seen = torch.cat([margins, fresh], 1), more
    chosen = _best(units[:, :seen], margins, width, threshold)
    if candidates.compact:
        longest = max(1, int(chosen.valid.sum(1).max()))
        chosen = Chosen(
            chosen.units[:, :longest], chosen.margin[:, :longest], chosen.valid[:, :longest], chosen.below_alpha
        )
    return chosen


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
    valid[:, 0] |= below_alpha & (margins[:, 0] > -math.inf)
    return Chosen(units, margins, valid, below_alpha)
