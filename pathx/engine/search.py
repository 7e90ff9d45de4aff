"""Which units of a layer are kept, without computing what every unit sends to every class.

Every unit gets an upper bound of its margin, which takes one sum over the rows instead of one for every class: by Jensen's
inequality log mean exp(z_c) >= mean z_c, so the margin is at most z_target - mean of the others. The units with the highest
bounds are looked at exactly, a fixed number of them, and the best are kept. Whether any other unit could have changed
the choice is left on the device as evidence, and asked once, at the end. No shape depends on numbers, but on a CPU where columns
are many and nearly all 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pathx.engine.branches import Branches
from pathx.engine.candidates import Arrival, joined
from pathx.engine.entries import Entries
from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate
from pathx.engine.rows import Rows
from pathx.engine.selection import Best, Evidence, best, margin
from pathx.engine.window import counted, spaced


@dataclass(frozen=True)
class Strategy:
    """How a step is computed. Whatever is set here, the kept units are the same and the numbers agree to rounding.

    Args:
        slack: how many candidates more than the width are looked at first; None for a number that nearly always does.
        windows: keep rows as windows; otherwise as whole maps.
        most: how many numbers an intermediate result may have.
        few: units under windows are listed, and the others not looked at, while they are less than this part of a layer.
            Against sweeping whole layers that takes 0.69 of the time on SqueezeNet 1.1 and 0.89 on ResNet-18, complete, width
            5; 0.1 is slower than 0.25 on SqueezeNet, 0.5 the same, and 1 slower again.
        put: columns are made from what the windows hold, and not read unit by unit, while a window holds at most this many
            numbers for each unit that is asked for. At a width of 1024 that moves 0.69 of the bytes on SqueezeNet and takes
            0.61 of the time; with 4 instead of 1, ResNet-18 would move 1.33 times as many.
        sparse: on a CPU, columns are written down and multiplied without their zeros where all would take more multiplications
            than the first for an image, while less than the second part of them is anything else: a unit is reached from few
            others. At a width of 1024, SqueezeNet takes 0.56 of the time, ResNet-50 0.75, ResNet-18 0.9; with 1/16 instead of
            1/7, these would take 1.15, 1.15 and 1.2 times as long.
        recorded: on a CPU, after how many calls in the same form the walk down is recorded and played back from then on;
            None for never. Recording takes as long as some ten calls save.
    """

    slack: int | None = None
    windows: bool = True
    most: int = 1 << 26
    few: float = 0.25
    put: float = 1.0
    sparse: tuple[float, float] = (1 << 27, 1 / 7)
    recorded: int | None = 3

    def first_slack(self, width: int) -> int:
        return width // 32 + 6 if self.slack is None else self.slack


@dataclass(frozen=True, eq=False)
class Choice:
    """What is known of the units that a layer keeps, by falling importance.

    Args:
        units: (Q, K) their numbers in the layer.
        best: their margins, and which of them are real.
        weights: (Q, K, C) what each unit's output sends to every class.
        gain: (Q, K) what they pass on.
        columns: for every set of rows, what they hold at the candidates: (Q, rows, n); None where that is not known.
        evidence: None where every unit was looked at.
    """

    units: Tensor
    best: Best
    weights: Tensor
    gain: Tensor
    columns: list[Tensor | Entries | None]
    evidence: Evidence | None


def search(
    frozen: Frozen,
    branches: Branches,
    sources: Sequence[Rows],
    layer: int,
    *,
    width: int,
    slack: int,
    threshold: float,
    careful: bool,
    strategy: Strategy,
) -> Choice:
    """The best units of a layer for every branch.

    Args:
        sources: rows that arrive at the layer.
        careful: leave units out at which nothing arrives; costly, and rarely what a choice depends on.
    """
    gates = frozen.network.layers[layer - 1]
    settings = (strategy.most, strategy.windows, strategy.put)
    looked_for = min(width + slack, sum(gate.units for gate in gates))
    arrivals = [Arrival(rows, layer, gates, *settings, _sparse(rows, looked_for, strategy)) for rows in sources]
    looked_at = _listed(arrivals, strategy.few) or _all(frozen, gates, branches, arrivals, careful)
    bounds = looked_at.bounds
    count = min(width + slack, bounds.shape[1])
    top = bounds.topk(min(count + 1, bounds.shape[1]), dim=1)
    units, place, gain = looked_at.at(top.indices[:, :count])
    weights, columns = _exact(arrivals, units, place, looked_at.listing, strategy.most)
    margins = _margins(weights, gain, branches, strategy.most)
    found = best(margins, width, branches.limits(threshold, min(width, count), margins))
    unseen = top.values[:, count] if count < bounds.shape[1] else None
    kept = weights.flatten(0, 1).index_select(0, _through(found.place, count).flatten())  # by rows, not by numbers
    return Choice(
        units=units.gather(1, found.place),
        best=found,
        weights=kept.reshape(*found.place.shape, -1),
        gain=gain.gather(1, found.place),
        columns=columns,
        evidence=None if unseen is None else Evidence(unseen, found.margin[:, 0], _last(found, width)),
    )


def _sparse(rows: Rows, candidates: int, strategy: Strategy) -> float | None:
    """The part of the columns of rows that may be other than 0, for `Arrival`."""
    if not rows.frozen.compact or rows.weights is None:
        return None
    multiplications, part = strategy.sparse
    return part if rows.weights[0].numel() * candidates > multiplications else None


@dataclass(frozen=True, eq=False)
class _Bounds:
    """Upper bounds of margins, (Q, n): -inf where there is nothing to keep.

    Args:
        gain: (Q, n) what the units pass on; 0 where there is nothing to keep.
        listing: which units these are; None for all of the layer.
    """

    bounds: Tensor
    gain: Tensor
    listing: _Listing | None = None

    def at(self, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The units at places (Q, k), in the order of their numbers; with their places in that order, and their gains."""
        if self.listing is None:
            units = place.sort(dim=1).values
            return units, units, self.gain.gather(1, units)
        units, order = self.listing.units.gather(1, place).sort(dim=1)
        place = place.gather(1, order)
        return units, place, self.gain.gather(1, place)


@dataclass(frozen=True, eq=False)
class _Listing:
    """The units under windows, where these are few; one may be there several times.

    Args:
        units: (Q, m) their numbers, of all arrivals.
        owner: (Q * m,) for every entry of the list, the one among those of the same unit that stands for it.
        held: by arrival, what the rows hold at the units, (Q, K, n).
    """

    units: Tensor
    owner: Tensor
    held: tuple[Tensor, ...]

    def columns(self, place: Tensor, left_out: Sequence[bool]) -> Iterator[Tensor]:
        """By arrival, (Q, K, n) what its rows hold at the units that the entries (Q, n) of the list stand for.

        Nothing for entries that stand for none, because another one does.
        """
        branches, count = place.shape
        entry = _through(place, self.units.shape[1])
        number = counted(count, place.device).expand(branches, -1)
        column = torch.full_like(self.owner, count)  # for units that are not asked for
        column.index_copy_(0, entry.reshape(-1), number.reshape(-1))
        column = column.index_select(0, self.owner).reshape(self.units.shape)
        start = 0
        for data, out in zip(self.held, left_out, strict=True):
            stop = start + data[0].numel()
            if not out:
                table = data.new_zeros(branches, data.shape[1], count + 1)
                yield table.scatter_add_(2, column[:, start:stop].reshape(data.shape), data)[:, :, :count]
            start = stop


def _through(numbers: Tensor, size: int) -> Tensor:
    """Numbers (Q, n) below `size`, counted through the branches."""
    branches = len(numbers)
    return numbers if branches == 1 else numbers + spaced(branches, size, 0, numbers.device)[:, None]


def _all(
    frozen: Frozen, gates: Sequence[Gate], branches: Branches, arrivals: Sequence[Arrival], careful: bool
) -> _Bounds:
    """Bounds of all units of a layer."""
    gain = _gain(frozen, gates, branches)
    bounds = _total([arrival.favour() for arrival in arrivals]) * gain
    bounds.masked_fill_(gain == 0, -math.inf)
    if careful:
        reached = torch.stack([arrival.reached() for arrival in arrivals]).any(0)
        bounds.masked_fill_(~reached, -math.inf)
    return _Bounds(bounds, gain)


def _listed(arrivals: Sequence[Arrival], few: float) -> _Bounds | None:
    """Bounds of the units under windows alone, where these are few: nothing arrives at any other.

    Nothing here is as large as the layer but memory that is neither cleared nor read outside of the list.
    """
    parts = [arrival.touched(few) for arrival in arrivals]
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    units, gain, favour = (
        joined([values.flatten(1) for values in each], 1)
        for each in zip(*((part.units, part.gain, part.favour) for part in known), strict=True)
    )
    size = arrivals[0].units
    flat = _through(units, size).reshape(-1)
    number = counted(len(flat), flat.device)
    owner = flat.new_empty(len(units) * size).index_copy_(0, flat, number).index_select(0, flat)
    gain = gain.masked_fill((owner != number).reshape(units.shape), 0.0)  # an entry that another stands for is nothing
    bounds = favour.new_zeros(len(flat)).index_add_(0, owner, favour.reshape(-1))
    bounds = bounds.reshape(units.shape).mul_(gain).masked_fill_(gain == 0, -math.inf)
    return _Bounds(bounds, gain, _Listing(units, owner, tuple(part.held for part in known)))


def _gain(frozen: Frozen, gates: Sequence[Gate], branches: Branches) -> Tensor:
    """(Q, units) what every unit of a layer passes on; 0 where it is not active."""
    gains = [frozen.slopes(gate).gain.flatten(1) for gate in gates]
    gain = joined(gains, 1)
    return gain if branches.whole else gain.index_select(0, branches.image)


def _exact(
    arrivals: Sequence[Arrival],
    units: Tensor,
    place: Tensor,
    listing: _Listing | None,
    most: int,
) -> tuple[Tensor, list[Tensor | Entries | None]]:
    """(Q, n, C) what units (Q, n) send to every class: W of Algorithm 1; and the columns (Q, rows, n) it was made from.

    Args:
        place: (Q, n) the entries of the list that stand for the units, where there is one.
    """
    parts: list[Tensor] = []
    known: list[Tensor | Entries | None] = []
    too_many = [a.rows.weights is not None and a.rows.count * units.numel() > most for a in arrivals]
    listed = None if listing is None else listing.columns(place, too_many)
    for number, arrival in enumerate(arrivals):
        rows = arrival.rows
        if rows.weights is not None and too_many[number]:
            parts.append(_by_classes(arrival, rows.weights, units, most))
            known.append(None)
            continue
        columns = arrival.columns(units) if listed is None else arrival.written(next(listed))
        known.append(columns)
        parts.append(_product(columns, rows.weights))
    return _total(parts), known


def _product(columns: Tensor | Entries, weights: Tensor | None) -> Tensor:
    """(Q, n, C) columns (Q, K, n), turned, times weights (Q, K, C); as they are where the rows are the classes."""
    if isinstance(columns, Entries):
        assert weights is not None
        return columns.product(weights)
    turned = columns.transpose(1, 2)
    return turned if weights is None else torch.bmm(turned, weights)


def _by_classes(arrival: Arrival, weights: Tensor, units: Tensor, most: int) -> Tensor:
    """The same with rows of classes, some at a time, where rows and units are so many that their table would not fit."""
    step = max(1, most // (len(weights) * arrival.units))
    parts = []
    for some in weights.transpose(1, 2).split(step, dim=1):
        maps = arrival.weighed(some)
        parts.append(maps.gather(2, units[:, None].expand(-1, maps.shape[1], -1)))
    return torch.cat(parts, 1).transpose(1, 2)


def _margins(weights: Tensor, gain: Tensor, branches: Branches, most: int) -> Tensor:
    """(Q, n) exact margins of candidates."""
    step = max(1, most // (len(branches) * branches.classes))
    rivals, passed = branches.rivals(weights), gain.unsqueeze(2)
    if step >= weights.shape[1]:
        return margin(weights * passed, branches.target, rivals)
    pairs = zip(weights.split(step, dim=1), passed.split(step, dim=1), strict=True)
    return torch.cat([margin(some * by, branches.target, rivals) for some, by in pairs], 1)


def _last(found: Best, width: int) -> Tensor:
    """(Q,) the lowest margin that may be kept; -inf where there is room for more."""
    full = found.margin.shape[1] == width
    return found.margin[:, -1] if full else torch.full_like(found.margin[:, 0], -math.inf)


def _total(parts: Sequence[Tensor]) -> Tensor:
    return sum(parts[1:], parts[0])
