"""What arrived at one hidden layer, as a list of its live entries: for devices where shapes may depend on data.

Most of what windows cover is dead: inactive units, and places that no weight reaches. Here only the (row, unit, value)
entries that count are kept, once for all gates of the layer, and every unit has a slot of its own however many windows
overlap on it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from pathx.arrivals import Arrival, Candidates


@dataclass(frozen=True, eq=False)
class Entries:
    """Entries of the Jacobian, sorted by nothing.

    Args:
        row: (n,) number q * K + k of the row.
        slot: (n,) which of the candidates it is about.
        value: (n,) what the row holds there.
    """

    row: Tensor
    slot: Tensor
    value: Tensor


@dataclass(frozen=True, eq=False)
class LiveCandidates(Candidates):
    """Candidates by their live entries."""

    @cached_property
    def _parts(self) -> tuple[list[Arrival], list[Arrival]]:
        """Arrivals as whole maps, and as windows."""
        whole = [arrival for arrival in self.arrivals if arrival.window.is_full]
        return whole, [arrival for arrival in self.arrivals if not arrival.window.is_full]

    @cached_property
    def _live(self) -> tuple[Tensor, list[tuple[Arrival, Entries]]]:
        """(n,) key of every candidate (branch * units + unit), and the entries of the windows."""
        whole, windows = self._parts
        units, branches = self.offsets[-1], len(self.image)
        found = [self._entries(arrival) for arrival in windows]
        keys = torch.cat([key for key, _, _ in found]) if found else torch.zeros(0, dtype=torch.long)
        if whole:  # everyone is a candidate
            candidates, slots = torch.arange(branches * units), keys
        else:  # whichever entry of a unit is written last owns it
            numbers = torch.arange(len(keys))
            owner = torch.empty(branches * units, dtype=torch.long)
            owner[keys] = numbers
            owners = owner[keys]
            first = (owners == numbers).nonzero().flatten()
            candidates = keys[first]
            owner[candidates] = torch.arange(len(first))
            slots = owner[keys]
        entries, start = [], 0
        for arrival, (key, row, value) in zip(windows, found, strict=True):
            entries.append((arrival, Entries(row, slots[start : start + len(key)], value)))
            start += len(key)
        return candidates, entries

    def _entries(self, arrival: Arrival) -> tuple[Tensor, Tensor, Tensor]:
        """Key, row and value of the entries of a window that are not zero at an active unit."""
        window, rows = arrival.window.cleaned(), arrival.rows
        gain, units = self.gains[arrival.gate], self.offsets[-1]
        index = window.index()
        size = window.data[0].numel() if len(window.data) else 1
        if rows.shared:
            image, row = self.image.repeat_interleave(len(window.data)), window.row.repeat(len(self.image))
            branch = torch.arange(len(self.image)).repeat_interleave(len(window.data))
            row = row + branch * rows.count
            data = window.data.reshape(-1, size).repeat(len(self.image), 1)
            place = index.expand_as(window.data).reshape(-1, size).repeat(len(self.image), 1)
        else:
            image, row, branch = window.image, window.row, window.row // rows.count
            data = window.data.reshape(-1, size)
            place = index.expand_as(window.data).reshape(-1, size)
        here = place if len(gain) == 1 else place + (image * (self.offsets[arrival.gate + 1] - self.offsets[arrival.gate]))[:, None]
        live = (data * gain.reshape(-1).take(here)).reshape(-1).nonzero().flatten()
        number = live // size
        key = place.reshape(-1)[live] + self.offsets[arrival.gate]
        if len(self.image) > 1:
            key = key + (branch * units)[number]
        return key, row[number], data.reshape(-1)[live]

    # --- ranking ---------------------------------------------------------------------------------------------------

    def bounds(self) -> tuple[Tensor, Tensor]:
        """Every candidate, (Q, n), and an upper bound of its margin, -inf where there is none: see `Candidates.bounds`."""
        keys, entries = self._live
        whole, _ = self._parts
        branches, units = len(self.image), self.offsets[-1]
        lean = {id(arrival.rows): self._lean(arrival.rows) for arrival in self.arrivals}
        total = torch.zeros(len(keys), dtype=self.gains[0].dtype)
        for arrival, some in entries:
            total.index_add_(0, some.slot, some.value * lean[id(arrival.rows)].reshape(-1)[some.row])
        if whole:
            total = total.reshape(branches, units)
            for arrival in whole:
                start, end = self.offsets[arrival.gate], self.offsets[arrival.gate + 1]
                total[:, start:end] += self._full_sums(arrival, lean[id(arrival.rows)])
            gain = self._all_gains
            return torch.arange(units).expand(branches, -1), (total * gain).masked_fill(gain == 0, -math.inf)
        if branches == 1:
            return keys[None], total[None] * self.gain(keys[None])
        branch = keys // units
        order = torch.argsort(branch, stable=True)
        sizes = torch.bincount(branch, minlength=branches)
        place = torch.arange(len(keys)) - (sizes.cumsum(0) - sizes)[branch[order]]
        table = torch.full((branches, int(sizes.max()) if len(keys) else 0), -1)
        bound = torch.full(table.shape, -math.inf, dtype=total.dtype)
        table[branch[order], place] = (keys % units)[order]
        bound[branch[order], place] = total[order]
        known = bound > -math.inf
        return table, torch.where(known, bound * self.gain(table), bound)

    @cached_property
    def _all_gains(self) -> Tensor:
        """(Q, U) gains of all units of the layer."""
        flat = [gain.flatten(1) for gain in self.gains]
        return (flat[0] if len(flat) == 1 else torch.cat(flat, 1))[self.image]

    def _jacobian(self, units: Tensor) -> dict[int, tuple[Arrival, Tensor]]:
        """(Q, K, n) what each source's rows hold at units (Q, n), by source."""
        keys, entries = self._live
        branches, count = units.shape
        result: dict[int, tuple[Arrival, Tensor]] = {}
        for arrival in self._parts[0]:
            columns = self._columns(arrival, units)
            known = result.get(id(arrival.rows))
            result[id(arrival.rows)] = (arrival, columns if known is None else known[1] + columns)
        if not entries:
            return result
        # Where in its branch's list of units a candidate is asked for; the list may be filled up with -1.
        column = torch.empty(branches * self.offsets[-1], dtype=torch.long)
        column[keys] = -1
        branch, place = (units >= 0).nonzero(as_tuple=True)
        column[branch * self.offsets[-1] + units[branch, place]] = place
        at = column[keys]  # (slots,)
        for arrival, some in entries:
            rows = arrival.rows
            place = at[some.slot]
            live = (place >= 0).nonzero().flatten()
            flat = some.row[live] * count + place[live]
            columns = torch.zeros(branches * rows.count * count, dtype=self.gains[0].dtype)
            columns.index_add_(0, flat, some.value[live])
            columns = columns.reshape(branches, rows.count, count)
            known = result.get(id(rows))
            result[id(rows)] = (arrival, columns if known is None else known[1] + columns)
        return result

    def weights(self, units: Tensor) -> Tensor:
        """(Q, C, n) what the units' outputs send to every class."""
        if self.class_maps:
            return super().weights(units)
        total: Tensor | None = None
        for arrival, columns in self._jacobian(units).values():
            sent = columns if arrival.rows.weights is None else arrival.rows.weights @ columns
            total = sent if total is None else total + sent
        if total is None:
            return torch.zeros(len(units), self.classes, units.shape[1], dtype=self.gains[0].dtype)
        return total
