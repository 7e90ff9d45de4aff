"""Columns of the Jacobian: what a few units of a layer send to rows above, found without pulling the rows back.

Where a row is a whole map (attention mixes all places, a mean reads them all), pulling one back for every class and kept unit
costs more than pushing the few candidates of a layer up. One push serves all rows above at once.

A class layer, such as SqueezeNet's ReLU over one map per class, belongs to the output, so the layer below it is reached by one row
per class, and each of these rows is a whole map. But a unit below reaches only a small box of the class layer, and each element of
that box sends to one class only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from pathx.engine.branches import split_by_gate
from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate, Network
from pathx.engine.record.operations import Value
from pathx.engine.rows import Rows, Start, add, join, pull_back, read_window
from pathx.engine.rules.pushing import fixed_matrix
from pathx.engine.rules.table import has
from pathx.engine.window import Corners, Origin, Window, cached_arange, unravel

UnitsOfGate = tuple[Gate, Tensor, Tensor | None]
"""A gate, flat indices of units in it (Q, n), and which of them are on it; None for all."""


AT_ONCE = 1 << 22
"""Numbers that are pushed at once: larger maps take new memory from the system for every operation."""


def push_columns(sources: Sequence[Rows], gates: tuple[Gate, ...], units: Tensor, most: int) -> list[Tensor]:
    """For every set of rows, (Q, K, n) what units (Q, n) of a layer below send to each of its K rows.

    Args:
        most: how many numbers the units of a layer may have as whole maps; they are pushed in turns.
    """
    step = max(1, min(most, AT_ONCE) // (len(units) * sum(gate.units for gate in gates)))
    turns = [_push(sources, list(split_by_gate(some, gates))) for some in units.split(step, dim=1)]
    return [join(parts, 2) for parts in zip(*turns, strict=True)]


def _push(sources: Sequence[Rows], units: Sequence[UnitsOfGate]) -> list[Tensor]:
    frozen, network, like = sources[0].frozen, sources[0].frozen.network, sources[0].weight
    branches, count = units[0][1].shape
    image, row = sources[0].image.repeat_interleave(count), cached_arange(branches * count, like.device)
    tangents: dict[Value, Window] = {}
    for gate, index, here in units:
        ones = like.new_ones(()).expand(len(row)) if here is None else here.reshape(-1).to(like.dtype)
        tangents[gate.output] = Window.one_hot(ones, index.reshape(-1), gate.shape, row, image)
    products = {start: _product_below(frozen, start, tangents) for rows in sources for start in rows.starts}
    ends = {start.value if product is None else product[0] for start, product in products.items()}
    needed, last = _between(network, ends)
    for node in network.nodes:
        inputs = [value for value in network.reading.linear.get(node.index, ()) if value in tangents]
        if inputs and node.index in needed:
            for output, value in enumerate(node.outputs):
                if value is not None and value in last:
                    tangents[value] = frozen.push(node, output, {v: tangents[v] for v in inputs})
            for value in inputs:
                if last[value] == node.index and value not in ends:
                    del tangents[value]
    found = []
    for rows in sources:
        parts = []
        for start in rows.starts:
            product = products[start]
            end, matrix = (start.value, None) if product is None else product
            if end in tangents:
                parts.append(_read_start(rows, start, matrix, tangents[end].dense().data.reshape(branches, count, -1)))
        found.append(add(parts) if parts else rows.weight.new_zeros(branches, rows.count, count))
    return found


def _product_below(frozen: Frozen, start: Start, tangents: Iterable[Value]) -> tuple[Value, Tensor] | None:
    """The product with a fixed matrix (in, out) that makes the value where rows start: what it multiplies, and the matrix.

    None where there is none, or that is no smaller, or tangents are known above it.
    """
    producers, value = frozen.network.producers, start.value
    node = producers.get(value)
    if node is not None and has(node, "copy", "sum") and node.args[0] in producers:  # a bias
        value = node.args[0]
        is_sum = len(frozen.network.reading.linear[node.index]) > 1 or frozen.network.shape(value) != start.shape
        node = None if is_sum else producers[value]
    if node is None or {value, start.value} & {*tangents} or start.seed is not None or len(start.shape) < 2:
        return None
    product = fixed_matrix(frozen.call(node))
    return product if product is not None and product[1].shape[0] < product[1].shape[1] else None


def _between(network: Network, starts: set[Value]) -> tuple[set[int], dict[Value, int]]:
    """The nodes below some values with no gate between, and for each value that they read or make, the last node that reads it."""
    needed: set[int] = set()
    last: dict[Value, int] = dict.fromkeys(starts, -1)
    for node in reversed(network.nodes):
        if node.index not in network.gates and any(value in last for value in node.outputs if value is not None):
            needed.add(node.index)
            for value in network.reading.linear.get(node.index, ()):
                last.setdefault(value, node.index)
    return needed, last


def _read_start(rows: Rows, start: Start, matrix: Tensor | None, maps: Tensor) -> Tensor:
    """(Q, K, n) what maps (Q, n, elements) hold where rows start, times the slopes there.

    Args:
        matrix: (in, out) where the maps are of what a product with this matrix reads.
    """
    if start.seed is not None:
        return torch.bmm(start.seed, maps.transpose(1, 2))
    index = start.index.expand(len(maps), -1)
    if matrix is None:
        columns = maps.gather(2, index[:, None].expand(-1, maps.shape[1], -1)).transpose(1, 2)
    else:
        size, outputs = matrix.shape
        number = cached_arange(len(maps), maps.device)[:, None]
        at_places = maps.unflatten(2, (-1, size)).transpose(1, 2)[number, index // outputs]  # (Q, K, n, in)
        columns = (at_places @ matrix.t()[index % outputs].unsqueeze(3)).squeeze(3)
    if start.slopes is not None and start.slopes.given is not None:
        slope = start.slopes.given.flatten(1).index_select(0, rows.image).gather(1, index)
        columns = columns * slope[:, :, None]
    return columns if start.mask is None else columns * start.mask[:, :, None]


# --- through a class layer --------------------------------------------------------------------------------------------


def class_columns(rows: Rows, units: Sequence[UnitsOfGate], layer: int) -> Tensor:
    """(Q, K, n) what units of a layer send to each of the K rows of the logits, through a class layer."""
    frozen, network = rows.frozen, rows.frozen.network
    branches, count = units[0][1].shape
    branch = cached_arange(branches, rows.image.device).repeat_interleave(count)
    total = rows.weight.new_zeros(branches * count, network.outputs)
    for class_gate, (weight, times_number) in _classes_of_units(rows).items():
        for gate, index, here in units:
            places = unravel(index.reshape(-1), gate.shape)
            box = _reach(network, class_gate, gate, places, rows.image[branch])
            slope = _slopes(frozen, (class_gate, box), (gate, places), layer)
            box = replace(box, image=branch)
            weight_there = box.read(weight)
            class_of = (box.read(times_number) / weight_there).nan_to_num(1.0).round().long() - 1
            sent = slope * weight_there
            sent = sent if here is None else sent * here.reshape(-1, *(1,) * (sent.dim() - 1))
            class_of = class_of.clamp_(0, network.outputs - 1).expand_as(sent)
            total.scatter_add_(1, class_of.flatten(1), sent.flatten(1))
    columns = total.reshape(branches, count, -1).transpose(1, 2)
    asked = rows.starts[0].index[:, :, None]  # two of the logits, where one class is explained against another
    return columns.gather(1, asked.expand(branches, -1, count))


def _slopes(frozen: Frozen, above: tuple[Gate, Window], below: tuple[Gate, tuple[Tensor, ...]], layer: int) -> Tensor:
    """How much units at places (P,) of a gate add to every element of their boxes of the class layer.

    That is the gradient of one cotangent per unit, pulled back from the box to the unit.
    """
    (class_gate, box), (gate, places) = above, below

    def read_units(data: Tensor) -> Tensor:
        landed = pull_back(frozen, [(class_gate.source, box.with_data(data))], 1 << layer)
        parts = [_read_each(window, places).sum() for window in landed.get(gate.output, ())]
        return sum(parts, data.sum() * 0)

    return gradient_of(read_units, frozen.images.new_zeros(box.data.shape))


def gradient_of(function: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """By plain autograd: the gradients of `torch.func` import torch's compiler, which takes as long as torch itself."""
    with torch.enable_grad():
        probe = at.requires_grad_()
        return torch.autograd.grad(function(probe), probe)[0]


def _classes_of_units(rows: Rows) -> dict[Gate, tuple[Tensor, Tensor]]:
    """For every gate of the class layer, (Q, *shape) what each unit sends to its class, and that times the class's number + 1."""
    network, branches = rows.frozen.network, len(rows.image)
    number = cached_arange(network.outputs, rows.image.device).to(rows.weight.dtype) + 1
    seed = torch.stack([torch.ones_like(number), number]).repeat(branches, 1)
    seed = seed.reshape(-1, *network.shape(network.logits))
    logits = Window.full(seed, cached_arange(len(seed), seed.device), rows.image.repeat_interleave(2))
    gates = {gate.source: gate for gate in network.class_gates.values()}
    landed = pull_back(rows.frozen, [(network.logits, logits)], -1, windows=False, stop_at=gates)
    result = {}
    for value, windows in landed.items():
        if value in gates:
            weight, times_number = add([window.data for window in windows]).unflatten(0, (branches, 2)).unbind(1)
            result[gates[value]] = weight, times_number
    return result


def _reach(network: Network, class_gate: Gate, gate: Gate, places: tuple[Tensor, ...], image: Tensor) -> Window:
    """The box of the class layer that each unit at places (P,) of a gate below reaches; the whole layer where that is not known."""
    shape = class_gate.shape
    row = cached_arange(len(image), image.device)
    by_axis = network.class_reach(class_gate, gate)
    origin: list[Origin] = [0]
    extent = [shape[0]]
    if by_axis is not None and len(shape) == len(gate.shape) == 3:
        for axis, seen in enumerate(by_axis, start=1):  # element p of the class layer sees p + first up to p + last
            if seen is None or seen[1] - seen[0] >= shape[axis]:
                break
            origin.append(Corners(places[axis], gate.shape[axis], 1, 1 - seen[1]))
            extent.append(seen[1] - seen[0])
    if len(extent) < 3:
        origin, extent = [0] * len(shape), list(shape)
    data = torch.empty(1, device=image.device).expand(len(image), *extent)
    return Window(data, tuple(origin), shape, row, image, clean=False)


def _read_each(window: Window, places: tuple[Tensor, ...]) -> Tensor:
    """What each cotangent of a window holds at the place of its own row."""
    at = tuple(place.index_select(0, window.row)[:, None] for place in places)
    return read_window(window.clear_outside(), at, None, (len(window.data), 1))
