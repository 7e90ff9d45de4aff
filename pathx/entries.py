"""What arrived at one hidden layer, as a list of its live entries: for devices where shapes may depend on data.

Most of what windows cover is dead: inactive units, and places that no weight reaches. Here only the (row, unit, value)
entries that count are kept, once for all gates of the layer, and every unit has a slot of its own however many windows
overlap on it. The search then looks at numbers as it goes and stops as soon as nothing can change any more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pathx.arrivals import Arrival, Candidates, Rows
from pathx.selection import Chosen, margin
from pathx.window import unravelled


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of the Jacobian that are not zero.

    Args:
        row: (n,) number q * K + k of the row.
        slot: (n,) which of the candidates it is about.
        value: (n,) what the row holds there.
    """

    rows: Rows
    row: Tensor
    slot: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class LiveCandidates(Candidates):
    """Candidates by their live entries."""

    @cached_property
    def _whole(self) -> list[Arrival]:
        return [arrival for arrival in self.arrivals if arrival.window.is_full]

    @cached_property
    def _live(self) -> tuple[Tensor, list[Entries]]:
        """(n,) key of every candidate (branch * units + unit), and the entries of the windows."""
        size = len(self.image) * self.offsets[-1]
        found = [(a.rows, *self._entries(a)) for a in self.arrivals if not a.window.is_full]
        if not found:
            return torch.arange(size if self._whole else 0), []
        keys = found[0][1] if len(found) == 1 else torch.cat([key for _, key, _, _ in found])
        if self._whole:  # everyone is a candidate
            candidates, slots = torch.arange(size), keys
        else:  # whichever entry of a unit is written last owns it
            numbers = torch.arange(len(keys))
            owner = torch.empty(size, dtype=torch.long)
            owner[keys] = numbers
            first = (owner[keys] == numbers).nonzero().flatten()
            candidates = keys[first]
            owner[candidates] = numbers[: len(first)]
            slots = owner[keys]
        if all(rows is found[0][0] for rows, *_ in found):  # one source, though it may have landed on several gates
            row, value = (
                parts[0] if len(parts) == 1 else torch.cat(parts) for parts in list(zip(*found, strict=True))[2:]
            )
            return candidates, [Entries(found[0][0], row, slots, value)]
        pieces = slots.split([len(key) for _, key, _, _ in found])
        return candidates, [
            Entries(rows, row, slot, value) for (rows, _, row, value), slot in zip(found, pieces, strict=True)
        ]

    def _entries(self, arrival: Arrival) -> tuple[Tensor, Tensor, Tensor]:
        """Key, row and value of the entries of a window that are not zero at an active unit."""
        if self._owned(arrival):
            return self._owned_entries(arrival)
        window, rows = arrival.window.cleaned(), arrival.rows
        gain, start, branches = self.gains[arrival.gate], self.offsets[arrival.gate], len(self.image)
        size = max(1, math.prod(window.extent))
        data, image, row = window.data.reshape(-1, size), window.image, window.row
        place = window.index().expand_as(window.data).reshape(-1, size)
        if rows.shared and branches > 1:
            data, place = data.repeat(branches, 1), place.repeat(branches, 1)
            image = self.image.repeat_interleave(len(row))
            row = (row + torch.arange(branches)[:, None] * rows.count).flatten()
        elif rows.shared:
            image = self.image.expand(len(row))
        here = place if len(gain) == 1 else place + (image * (self.offsets[arrival.gate + 1] - start))[:, None]
        live = (data * gain.reshape(-1).take(here)).view(-1).nonzero().flatten()
        row = row[live // size]
        key = place.reshape(-1)[live]
        key = key + start if start else key
        if branches > 1:
            key = key + row // rows.count * self.offsets[-1]
        return key, row, data.reshape(-1)[live]

    def _owned(self, arrival: Arrival) -> bool:
        """Whether every row is a class with a channel of its own, all of it, and nothing else arrived."""
        window, rows = arrival.window, arrival.rows
        if len(self.arrivals) > 1 or not rows.shared or rows.weights is not None or window.extent[:1] != (1,):
            return False
        channel = window.origin[0]
        others = all(window.covers(dim) for dim in range(1, len(window.shape)))
        return others and isinstance(channel, Tensor) and torch.equal(channel, torch.arange(window.shape[0]))

    def _owned_entries(self, arrival: Arrival) -> tuple[Tensor, Tensor, Tensor]:
        """The same where units have one row each: a bound is then known at once, and those below 0 seldom matter."""
        data = arrival.window.data.reshape(arrival.rows.count, -1)  # (channels, places)
        gain = (
            self.gains[arrival.gate].flatten(2)
            if data.shape[1] > 1
            else self.gains[arrival.gate].flatten(1)[:, :, None]
        )
        sent = data * gain.index_select(0, self.image)
        above = sent * self._lean(arrival.rows)[:, :, None] > 0
        enough = self.threshold >= 0 and bool(above.flatten(1).any(1).all())
        branch, row, place = (above if enough else sent != 0).nonzero(as_tuple=True)
        unit = row * data.shape[1] + place
        return unit + branch * self.offsets[-1], row + branch * arrival.rows.count, data.reshape(-1)[unit]

    @cached_property
    def _bounded(self) -> Tensor:
        """(n,) an upper bound of every candidate's margin.

        By Jensen's inequality log mean exp(z_c) >= mean z_c, so the margin is at most z_t - mean of the others, which
        takes one weighted sum of the rows instead of one per class.
        """
        keys, entries = self._live
        total = torch.zeros(len(keys), dtype=self.gains[0].dtype)
        for some in entries:
            total.index_add_(0, some.slot, some.value * self._lean(some.rows).reshape(-1)[some.row])
        gain = self._gain_at(keys)
        if self._whole:
            table = total.reshape(len(self.image), -1)
            for arrival in self._whole:
                start, end = self.offsets[arrival.gate], self.offsets[arrival.gate + 1]
                table[:, start:end] += self._full_sums(arrival, self._lean(arrival.rows))
            return (total * gain).masked_fill_(gain == 0, -math.inf)
        return total * gain

    def _lean(self, rows: Rows) -> Tensor:
        """(Q, K) how much more a row sends to the target than to the mean of the other classes."""
        others = self.classes - 1
        if rows.weights is None:
            lean = torch.full(
                (len(self.target), rows.count), -1 / others, dtype=self.gains[0].dtype, device=self.image.device
            )
            return lean.scatter_(1, self.target[:, None], 1.0)
        at_target = rows.weights.gather(1, self.target[:, None, None].expand(-1, 1, rows.count))[:, 0]
        return at_target - (rows.weights.sum(1) - at_target) / others

    def _full_sums(self, arrival: Arrival, lean: Tensor) -> Tensor:
        """(Q, units of the gate) the rows that arrived, as whole maps, weighed by (Q, K) and summed for every branch."""
        branches, rows, window = len(self.image), arrival.rows, arrival.window.dense()
        data, shape = window.thin(), window.shape
        thin = tuple(data.shape[1:])
        if rows.shared:
            sums = lean[:, window.row] @ data.flatten(1)
        elif len(data) == branches * rows.count and window.ordered:
            sums = (lean[:, None] @ data.reshape(branches, rows.count, -1))[:, 0]
        else:
            scaled = data.flatten(1) * lean.flatten()[window.row][:, None]
            sums = scaled.new_zeros(branches, math.prod(thin)).index_add_(0, window.row // rows.count, scaled)
        return sums.reshape(branches, *thin).expand(branches, *shape).reshape(branches, -1)

    @cached_property
    def _flat_gain(self) -> Tensor:
        """(Q * U,) gains of all units of the layer, by key."""
        flat = [gain.flatten(1) for gain in self.gains]
        joined = flat[0] if len(flat) == 1 else torch.cat(flat, 1)
        alone = len(joined) == 1 and len(self.image) == 1
        return (joined if alone else joined.index_select(0, self.image)).reshape(-1)

    def _gain_at(self, keys: Tensor) -> Tensor:
        """(n,) gains of candidates by their keys."""
        return self._flat_gain.take(keys)

    # --- the search ------------------------------------------------------------------------------------------------

    def search(self, width: int, *, prune: bool) -> tuple[Chosen, Tensor, Tensor]:
        """The units to keep, what they send to every class, (Q, C, K), and their gains, (Q, K)."""
        keys, _ = self._live
        ranked = self._ranked()
        branches = len(ranked)
        first = width + width // 8 + 32 if prune else len(keys)
        tables: list[tuple[Tensor, Tensor]] = []  # what was computed in each round
        known: list[list[tuple[float, int, int]]] = [
            [] for _ in range(branches)
        ]  # (-margin, unit, place in the tables)
        places = 0
        open_ = list(range(branches))
        seen = 0
        while open_:
            more = first if not seen else seen + seen // 2
            slots = [ranked[q].slots(seen, more) if q in open_ else keys[:0] for q in range(branches)]
            count = max(len(part) for part in slots)
            if count == 0:
                break
            weights, gain, margins = self._evaluated(slots, count)
            tables.append((weights, gain))
            for q in open_:
                units = (keys[slots[q]] % self.offsets[-1]).tolist()
                values = margins[q, : len(units)].tolist()
                known[q].extend(
                    (-value, unit, places + n)
                    for n, (value, unit) in enumerate(zip(values, units, strict=True))
                    if value > -math.inf
                )
                known[q].sort()
            places, seen = places + count, more
            open_ = [q for q in open_ if ranked[q].bound(seen) > _enough(known[q], width, self.threshold)]
        return self._chosen(known, tables, width)

    def _ranked(self) -> list[Ranking]:
        """The candidates of every branch by falling bound."""
        keys, _ = self._live
        bound = self._bounded
        if len(self.image) == 1:
            return [Ranking(bound, None)]
        branch = keys // self.offsets[-1]
        order = torch.argsort(branch, stable=True)
        sizes = torch.bincount(branch, minlength=len(self.image)).tolist()
        return [Ranking(bound[part], part) for part in order.split(sizes)]

    def _evaluated(self, slots: list[Tensor], count: int) -> tuple[Tensor, Tensor, Tensor]:
        """W (Q, C, n), gains (Q, n) and exact margins (Q, n) of some candidates of every branch."""
        keys, _ = self._live
        if len(slots) == 1:
            table = slots[0][None]
            some = keys[table]
            gain = self._gain_at(some)
            filled = None
        else:
            table = torch.full((len(slots), count), -1)
            for q, own in enumerate(slots):
                table[q, : len(own)] = own
            filled = table >= 0
            some = keys[table.clamp(min=0)]
            gain = self._gain_at(some)
        step = max(1, self.chunk // (len(slots) * self.classes))
        if count <= step:
            weights = self._weights_at(table, some)
            z = weights * gain[:, None]
            margins = margin(z, self.target).masked_fill((z == 0).all(1), -math.inf)
        else:
            margins = torch.empty(gain.shape, dtype=gain.dtype)
            weights = torch.empty(len(slots), self.classes, count, dtype=gain.dtype)
            for start in range(0, count, step):
                part = slice(start, start + step)
                weights[:, :, part] = self._weights_at(table[:, part], some[:, part])
                z = weights[:, :, part] * gain[:, None, part]
                margins[:, part] = margin(z, self.target).masked_fill((z == 0).all(1), -math.inf)
        return weights, gain, margins if filled is None else margins.masked_fill(~filled, -math.inf)

    def _weights_at(self, slots: Tensor, keys: Tensor) -> Tensor:
        """(Q, C, n) what candidates send to every class: W of Algorithm 1, for these columns only."""
        branches, count = slots.shape
        columns: dict[int, tuple[Rows, Tensor]] = {}
        for arrival in self._whole:
            units = keys % self.offsets[-1] if branches > 1 else keys
            _add(columns, arrival.rows, self._whole_columns(arrival, units))
        everyone, entries = self._live
        if entries:
            at = torch.full((len(everyone) + 1,), -1)  # the column of a candidate; the last place takes the fillings
            at[slots.reshape(-1)] = torch.arange(count) if branches == 1 else torch.arange(count).repeat(branches)
            if branches > 1:
                at[-1] = -1
        for some in entries:
            place = at[some.slot]
            live = (place >= 0).nonzero().flatten()
            jacobian = torch.zeros(branches * some.rows.count, count, dtype=self.gains[0].dtype)
            jacobian.view(-1).index_add_(0, some.row[live] * count + place[live], some.value[live])
            _add(columns, some.rows, jacobian.reshape(branches, some.rows.count, count))
        total: Tensor | None = None
        for rows, jacobian in columns.values():
            sent = jacobian if rows.weights is None else torch.bmm(rows.weights, jacobian)
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

    def _chosen(
        self,
        known: list[list[tuple[float, int, int]]],
        tables: list[tuple[Tensor, Tensor]],
        width: int,
    ) -> tuple[Chosen, Tensor, Tensor]:
        """The best of what was evaluated, with what was computed of it."""
        threshold = self.threshold
        kept = [[entry for entry in some[:width] if -entry[0] > threshold] or some[:1] for some in known]
        longest = max(1, *(len(some) for some in kept))
        filled = [some + [(math.inf, 0, 0)] * (longest - len(some)) for some in kept]
        dtype = self.gains[0].dtype
        chosen = Chosen(
            units=torch.tensor([[unit for _, unit, _ in some] for some in filled]),
            margin=torch.tensor([[-value for value, _, _ in some] for some in filled], dtype=dtype),
            valid=torch.tensor([[value < math.inf for value, _, _ in some] for some in filled]),
            below_alpha=torch.tensor([not some or -some[0][0] <= threshold for some in known]),
            listed=[[unit for _, unit, _ in some] for some in kept],
        )
        if not tables:
            nothing = torch.zeros(len(known), self.classes, longest, dtype=dtype)
            return chosen, nothing, nothing[:, 0]
        weights = tables[0][0] if len(tables) == 1 else torch.cat([table for table, _ in tables], 2)
        gain = tables[0][1] if len(tables) == 1 else torch.cat([table for _, table in tables], 1)
        place = torch.tensor([[place for _, _, place in some] for some in filled])
        if len(known) == 1:
            return chosen, weights.index_select(2, place[0]), gain.index_select(1, place[0])
        columns = place[:, None].expand(-1, self.classes, -1)
        return chosen, weights.gather(2, columns), gain.gather(1, place)


class Ranking:
    """Candidates by falling bound, sorted only as far as they are asked for."""

    def __init__(self, bound: Tensor, slots: Tensor | None) -> None:
        self._bounds, self._slots = bound, slots
        self._sorted: tuple[Tensor, Tensor] | None = None

    def _best(self, count: int) -> tuple[Tensor, Tensor]:
        if self._sorted is None or len(self._sorted[0]) < min(count, len(self._bounds)):
            best = self._bounds.topk(min(2 * count, len(self._bounds)))
            self._sorted = (best.values, best.indices if self._slots is None else self._slots[best.indices])
        return self._sorted

    def slots(self, first: int, last: int) -> Tensor:
        """The candidates with the ranks first … last - 1."""
        return self._best(last)[1][first:last]

    def bound(self, rank: int) -> float:
        """The bound of the candidate with this rank; -inf where there is none."""
        return float(self._best(rank + 1)[0][rank]) if rank < len(self._bounds) else -math.inf


def _add(columns: dict[int, tuple[Rows, Tensor]], rows: Rows, jacobian: Tensor) -> None:
    known = columns.get(id(rows))
    columns[id(rows)] = (rows, jacobian if known is None else known[1] + jacobian)


def _enough(known: list[tuple[float, int, int]], width: int, threshold: float) -> float:
    """A bound up to which no further unit can change the choice; a hair lower, for rounding."""
    if not known:
        return -math.inf
    best, last = -known[0][0], -known[min(width, len(known)) - 1][0]
    if best <= threshold:
        enough = best
    elif len(known) >= width and last > threshold:
        enough = last
    else:
        enough = threshold
    return enough - 1e-4 * abs(enough)
