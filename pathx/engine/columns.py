"""Columns of the Jacobian: what a few units of a layer send to rows above, found without pulling the rows back.

Where a row is a whole map (attention mixes all places, a mean reads them all), pulling one back for every class and kept unit
costs more than pushing the few candidates of a layer up. One push serves all rows above at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from pathx.engine.branches import split_by_gate
from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate, Network
from pathx.engine.record.operations import Value
from pathx.engine.rows import Rows, Start, add, add_window, join
from pathx.engine.rules.pushing import fixed_matrix
from pathx.engine.rules.table import has
from pathx.engine.window import Window, cached_arange

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
    tangents: dict[Value, list[Window]] = {}
    for gate, index, here in units:
        ones = like.new_ones(()).expand(len(row)) if here is None else here.reshape(-1).to(like.dtype)
        tangents[gate.output] = [Window.one_hot(ones, index.reshape(-1), gate.shape, row, image)]
    products = {start: _product_below(frozen, start, tangents) for rows in sources for start in rows.starts}
    ends = {start.value if product is None else product[0] for start, product in products.items()}
    needed, last = _nodes_between(network, ends)
    for node in network.nodes:
        inputs = [value for value in network.reading.linear.get(node.index, ()) if value in tangents]
        if not inputs or node.index not in needed:
            continue
        for output, result in enumerate(node.outputs):
            if result is not None and result in last:
                made = tangents.setdefault(result, [])
                for value in inputs:
                    for tangent in tangents[value]:
                        add_window(made, frozen.push(node, output, value, tangent))
        for value in inputs:
            if last[value] == node.index and value not in ends:
                del tangents[value]
    found = []
    for rows in sources:
        parts = []
        for start in rows.starts:
            product = products[start]
            end, matrix = (start.value, None) if product is None else product
            for tangent in tangents.get(end, ()):
                maps = tangent.dense().data.reshape(branches, count, -1)
                parts.append(_read_start(rows, start, matrix, maps))
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


def _nodes_between(network: Network, starts: set[Value]) -> tuple[set[int], dict[Value, int]]:
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
