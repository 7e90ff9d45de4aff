"""What arrived at one hidden layer: for every unit, what it sends to every class, computed only where it is asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from pathx.window import Window, unravelled


@dataclass(frozen=True, eq=False)
class Rows:
    """What the rows of a Jacobian mean.

    Args:
        count: K, rows per branch. Row k of branch q has the number q * K + k, or just k where they are shared.
        weights: (Q, C, K) what each row sends to every class; None where the rows are the classes.
        shared: the rows are the same for every branch, because no gate or route of a picture is in them yet.
        lean: (Q, K) how much more each row sends to the target than to the mean of the other classes.
    """

    count: int
    weights: Tensor | None
    lean: Tensor
    shared: bool = False


@dataclass(frozen=True, eq=False)
class Arrival:
    """Rows that landed on a gate of the layer.

    Args:
        summed: their sum, each times its lean, is known already.
    """

    gate: int
    window: Window
    rows: Rows
    summed: bool = False


ClassMaps = Callable[[range], list[Tensor]]  # for some classes, (Q, c, *shape) at every gate of the layer


@dataclass(frozen=True, eq=False)
class Candidates:
    """Everything that arrived at the gates of one layer, ready to be ranked.

    Args:
        image, target: (Q,) picture and class of every branch.
        gains: of each gate of the layer, (B, *shape): what its units pass on, 0 where they are not active.
        class_maps: rows that are computed class by class, because they would not fit at once.
        threshold: the margin that a unit must exceed.
        chunk: how many numbers an intermediate result may have.
    """

    image: Tensor
    target: Tensor
    classes: int
    gains: list[Tensor]
    arrivals: list[Arrival]
    class_maps: list[ClassMaps]
    threshold: float
    chunk: int

    @cached_property
    def offsets(self) -> list[int]:
        """Number of the first unit of each gate, and of the unit after the last."""
        offsets = [0]
        for gain in self.gains:
            offsets.append(offsets[-1] + prod(gain.shape[1:]))
        return offsets

    def gain(self, units: Tensor, branch: Tensor | None = None) -> Tensor:
        """(Q, n) what the units pass on; `branch` says whose they are where rows are not branches."""
        result = torch.zeros(units.shape, dtype=self.gains[0].dtype, device=units.device)
        image = self.image[:, None] if branch is None else self.image[branch]
        for gain, start, end in zip(self.gains, self.offsets, self.offsets[1:], strict=False):
            flat = (units - start).clamp(0, end - start - 1) + image * (end - start)
            value = gain.reshape(-1)[flat]
            result = value if len(self.gains) == 1 else torch.where((units >= start) & (units < end), value, result)
        return result

    def weights(self, units: Tensor) -> Tensor:
        """(Q, C, n) what the units' outputs send to every class: W of Algorithm 1, for these columns only."""
        branches, count = units.shape
        result = torch.zeros(branches, self.classes, count, dtype=self.gains[0].dtype, device=units.device)
        by_rows: dict[int, tuple[Rows, Tensor]] = {}
        for arrival in self.arrivals:
            columns = self._columns(arrival, units)
            known = by_rows.get(id(arrival.rows))
            by_rows[id(arrival.rows)] = (arrival.rows, columns if known is None else known[1] + columns)
        for rows, columns in by_rows.values():
            sent = columns if rows.weights is None else rows.weights @ columns
            result = result + sent
        if self.class_maps:
            for classes, maps in self._maps():
                flat = torch.cat([part.flatten(2) for part in maps], 2)
                some = result[:, classes.start : classes.stop]
                some += flat.gather(2, units[:, None].expand(-1, len(classes), -1))
        return result

    def _columns(self, arrival: Arrival, units: Tensor) -> Tensor:
        """(Q, K, n) what the rows of each branch hold at its units (Q, n)."""
        start, end = self.offsets[arrival.gate], self.offsets[arrival.gate + 1]
        local, here = units - start, (units >= start) & (units < end)
        window, rows = arrival.window, arrival.rows
        branches, count = units.shape
        if rows.shared:
            branch = torch.arange(branches, device=units.device).repeat_interleave(len(window.data))
            number = torch.arange(len(window.data), device=units.device).repeat(branches)
            row = branch * rows.count + window.row.repeat(branches)
        else:
            branch, number, row = window.row // rows.count, None, window.row
        values = _read(window, local, here, branch, number)
        if values.shape[0] == branches * rows.count and (rows.shared or window.ordered):
            return values.reshape(branches, rows.count, count)
        columns = values.new_zeros(branches * rows.count, count).index_add_(0, row, values)
        return columns.reshape(branches, rows.count, count)

    def reached(self) -> tuple[Tensor, Tensor]:
        """Units that something may have arrived at, (Q, n), and where an entry is to be taken: active, and not seen yet."""
        found = [part for gate in range(len(self.gains)) for part in self._reached_at(gate)]
        if not found:
            nothing = torch.zeros(len(self.image), 0, dtype=torch.long, device=self.image.device)
            return nothing, nothing.bool()
        return torch.cat([units for units, _ in found], 1), torch.cat([alive for _, alive in found], 1)

    def _reached_at(self, gate: int) -> Iterator[tuple[Tensor, Tensor]]:
        arrivals = [arrival for arrival in self.arrivals if arrival.gate == gate]
        if not arrivals:
            return
        gain, start = self.gains[gate].flatten(1), self.offsets[gate]
        size, branches = gain.shape[1], len(self.image)
        if any(arrival.window.is_full for arrival in arrivals):
            units = torch.arange(size, device=gain.device).expand(branches, -1)
            yield units + start, (gain != 0).index_select(0, self.image)
            return
        tables = [self._under(arrival, gain) for arrival in arrivals]
        unit, alive = torch.cat([table for table, _ in tables], 1), torch.cat([table for _, table in tables], 1)
        # A unit may lie under several windows: whichever place of the table is written last keeps it.
        key = torch.where(alive, unit + torch.arange(branches, device=unit.device)[:, None] * size, branches * size)
        numbers = torch.arange(key.numel(), device=key.device).reshape(key.shape)
        owner = torch.empty(branches * size + 1, dtype=torch.long, device=key.device)
        owner[key] = numbers
        yield unit + start, alive & (owner[key] == numbers)

    def _under(self, arrival: Arrival, gain: Tensor) -> tuple[Tensor, Tensor]:
        """Units under the windows of an arrival, (Q, n), and which of them are active and get something."""
        window, branches = arrival.window.cleaned(), len(self.image)
        gains = gain.reshape(-1, *window.shape)
        index = window.index().expand_as(window.data)
        if not arrival.rows.shared:
            alive = window.data * window.read(gains) != 0
            return index.reshape(branches, -1), alive.reshape(branches, -1)
        alive = torch.stack([window.data * window.about(image).read(gains) != 0 for image in self.image.unbind()])
        return index.reshape(1, -1).expand(branches, -1), alive.reshape(branches, -1)

    # --- class by class --------------------------------------------------------------------------------------------

    def _maps(self) -> Iterator[tuple[range, list[Tensor]]]:
        """For some classes at a time, what the rows of `class_maps` send to them: (Q, c, *shape) at every gate."""
        widest = max(prod(gain.shape[1:]) for gain in self.gains)
        step = max(1, self.chunk // (len(self.image) * widest))
        for start in range(0, self.classes, step):
            classes = range(start, min(start + step, self.classes))
            parts = [maps(classes) for maps in self.class_maps]
            yield classes, [sum(some[1:], some[0]) for some in zip(*parts, strict=True)]

    def class_by_class(self) -> tuple[Tensor, Tensor]:
        """(Q, U) exact margins of all units of the layer, classes in chunks, and whether anything arrived at them."""
        gain = torch.cat([gain.flatten(1) for gain in self.gains], 1)[self.image]
        shape = gain.shape
        own, most = gain.new_zeros(shape), gain.new_full(shape, -math.inf)
        excess, seen, live = (
            gain.new_zeros(shape),
            gain.new_zeros(len(shape) * [1]),
            gain.new_zeros(shape, dtype=torch.bool),
        )
        seen = gain.new_zeros(shape[0], 1)
        for classes, maps in self._maps():
            z = torch.cat([part.flatten(2) for part in maps], 2)
            z = (z + self._eager_maps(classes)) * gain[:, None]
            live = live | (z != 0).any(1)
            mine = (self.target[:, None] == torch.arange(classes.start, classes.stop, device=z.device))[:, :, None]
            own = own + torch.where(mine, z, torch.zeros_like(z)).sum(1)
            others = z.masked_fill(mine, -math.inf)
            top = torch.maximum(most, others.amax(1))
            top = torch.where(top == -math.inf, torch.zeros_like(top), top)
            drop = torch.where(most == -math.inf, torch.zeros_like(most), most - top)
            here = torch.expm1(others - top[:, None]).masked_fill(mine, 0.0).sum(1)
            excess = torch.exp(drop) * excess + seen * torch.expm1(drop) + here
            seen = seen + (~mine).sum(1)
            most = torch.where(seen > 0, top, most)
        return own - most - torch.log1p(excess / (self.classes - 1)), live & (gain != 0)

    def _eager_maps(self, classes: range) -> Tensor | float:
        """(Q, c, U) what the rows that are at hand send to some classes, at all units of the layer."""
        result: Tensor | float = 0.0
        branches = len(self.image)
        for arrival in self.arrivals:
            rows, window = arrival.rows, arrival.window.dense()
            start, units = self.offsets[arrival.gate], prod(window.shape)
            flat = window.data.flatten(1)
            if rows.shared:
                jacobian = flat.new_zeros(rows.count, units).index_add_(0, window.row, flat).expand(branches, -1, -1)
            else:
                jacobian = flat.new_zeros(branches * rows.count, units).index_add_(0, window.row, flat)
                jacobian = jacobian.reshape(branches, rows.count, units)
            some = slice(classes.start, classes.stop)
            sent = jacobian[:, some] if rows.weights is None else rows.weights[:, some] @ jacobian
            result = result + torch.nn.functional.pad(sent, (start, self.offsets[-1] - start - units))
        return result


def _read(window: Window, units: Tensor, here: Tensor, branch: Tensor, number: Tensor | None) -> Tensor:
    """(P, n) what the cotangents hold at the units (Q, n) of their own branch; 0 outside their boxes.

    Args:
        here: (Q, n) whether the unit is on this gate at all.
        number: which cotangent of the window each row is; None where they are the rows.
    """
    data = window.thin()
    alone = len(units) == 1  # one branch: its units are everyone's

    def own(values: Tensor) -> Tensor:
        return values if alone else values[branch]

    def of(origin: int | Tensor) -> int | Tensor:
        if not isinstance(origin, Tensor):
            return origin
        return (origin if number is None else origin[number])[:, None]

    coordinates = unravelled(units.clamp(0, prod(window.shape) - 1), window.shape)
    inside = own(here)
    place: Tensor | int = 0  # in a cotangent, less where its box starts
    start: Tensor | int = (torch.arange(len(data), device=units.device) if number is None else number)[:, None]
    for dim, size in enumerate(data.shape[1:]):
        if size != window.extent[dim]:  # repeats one value
            continue
        coordinate, origin = coordinates[dim], window.origin[dim]
        place, start = place * size + coordinate, start * size
        if not window.covers(dim):
            start = start - of(origin)
            small = torch.int16 if window.shape[dim] < 1 << 14 else torch.int64
            offset = of(origin)
            step = own(coordinate.to(small)) - (offset.to(small) if isinstance(offset, Tensor) else offset)
            inside = inside & (step >= 0) & (step < size)
    index = start + (own(place) if isinstance(place, Tensor) else place)
    index = torch.where(inside, index, torch.zeros((), dtype=torch.long, device=units.device))
    values = data.reshape(-1).take(index)
    return torch.where(inside, values, torch.zeros((), dtype=values.dtype, device=values.device))
