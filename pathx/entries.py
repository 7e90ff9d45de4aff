"""What arrived at one hidden layer, searched by bounds: for devices where shapes may depend on data.

Every unit gets an upper bound of its margin, which takes one sum over the rows instead of one per class. The search then
computes exact margins by falling bound, looks at numbers as it goes, and stops as soon as nothing can change any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.arrivals import Arrival, Candidates, Rows
from pathx.selection import Chosen, best, few, margin
from pathx.window import unravelled

NONE = torch.zeros(0, dtype=torch.long)
FIRST_ROUND = 6  # candidates that are evaluated at first beyond the width; more follow where the bound is loose
FEW = 256  # candidates are put in order faster without tensors
SMALL = 1 << 15  # what goes into a table of fewer elements than this is not worth sifting
SPARSE = 16  # a product with entries pays where they are fewer than one in so many


@dataclass(frozen=True, eq=False)
class Spots:
    """What windows hold, and where.

    Args:
        data: (P, n) the elements of each cotangent.
        key: (P, n) the unit that each is at: branch * units of the layer + unit.
        row: (P,) number q * K + k of the row.
    """

    rows: Rows
    data: Tensor
    key: Tensor
    row: Tensor


@dataclass(frozen=True, eq=False)
class LiveCandidates(Candidates):
    """Candidates by their live entries.

    Args:
        sums: gates by position, with what arrived there, each row times its lean, summed up: (Q, *shape).
    """

    sums: list[tuple[int, Tensor]]

    @cached_property
    def _whole(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.window.is_full]

    @cached_property
    def _everyone(self) -> bool:
        """Whether all units of the layer are candidates, and a candidate's slot is its key."""
        return bool(self._whole or self.sums)

    @cached_property
    def _spots(self) -> list[Spots]:
        """Of all windows whose sum is not known."""
        return [self._spots_of(arrival) for arrival in self.arrivals if not (arrival.window.is_full or arrival.summed)]

    @cached_property
    def _slots(self) -> Tensor | None:
        """(n,) the key in every slot; units may be in several. None where slots are keys."""
        if self._everyone:
            return None
        keys = [spots.key.reshape(-1) for spots in self._spots]
        return keys[0] if len(keys) == 1 else torch.cat(keys) if keys else NONE

    def _keys(self, slots: Tensor) -> Tensor:
        return slots if self._slots is None else self._slots.take(slots)

    @cached_property
    def _owners(self) -> Tensor:
        """(n,) for every slot, the one that stands for its unit: of all slots that the unit is in, the one written last."""
        assert self._slots is not None
        owner = torch.empty(len(self._flat_gain), dtype=torch.long)
        owner[self._slots] = torch.arange(len(self._slots))
        return owner.take(self._slots)

    def _spots_of(self, arrival: Arrival) -> Spots:
        if self._owned(arrival):
            return self._owned_spots(arrival)
        window, rows = arrival.window.cleaned(), arrival.rows
        start, branches = self.offsets[arrival.gate], len(self.image)
        size = max(1, math.prod(window.extent))
        data, row = window.data.reshape(-1, size), window.row
        key = window.index()
        key = (key + start if start else key).expand_as(window.data).reshape(-1, size)
        if branches == 1:
            return Spots(rows, data, key, row)
        if rows.shared:
            data = data.repeat(branches, 1)
            row = (row + torch.arange(branches)[:, None] * rows.count).flatten()
            key = (key + torch.arange(branches)[:, None, None] * self.offsets[-1]).flatten(0, 1)
            return Spots(rows, data, key, row)
        return Spots(rows, data, key + (row // rows.count * self.offsets[-1])[:, None], row)

    def _owned(self, arrival: Arrival) -> bool:
        """Whether every row is a class with a channel of its own, all of it, and nothing else arrived."""
        window, rows = arrival.window, arrival.rows
        if len(self.arrivals) > 1 or not rows.shared or rows.weights is not None or window.extent[:1] != (1,):
            return False
        channel = window.origin[0]
        others = all(window.covers(dim) for dim in range(1, len(window.shape)))
        return others and isinstance(channel, Tensor) and torch.equal(channel, torch.arange(window.shape[0]))

    def _owned_spots(self, arrival: Arrival) -> Spots:
        """The same where units have one row each: a bound is then known at once, and those below 0 seldom matter."""
        data = arrival.window.data.reshape(arrival.rows.count, -1)  # (channels, places)
        gain = (
            self.gains[arrival.gate].flatten(2)
            if data.shape[1] > 1
            else self.gains[arrival.gate].flatten(1)[:, :, None]
        )
        sent = data * gain.index_select(0, self.image)
        above = sent * arrival.rows.lean[:, :, None] > 0
        enough = self.threshold >= 0 and bool(above.flatten(1).any(1).all())
        branch, row, place = (above if enough else sent != 0).nonzero(as_tuple=True)
        unit = row * data.shape[1] + place
        key, row = unit + branch * self.offsets[-1], row + branch * arrival.rows.count
        return Spots(arrival.rows, data.reshape(-1, 1)[unit], key[:, None], row)

    @cached_property
    def _bounded(self) -> Tensor:
        """(n,) an upper bound of every candidate's margin.

        By Jensen's inequality log mean exp(z_c) >= mean z_c, so the margin is at most z_t - mean of the others, which
        takes one weighted sum of the rows instead of one per class.
        """
        if not self.arrivals:
            return self._flat_gain[:0]
        leaning = [spots.data * spots.rows.lean.view(-1)[spots.row, None] for spots in self._spots]
        keys, gain = self._slots, self._flat_gain
        if keys is not None:
            flat, gain, owners = [values.view(-1) for values in leaning], gain.take(keys), self._owners
            total = torch.zeros(len(keys), dtype=gain.dtype)
            total.index_add_(0, owners, flat[0] if len(flat) == 1 else torch.cat(flat))
            return total.mul_(gain).masked_fill_((owners != torch.arange(len(keys))) | (gain == 0), -math.inf)
        if len(self.sums) == len(self.gains) == len(self.arrivals) == 1:
            total = self.sums[0][1].reshape(-1)
        else:
            total = torch.zeros_like(gain)
            for spots, values in zip(self._spots, leaning, strict=True):
                total.index_add_(0, spots.key.reshape(-1), values.reshape(-1))
            table = total.reshape(len(self.image), -1)
            for gate, sums in [*self.sums, *((a.gate, self._full_sums(a)) for a in self._whole if not a.summed)]:
                table[:, self.offsets[gate] : self.offsets[gate + 1]] += sums.reshape(len(self.image), -1)
        return (total * gain).masked_fill_(gain == 0, -math.inf)

    def _full_sums(self, arrival: Arrival) -> Tensor:
        """(Q, *shape) rows that arrived as whole maps, each times its lean, summed for every branch."""
        branches, rows, window = len(self.image), arrival.rows, arrival.window.dense()
        data, shape, lean = window.thin(), window.shape, rows.lean
        thin = tuple(data.shape[1:])
        if rows.shared:
            sums = lean[:, window.row] @ data.flatten(1)
        elif len(data) == branches * rows.count and window.ordered:
            sums = (lean[:, None] @ data.reshape(branches, rows.count, -1))[:, 0]
        else:
            scaled = data.flatten(1) * lean.flatten()[window.row][:, None]
            sums = scaled.new_zeros(branches, math.prod(thin)).index_add_(0, window.row // rows.count, scaled)
        return sums.reshape(branches, *thin).expand(branches, *shape)

    @cached_property
    def _flat_gain(self) -> Tensor:
        """(Q * U,) gains of all units of the layer, by key."""
        flat = [gain.flatten(1) for gain in self.gains]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        alone = len(joined) == 1 and len(self.image) == 1
        return (joined if alone else joined.index_select(0, self.image)).reshape(-1)

    # --- the search ------------------------------------------------------------------------------------------------

    def search(self, width: int, *, prune: bool) -> tuple[Chosen, Tensor, Tensor]:
        """The units to keep, what they send to every class, (Q, C, K), and their gains, (Q, K)."""
        ranked = self._ranked()
        more = width + width // 32 + FIRST_ROUND if prune else len(self._bounded)
        rounds: list[tuple[Tensor, ...]] = []  # units, margins, weights, gains of those that were looked at
        open_ = set(range(len(ranked)))
        seen = 0
        while open_:
            slots = [ranking.slots(seen, more) if q in open_ else NONE for q, ranking in enumerate(ranked)]
            if not any(len(some) for some in slots):
                break
            rounds.append(self._evaluated(slots))
            seen, more = more, more + more // 2 + FIRST_ROUND
            margins = rounds[0][1] if len(rounds) == 1 else torch.cat([some[1] for some in rounds], 1)
            for q, (first, last) in enumerate(_first_and_last(margins, width)):
                if q in open_ and not ranked[q].bound(seen) > _enough(first, last, self.threshold):
                    open_.remove(q)
        return self._chosen(rounds, width)

    def _ranked(self) -> list[Ranking]:
        """The candidates of every branch by falling bound."""
        bound = self._bounded
        if len(self.image) == 1:
            return [Ranking(bound, None)]
        keys = self._slots
        if keys is None:
            slots = torch.arange(len(bound)).reshape(len(self.image), -1)
            return [Ranking(*part) for part in zip(bound.reshape(len(self.image), -1), slots, strict=True)]
        branch = keys // self.offsets[-1]
        order = torch.argsort(branch, stable=True)
        sizes = torch.bincount(branch, minlength=len(self.image)).tolist()
        return [Ranking(bound[part], part) for part in order.split(sizes)]

    def _evaluated(self, slots: list[Tensor]) -> tuple[Tensor, ...]:
        """Units (Q, n), exact margins (Q, n), W (Q, n, C) and gains (Q, n) of some candidates of every branch."""
        count = max(len(some) for some in slots)
        filled = None
        if len(slots) == 1:
            table = slots[0][None]
        else:
            table = torch.zeros(len(slots), count, dtype=torch.long)
            filled = torch.zeros(len(slots), count, dtype=torch.bool)
            for q, own in enumerate(slots):
                table[q, : len(own)], filled[q, : len(own)] = own, True
        keys = self._keys(table)
        gain = self._flat_gain.take(keys)
        step = max(1, self.chunk // (len(slots) * self.classes))
        if count <= step:
            weights = self._weights_at(table, keys, filled)
            margins = margin(weights * gain[:, :, None], self.target)
        else:
            margins = torch.empty_like(gain)
            weights = torch.empty(len(slots), count, self.classes, dtype=gain.dtype)
            for start in range(0, count, step):
                part = slice(start, start + step)
                here = None if filled is None else filled[:, part]
                weights[:, part] = self._weights_at(table[:, part], keys[:, part], here)
                margins[:, part] = margin(weights[:, part] * gain[:, part, None], self.target)
        if filled is None:
            return keys, margins, weights, gain
        return keys % self.offsets[-1], margins.masked_fill_(~filled, -math.inf), weights, gain

    def _weights_at(self, slots: Tensor, keys: Tensor, filled: Tensor | None) -> Tensor:
        """(Q, n, C) what candidates send to every class: W of Algorithm 1, for these columns only.

        Args:
            filled: (Q, n) which entries are candidates; None for all.
        """
        branches, count = keys.shape
        units = keys if branches == 1 else keys % self.offsets[-1]
        jacobians = {id(a.rows): Jacobian(a.rows, branches, count) for a in self.arrivals}
        scanned = list(self._spots)
        for arrival in self.arrivals:
            if arrival.window.is_full:
                jacobians[id(arrival.rows)].full.append(self._whole_columns(arrival, units))
            elif arrival.summed and arrival.window.data.numel() > len(arrival.window.data) * count:
                jacobians[id(arrival.rows)].full.append(self._columns(arrival, units))
            elif arrival.summed:
                scanned.append(self._spots_of(arrival))
        if scanned:
            # The column of every slot; one beyond the last for those not asked for.
            columns = torch.full((len(self._bounded),), branches * count)
            numbers = torch.arange(branches * count)
            if filled is None:
                columns[slots.view(-1)] = numbers
            else:
                columns[slots[filled]] = numbers[filled.view(-1)]
            if self._slots is not None:
                columns = columns.take(self._owners)
                parts = columns.split([spots.key.numel() for spots in scanned]) if len(scanned) > 1 else (columns,)
            else:
                parts = tuple(columns.take(spots.key) for spots in scanned)
            for part, spots in zip(parts, scanned, strict=True):
                jacobians[id(spots.rows)].add(part.view(spots.key.shape), spots)
        total: Tensor | None = None
        for jacobian in jacobians.values():
            sent = jacobian.times_weights()
            total = sent if total is None else total + sent
        assert total is not None  # there are candidates, so something arrived
        return total

    def _whole_columns(self, arrival: Arrival, units: Tensor) -> Tensor:
        """(Q, K, n) what rows that arrived as whole maps hold at units (Q, n)."""
        window, rows = arrival.window, arrival.rows
        if not (rows.shared or len(window.data) == len(units) * rows.count) or not window.ordered:
            return self._columns(arrival, units)
        start, end = self.offsets[arrival.gate], self.offsets[arrival.gate + 1]
        data = window.thin()
        place = (units - start).clamp(0, end - start - 1)
        if data.shape != window.data.shape:
            sizes = data.shape[1:]
            coordinates = unravelled(place, window.shape)
            place = torch.zeros_like(place)
            for size, coordinate in zip(sizes, coordinates, strict=True):
                place = place * size if size == 1 else place * size + coordinate
        flat = data.reshape(len(data), -1)
        if rows.shared:
            columns = torch.stack([flat.index_select(1, some) for some in place.unbind()])
        else:
            flat = flat.reshape(len(units), rows.count, -1)
            columns = flat.gather(2, place[:, None].expand(-1, rows.count, -1))
        if len(self.gains) == 1:
            return columns
        here = ((units >= start) & (units < end))[:, None]
        return columns.masked_fill(~here, 0.0)  # not a product: a row may be infinite elsewhere

    def _chosen(self, rounds: list[tuple[Tensor, ...]], width: int) -> tuple[Chosen, Tensor, Tensor]:
        """The best of what was evaluated, with what was computed of it."""
        if not rounds:
            units = torch.zeros(len(self.image), 1, dtype=torch.long)
            gain = torch.zeros(units.shape, dtype=self.gains[0].dtype)
            weights = gain[:, :, None].expand(-1, -1, self.classes)
            rounds = [(units, torch.full_like(gain, -math.inf), weights, gain)]
        units, margins, weights, gain = (
            parts[0] if len(parts) == 1 else torch.cat(parts, 1) for parts in zip(*rounds, strict=True)
        )
        chosen, place = (few if units.numel() < FEW else best)(units, margins, width, self.threshold)
        if chosen.listed is None:
            chosen = chosen.trimmed()
            place = place[:, : chosen.units.shape[1]]
        if len(place) == 1:
            kept = weights.index_select(1, place[0])
        else:
            kept = weights.gather(1, place[:, :, None].expand(-1, -1, self.classes))
        return chosen, kept.transpose(1, 2), gain.gather(1, place)


class Jacobian:
    """Columns of what rows hold at n candidates of every branch, put together from parts."""

    def __init__(self, rows: Rows, branches: int, count: int) -> None:
        self.rows, self.branches, self.count = rows, branches, count
        self.full: list[Tensor] = []  # (Q, K, n)
        self.table: Tensor | None = None  # (Q * n + 1, K)
        self.entries: list[tuple[Tensor, Tensor, Tensor]] = []  # column, row, value

    def add(self, columns: Tensor, spots: Spots) -> None:
        """Spots by their columns (P, n); Q * n for what is not asked for."""
        total, K = self.branches * self.count, self.rows.count
        if total * K < SMALL:
            if self.table is None:
                self.table = torch.zeros(total + 1, K, dtype=spots.data.dtype)
            row = spots.row if self.branches == 1 else spots.row % K
            self.table.view(-1).index_add_(0, (columns * K + row[:, None]).view(-1), spots.data.reshape(-1))
            return
        live = ((columns < total) & (spots.data != 0)).view(-1).nonzero().view(-1)
        row = spots.row.take(live // columns.shape[1])
        self.entries.append((columns.view(-1).take(live), row, spots.data.reshape(-1).take(live)))

    def times_weights(self) -> Tensor:
        """(Q, n, C) what the columns send to every class."""
        weights, K = self.rows.weights, self.rows.count
        parts = [full.transpose(1, 2) for full in self.full]
        if self.table is not None:
            parts.append(self.table[:-1].view(self.branches, self.count, K))
        if self.entries:
            column, row, value = (
                some[0] if len(some) == 1 else torch.cat(some) for some in zip(*self.entries, strict=True)
            )
            if weights is not None and not parts and len(value) * SPARSE < self.branches * K * self.count:
                return self._sparse_times_weights(weights, column, row, value)
            dense = torch.zeros(self.branches * self.count, K, dtype=value.dtype)
            dense.view(-1).index_add_(0, column * K + row % K, value)
            parts.append(dense.view(self.branches, self.count, K))
        total = sum(parts[1:], parts[0])
        return total if weights is None else torch.bmm(total, weights.transpose(1, 2))

    def _sparse_times_weights(self, weights: Tensor, column: Tensor, row: Tensor, value: Tensor) -> Tensor:
        """The same with entries alone: for each column, the weighed sum of what its rows send."""
        order = column.int().argsort()  # half the bytes to sort
        first = torch.searchsorted(column.take(order), torch.arange(self.branches * self.count))
        table = weights.transpose(1, 2).reshape(self.branches * self.rows.count, -1)
        sums = F.embedding_bag(row.take(order), table, first, mode="sum", per_sample_weights=value.take(order))
        return sums.reshape(self.branches, self.count, -1)


class Ranking:
    """Candidates by falling bound, sorted only as far as they are asked for."""

    def __init__(self, bound: Tensor, slots: Tensor | None) -> None:
        self._bounds, self._slots = bound, slots
        self._known = 0  # how many are in order
        self._values: list[float] = []
        self._best = NONE

    def _know(self, count: int) -> None:
        if self._known < min(count, len(self._bounds)):
            self._known = min(count + min(count, 64), len(self._bounds))
            values, slots = self._bounds.topk(self._known)
            self._values = [value for value in values.tolist() if value > -math.inf]
            slots = slots[: len(self._values)]
            self._best = slots if self._slots is None else self._slots[slots]

    def slots(self, first: int, last: int) -> Tensor:
        """The candidates with the ranks first … last - 1."""
        self._know(last)
        return self._best[first:last]

    def bound(self, rank: int) -> float:
        """The bound of the candidate with this rank; -inf where there is none."""
        self._know(rank + 1)
        return self._values[rank] if rank < len(self._values) else -math.inf


def _first_and_last(margins: Tensor, width: int) -> list[tuple[float, float]]:
    """Of every branch, the highest margin (Q, n), and the lowest that is kept; -inf where there are fewer."""
    if margins.numel() < FEW:
        ranked = [sorted(own, reverse=True) for own in margins.tolist()]
        return [(own[0], own[width - 1] if len(own) >= width else -math.inf) for own in ranked]
    top = margins.topk(min(width, margins.shape[1]), sorted=False).values
    lasts = top.amin(1).tolist() if top.shape[1] == width else [-math.inf] * len(top)
    return list(zip(top.amax(1).tolist(), lasts, strict=True))


def _enough(best: float, last: float, threshold: float) -> float:
    """A bound up to which no further unit can change the choice; a hair lower, for rounding.

    Args:
        best, last: the highest margin so far, and the one that is the lowest to be kept if all is well.
    """
    enough = best if best <= threshold else max(last, threshold)
    return enough - 1e-4 * abs(enough) if enough > -math.inf else enough
