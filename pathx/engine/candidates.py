"""What arrived at one hidden layer: sums over all of its units, and single columns where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from pathx.engine.entries import Entries
from pathx.engine.network import Gate
from pathx.engine.rows import Landed, Rows
from pathx.engine.window import Corners, Window, counted, replaced, spaced, times, unravelled

SMALL = 1 << 16  # tables of fewer numbers are not worth half as many bytes for their indices
FEW_BOXES = 1.0  # windows are summed up while they hold less than so many whole maps; otherwise the sum is taken down


@dataclass(frozen=True, eq=False)
class Touched:
    """The units that lie under windows, (Q, K, n) for every row; where windows overlap, a unit is there several times.

    Args:
        units: their numbers in the layer.
        gain: what they pass on.
        held: what the rows hold there.
        favour: what is sent more to the target than to the mean of the other classes, to be added up for every unit.
    """

    units: Tensor
    gain: Tensor
    held: Tensor
    favour: Tensor


@dataclass(frozen=True, eq=False)
class Arrival:
    """Rows where they arrive at the gates of a layer. Units are numbered through the gates in order.

    Args:
        layer: n.
        most: how many numbers an intermediate result may have.
        windows: keep rows as windows; otherwise as whole maps.
        put: as in `Strategy`.
        sparse: the part of the columns that may be other than 0 for them to be written down as entries; None where they
            are too few to be worth it, or where no shape may depend on numbers.
    """

    rows: Rows
    layer: int
    gates: tuple[Gate, ...]
    most: int
    windows: bool = True
    put: float = 1.0
    sparse: float | None = None

    @cached_property
    def branches(self) -> int:
        return len(self.rows.image)

    @cached_property
    def units(self) -> int:
        return sum(gate.units for gate in self.gates)

    # --- how the rows come down --------------------------------------------------------------------------------------

    @cached_property
    def _together(self) -> int:
        """How many rows of every branch are taken down at once."""
        sets, count = self.rows.shape
        if sets * count * self.units <= self.most:
            return count
        landed = self.rows.down(1 << self.layer, slice(0, 1), windows=self.windows)  # to see how large windows become
        footprint = max((sum(w.data.numel() for w in windows) for windows in landed.values()), default=1)
        return max(1, min(count, self.most // max(1, footprint)))

    @cached_property
    def _landed(self) -> Landed | None:
        """All rows; None where they are too many to have at once."""
        if self._together < self.rows.count:
            return None
        return self.rows.down(1 << self.layer, windows=self.windows, without_empty=self.sparse is not None)

    def _parts(self) -> Iterator[tuple[int, Landed]]:
        """The rows in turns: how many of every branch, and where they landed."""
        if self._landed is not None:
            yield self.rows.count, self._landed
            return
        for start in range(0, self.rows.count, self._together):
            stop = min(start + self._together, self.rows.count)
            yield stop - start, self.rows.down(1 << self.layer, slice(start, stop), windows=self.windows)

    # --- sums over all units -----------------------------------------------------------------------------------------

    def favour(self) -> Tensor:
        """(Q, units) how much more every unit sends to the target than to the mean of the other classes."""
        rows = self.rows
        if rows.layer is not None and self._landed is not None:
            boxes = sum(window.data.numel() for windows in self._landed.values() for window in windows)
            if boxes <= FEW_BOXES * self.branches * self.units:
                return self._over_rows(self._landed, rows.count, rows.favour)
        return self.weighed(rows.favour[:, None])[:, 0]

    def touched(self, few: float) -> Touched | None:
        """What lies under windows; None where that is no small part of the layer, as all may be looked at as well then."""
        rows = self.rows
        if rows.layer is None or rows.shared or self._landed is None:
            return None
        every = [window for gate in self.gates for window in self._landed.get(gate.output, ())]
        if not every or any(not window.ordered or len(window.data) != rows.favour.numel() for window in every):
            return None
        if sum(window.data.numel() for window in every) > few * self.branches * self.units:
            return None
        units, gains, held, offset = [], [], [], 0
        for gate in self.gates:
            windows = self._landed.get(gate.output, [])
            if windows:
                own = joined([self._by_row(window, window.index()) for window in windows], 2)
                units.append(own + offset if offset else own)
                gains.append(self._gains(gate, own))
                held += [self._by_row(window, window.cleaned().data) for window in windows]
            offset += gate.units
        data = joined(held, 2)
        return Touched(joined(units, 2), joined(gains, 2), data, data * rows.favour[:, :, None])

    def _by_row(self, window: Window, values: Tensor) -> Tensor:
        """(Q, K, elements) values for every element of a window that has one cotangent for each row."""
        whole = values if values is window.data else values.expand_as(window.data)
        return whole.reshape(*self.rows.shape, -1)

    def _gains(self, gate: Gate, units: Tensor) -> Tensor:
        """(Q, K, n) what units of a gate pass on."""
        gain = self.rows.frozen.slopes(gate).gain
        place = units if len(gain) == 1 else units + (self.rows.image * gate.units)[:, None, None]
        return gain.reshape(-1).index_select(0, place.reshape(-1)).reshape(units.shape)

    def weighed(self, factors: Tensor) -> Tensor:
        """(Q, c, units) what sums of rows hold: the rows of every branch times (Q, c, K)."""
        branches, count, _ = factors.shape
        landed = self.rows.weighed(factors, 1 << self.layer)
        maps = []
        for gate in self.gates:
            own = [window.data.reshape(branches, count, -1) for window in landed.get(gate.output, ())]
            maps.append(sum(own[1:], own[0]) if own else factors.new_zeros(branches, count, gate.units))
        return joined(maps, 2)

    def reached(self) -> Tensor:
        """(Q, units) whether anything arrives at a unit at all."""
        found = torch.zeros(self.branches, self.units, dtype=torch.bool, device=self.rows.image.device)
        for count, landed in self._parts():
            found = found | (self._over_rows(landed, count, None) != 0)
        return found

    def _over_rows(self, landed: Landed, count: int, factors: Tensor | None) -> Tensor:
        """(Q, units) windows summed over the `count` rows of each branch: times (Q, count), or by absolute value."""
        parts = []
        for gate in self.gates:
            own = [self._over_rows_of(window, count, factors) for window in landed.get(gate.output, ())]
            total = sum(own[1:], own[0]) if own else self.rows.favour.new_zeros(self.branches, *gate.shape)
            parts.append(total.flatten(1))
        return joined(parts, 1)

    def _over_rows_of(self, window: Window, count: int, factors: Tensor | None) -> Tensor:
        """(Q, *shape) the same of one window."""
        if self.rows.shared:
            one = _scattered(window, window.data.abs(), torch.zeros_like(window.row), 1)
            return one.expand(self.branches, *window.shape)
        if factors is None:
            data = window.data.abs()
        else:
            flat = factors.reshape(-1)
            by_row = flat if window.ordered and len(flat) == len(window.data) else flat.index_select(0, window.row)
            data = window.data * by_row.reshape(-1, *(1,) * len(window.shape))
        return _scattered(window, data, window.row // count if self.branches > 1 else window.row, self.branches)

    # --- columns -----------------------------------------------------------------------------------------------------

    def columns(self, units: Tensor) -> Tensor | Entries:
        """(Q, K, n) what the rows of each branch hold at its units (Q, n), which are all different."""
        if self.sparse is None:
            return self._table(units)
        found, shape = self._entries(units), (self.branches, self.rows.count, units.shape[1])
        if found and sum(len(row) for row, _, _ in found) < self.sparse * prod(shape):
            return Entries.by_column(shape, found)
        every = self if len(self.rows.starts) == 1 else replace(self, sparse=None)  # with the rows that were left out
        return self.written(every._table(units)) if found is None else every._table(units)

    def _table(self, units: Tensor) -> Tensor:
        return joined([self._columns(landed, count, units) for count, landed in self._parts()], 1)

    def written(self, columns: Tensor) -> Tensor | Entries:
        """Columns as entries, where that is worth it."""
        return columns if self.sparse is None else Entries.of(columns, self.sparse)

    def _columns(self, landed: Landed, count: int, units: Tensor) -> Tensor:
        total: Tensor | None = None
        table: Tensor | None = None
        offset = 0
        for gate in self.gates:
            windows = [window for window in landed.get(gate.output, ()) if window.data.numel()]
            if windows:
                inside, here = self._inside(gate, units, offset)
                if all(self._puts(window, count, units.shape[1]) for window in windows):
                    if table is None:  # with a last column for units that are not asked for
                        table = windows[0].data.new_zeros(self.branches, count, units.shape[1] + 1)
                    self._put(windows, table, gate, inside, here)
                else:
                    places = unravelled(inside, gate.shape)
                    for window in windows:
                        part = self._read(window, count, places, here)
                        total = part if total is None else total + part
            offset += gate.units
        if table is not None:
            total = table[:, :, :-1] if total is None else total + table[:, :, :-1]
        return self.rows.favour.new_zeros(self.branches, count, units.shape[1]) if total is None else total

    def _puts(self, window: Window, count: int, wanted: int) -> bool:
        """Whether the boxes of a window hold so little that all of it is looked up, rather than all units in every box."""
        whole = window.ordered and len(window.data) == self.branches * count
        few = window.data.numel() <= SMALL // 2 or prod(window.extent) <= self.put * wanted
        return whole and not self.rows.shared and few and self.put > 0

    def _entries(self, units: Tensor) -> list[tuple[Tensor, Tensor, Tensor]] | None:
        """Rows, columns and values of what windows hold at units; None where too much would have to be looked through."""
        if self._landed is None or self.rows.shared:
            return None
        found, offset = [], 0
        for gate in self.gates:
            windows = [window for window in self._landed.get(gate.output, ()) if window.data.numel()]
            if any(prod(window.extent) > self.put * units.shape[1] for window in windows):
                return None
            if windows:
                column = self._asked(gate, *self._inside(gate, units, offset))
                found += [self._found(window, column, gate, units.shape[1]) for window in windows]
            offset += gate.units
        return found

    def _found(self, window: Window, column: Tensor, gate: Gate, wanted: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, columns and values of what a window holds at the units that are asked for."""
        number, data = self._numbers(window, self.rows.count, column, gate), window.cleaned().data
        number = number.expand_as(data).reshape(-1)
        place = (number < wanted).nonzero().squeeze(1)
        row = window.row.index_select(0, place // prod(window.extent))
        own = number.index_select(0, place)
        return row, own + row // self.rows.count * wanted, data.reshape(-1).index_select(0, place)

    def _inside(self, gate: Gate, units: Tensor, offset: int) -> tuple[Tensor, Tensor | None]:
        """(Q, n) the units' numbers in a gate, never out of range, and which of them are on it at all; None for all."""
        local = units - offset if offset else units
        inside = local if len(self.gates) == 1 else local.clamp(0, gate.units - 1)
        return inside, None if inside is local else inside == local

    def _asked(self, gate: Gate, units: Tensor, here: Tensor | None) -> Tensor:
        """(Q * units + 1,) for every unit of a gate its place among those (Q, n) that are asked for, or n."""
        branches, wanted = units.shape
        place = units if branches == 1 else units + spaced(branches, gate.units, 0, units.device)[:, None]
        if here is not None:
            place = place.masked_fill(~here, branches * gate.units)
        column = torch.full((branches * gate.units + 1,), wanted, device=units.device)  # for those not asked for
        column.index_copy_(0, place.reshape(-1), counted(wanted, units.device).expand_as(units).reshape(-1))
        return column

    def _numbers(self, window: Window, count: int, column: Tensor, gate: Gate) -> Tensor:
        """For each element of a window, broadcastable to its data, the place of its unit as `_asked` has it.

        Args:
            count: how many rows of each branch there are.
        """
        index = window.index()
        if self.branches > 1:
            first = spaced(self.branches, gate.units, 0, index.device)
            whole = window.ordered and len(window.data) == self.branches * count
            own = first[:, None].expand(-1, count) if whole else first.index_select(0, window.row // count)
            index = index + own.reshape(-1, *(1,) * len(window.shape))
        return column.index_select(0, index.reshape(-1)).reshape(index.shape)

    def _put(self, windows: Sequence[Window], table: Tensor, gate: Gate, units: Tensor, here: Tensor | None) -> None:
        """Add what windows hold at units (Q, n) of a gate: each of their elements is put where its unit is.

        Args:
            table: (Q, rows, n + 1) that it is added to.
            here: (Q, n) which units are on this gate at all; None for all.
        """
        column, (branches, count, _) = self._asked(gate, units, here), table.shape
        for window in windows:
            number, data = self._numbers(window, count, column, gate), window.cleaned().data
            table.scatter_add_(
                2, number.expand_as(data).reshape(branches, count, -1), data.reshape(branches, count, -1)
            )

    def _read(self, window: Window, count: int, places: tuple[Tensor, ...], here: Tensor | None) -> Tensor:
        """(Q, count, n) what a window holds at places, (Q, n) for each dimension; 0 outside of the boxes.

        Args:
            here: (Q, n) which places are on this gate at all; None for all.
        """
        data = window.data
        whole = window.ordered and len(data) == self.rows.shape[0] * count  # a cotangent for every row
        sets, size = (1, len(data)) if self.rows.shared else (self.branches, count) if whole else (len(data), 1)
        if not (self.rows.shared or whole):
            branch = window.row // count
            places = tuple(place.index_select(0, branch) for place in places)
            here = None if here is None else here.index_select(0, branch)

        # Where a row's box would start if it began at the map's corner, and how far from there the place is.
        corner, before = window.corner(data.stride()[1:])
        start = spaced(len(data), data.stride(0), -before, data.device)
        start = start if corner is None else start - corner
        step: Tensor | None = None
        outside = None if here is None else ~here[:, None]
        for dim in reversed(range(len(places))):  # the last often has a stride of 1
            length, stride, origin, place = window.extent[dim], data.stride(dim + 1), window.origin[dim], places[dim]
            if stride:
                step = times(place, stride) if step is None else torch.add(step, place, alpha=stride)
            if not window.covers(dim):
                first = origin if isinstance(origin, int) else origin.numbers.reshape(sets, size, 1)
                beyond = (place[:, None] < first) | (place[:, None] >= first + length)
                outside = beyond if outside is None else outside | beyond
        step = torch.zeros_like(places[0]) if step is None else step
        if sets * size * step.shape[1] > SMALL:
            start, step = start.int(), step.int()
        index = start.reshape(sets, size, 1) + step[:, None]
        span = 1 + sum((length - 1) * stride for length, stride in zip(data.shape, data.stride(), strict=True))
        flat = data.as_strided((span,), (1,), data.storage_offset())
        if outside is not None:
            index.masked_fill_(outside, 0)
        values = flat.index_select(0, index.reshape(-1)).reshape(index.shape)
        if outside is not None:
            values.masked_fill_(outside, 0.0)  # not a product: what is elsewhere may be infinite
        if whole or (self.rows.shared and window.ordered and len(data) == count):
            return values
        if self.rows.shared:
            return values.new_zeros(self.branches, count, values.shape[2]).index_add_(1, window.row, values)
        table = values.new_zeros(self.branches * count, values.shape[2]).index_add_(0, window.row, values[:, 0])
        return table.reshape(self.branches, count, -1)


def joined(parts: Sequence[Tensor], dim: int) -> Tensor:
    """Tensors one after the other; without a launch where there is one alone."""
    return parts[0] if len(parts) == 1 else torch.cat(list(parts), dim)


def _scattered(window: Window, data: Tensor, branch: Tensor, branches: int) -> Tensor:
    """(Q, *shape) the data of a window, added up for the branch that each cotangent belongs to.

    Boxes that stick out of the map are laid on a larger one, of which the map is cut.
    """
    if window.is_full:
        total = data.new_zeros(branches, *window.shape)
        return total.index_add_(0, branch, data) if branches > 1 else data.sum(0, keepdim=True)
    origin, sizes, before = window.origin, window.shape, [0] * len(window.shape)
    for dim, (corners, size) in enumerate(zip(window.origin, window.shape, strict=True)):
        if window.overhang[dim] and isinstance(corners, Corners):
            reach = window.extent[dim]
            corners = corners.within(-reach, size)
            before[dim], after = corners.beyond(reach, size)
            origin = replaced(origin, dim, corners.moved(1, before[dim]))
            sizes = replaced(sizes, dim, before[dim] + size + after)
    larger = Window(data, origin, sizes, window.row, window.image)
    index = larger.index()
    if branches > 1:
        index = index + (branch * prod(sizes)).reshape(-1, *(1,) * len(sizes))
    total = data.new_zeros(branches * prod(sizes))
    total.index_add_(0, index.expand_as(data).reshape(-1), data.reshape(-1))
    maps = total.reshape(branches, *sizes)
    for dim, size in enumerate(window.shape):
        maps = maps if sizes[dim] == size else maps.narrow(dim + 1, before[dim], size)
    return maps
