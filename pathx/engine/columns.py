"""Columns of the Jacobian by going up: what a few units of a layer send to rows above, whatever the number of rows.

Where a row is a whole map (attention mixes all places, a mean reads them all), pulling one back for every class and kept unit
costs more than pushing the few candidates of a layer up. One push serves all rows above at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate, Network
from pathx.engine.record.operations import Value
from pathx.engine.rows import Rows, Start
from pathx.engine.rules.table import LAST_PRODUCTS


@dataclass(frozen=True, eq=False)
class Product:
    """The product with a fixed matrix that is all that reads a layer of tokens, as in the MLP of a transformer.

    A unit reaches one place of the result, so that it is never needed as a map: rows are pulled back to the result only.

    Args:
        value: the result, (…, out).
        matrix: (in, out).
    """

    value: Value
    shape: tuple[int, ...]
    matrix: Tensor

    def vectors(self, index: Tensor) -> tuple[Tensor, Tensor]:
        """Units by their flat indices: the place (…) that each reaches, and what it adds there, (…, out)."""
        return index // len(self.matrix), self.matrix[index % len(self.matrix)]

    def read(self, rows: Tensor, index: Tensor) -> Tensor:
        """(Q, K, n) what rows of the result (Q or 1, K, places, out) make of units (Q, n)."""
        place, vectors = self.vectors(index)
        number = torch.arange(len(rows), device=index.device)[:, None]
        at_places = rows.transpose(1, 2)[number, place]  # (Q, n, K, out)
        return (at_places @ vectors.unsqueeze(3)).squeeze(3).transpose(1, 2)


def product_above(frozen: Frozen, gate: Gate) -> Product | None:
    """The product that is all that reads a gate; None where there is none, or it makes no less of it."""
    readers = frozen.network.readers.get(gate.output, [])
    if len(readers) != 1 or len(gate.shape) < 2 or readers[0].index in frozen.network.whole:
        return None
    (node,), call = readers, frozen.call(readers[0])
    value = node.outputs[0]
    if node.kind not in LAST_PRODUCTS or value is None or node.args[0] != gate.output:
        return None
    matrix = call.args[1]
    if not isinstance(matrix, Tensor) or matrix.dim() != 2:
        return None
    matrix = matrix.t() if LAST_PRODUCTS[node.kind] else matrix
    return Product(value, call.shapes[value], matrix) if matrix.shape[1] < matrix.shape[0] else None


def push_columns(
    sources: Sequence[Rows], units: Sequence[tuple[Gate, Tensor, Tensor | None]], product: Product | None = None
) -> list[Tensor]:
    """For every set of rows, (Q, K, n) what units of a layer below send to each of its K rows.

    Args:
        units: by gate of the layer, the units' flat indices (Q, n), and which of them are on it; None for all.
        product: that is all that reads the layer, if there is one.
    """
    frozen, network = sources[0].frozen, sources[0].frozen.network
    branches, count = units[0][1].shape
    image = sources[0].image.repeat_interleave(count)
    tangents: dict[Value, Tensor] = {}
    for gate, index, here in units:
        if product is not None:
            place, vectors = product.vectors(index.flatten())
            maps = vectors.new_zeros(branches * count, prod(product.shape[:-1]), vectors.shape[1])
            maps[torch.arange(len(place), device=place.device), place] = vectors
            tangents[product.value] = maps.reshape(-1, *product.shape)
            continue
        ones = (
            torch.ones(index.shape, dtype=sources[0].weight.dtype, device=image.device)
            if here is None
            else here.to(sources[0].weight.dtype)
        )
        maps = ones.new_zeros(branches * count, gate.units).scatter_(1, index.reshape(-1, 1), ones.reshape(-1, 1))
        tangents[gate.output] = maps.reshape(-1, *gate.shape)
    starts = {start.value for rows in sources for start in rows.starts}
    needed, last = _between(network, starts)
    for node in network.nodes:
        inputs = [value for value in network.reading.linear.get(node.index, ()) if value in tangents]
        if inputs and node.index in needed:
            for output, value in enumerate(node.outputs):
                if value is not None and value in last:
                    tangents[value] = frozen.push(node, output, {v: tangents[v] for v in inputs}, image)
            for value in inputs:
                if last[value] == node.index and value not in starts:
                    del tangents[value]
    return [_read(rows, tangents, branches, count) for rows in sources]


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


def _read(rows: Rows, tangents: dict[Value, Tensor], branches: int, count: int) -> Tensor:
    parts = [_read_start(rows, start, tangents, branches, count) for start in rows.starts if start.value in tangents]
    if not parts:
        return rows.weight.new_zeros(branches, rows.count, count)
    return sum(parts[1:], parts[0])


def _read_start(rows: Rows, start: Start, tangents: dict[Value, Tensor], branches: int, count: int) -> Tensor:
    """(Q, K, n) tangents where rows start, times the slopes there."""
    maps = tangents[start.value].reshape(branches, count, -1)
    index = start.index.expand(branches, -1)
    columns = maps.gather(2, index[:, None].expand(-1, count, -1))  # (Q, n, K)
    if start.slopes is not None and start.slopes.given is not None:
        slope = start.slopes.given.flatten(1).index_select(0, rows.image).gather(1, index)
        columns = columns * slope[:, None]
    if start.mask is not None:
        columns = columns * start.mask[:, None]
    return columns.transpose(1, 2)
