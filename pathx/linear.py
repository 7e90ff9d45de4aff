"""The linear model of a path: its weight, bias and score, pulled down from the deepest path layer to the input."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from pathx.frozen import Frozen
from pathx.operations import precise
from pathx.path import Branches, ClassSource, Kept, Paths, Source, explained
from pathx.trace import Value
from pathx.transposes import total
from pathx.window import Window


@dataclass(frozen=True, eq=False)
class LinearModel:
    """f(X) = weight · X + bias for every branch.

    Args:
        weight: (Q, *input shape).
        bias: (Q,) the constant parts of every operation below the path, each under the cotangent that reaches it. It
            is not taken from the score, so score - weight · X - bias is a real check.
        score: (Q,) what the deepest path layer sends to the target.
    """

    weight: Tensor
    bias: Tensor
    score: Tensor


def linear_model(frozen: Frozen, paths: Paths) -> LinearModel:
    """The exact linear model of each branch's path."""
    branches, network = paths.branches, frozen.network
    deepest = paths.layers[-1]
    score, seeds = _from_deepest(frozen, branches, deepest)
    for value, maps in _jumped(frozen, paths).items():
        window = _window(maps, branches)
        if value == network.graph.input:
            score = score + total(window, frozen.images)
        else:
            gate = network.gates[network.producers[value].index]
            score = score + total(window, frozen.activation(gate))
        seeds.append((value, maps))
    weight, bias = pull_back(frozen, branches, seeds)
    return LinearModel(weight, bias, score)


def _window(maps: Tensor, branches: Branches) -> Window:
    return Window.full(maps, torch.arange(len(branches), device=maps.device), branches.image)


def _from_deepest(frozen: Frozen, branches: Branches, kept: Kept) -> tuple[Tensor, list[tuple[Value, Tensor]]]:
    """Score of the deepest path layer, and what its kept units send down, at their pre-activations."""
    row = explained(kept.weights, branches, frozen.network.outputs) * kept.chosen.valid
    contribution = (row * kept.gain).to(precise(row))
    seeds = []
    for gate, index, here in kept.places():
        maps = row.new_zeros(len(branches), gate.units)
        maps.scatter_add_(1, index, row * here)
        maps = maps.reshape(-1, *gate.shape) * frozen.slopes(gate).slope[branches.image]
        seeds.append((gate.source, maps))
    return contribution.sum(1), seeds


def _jumped(frozen: Frozen, paths: Paths) -> dict[Value, Tensor]:
    """What routes that jump over the deepest path layer send to the target, where they land below it: (Q, …) maps."""
    network = frozen.network
    lowest = paths.layers[-1].layer
    below = [gate.output for layer in network.layers[: lowest - 1] for gate in layer] + [network.graph.input]
    result: dict[Value, Tensor] = {}
    for source in paths.jumping:
        for value, maps in _landed_for_target(frozen, paths.branches, source, below):
            result[value] = result[value] + maps if value in result else maps
    return result


def _landed_for_target(
    frozen: Frozen, branches: Branches, source: Source | ClassSource, values: list[Value]
) -> Iterator[tuple[Value, Tensor]]:
    """What a source's rows send to each branch's target at the given values, where they send anything."""
    network = frozen.network
    if isinstance(source, ClassSource):
        reached = [
            value for value in values if any(network.lands[g.source] & network.lands[value] for g in source.kept.gates)
        ]
        for value, maps in zip(reached, source.for_target(reached), strict=True):
            yield value, maps
        return
    rows = source.rows
    weights = rows.weights
    if weights is None:
        weights = torch.eye(rows.count, device=branches.image.device, dtype=frozen.images.dtype)
        weights = weights.expand(len(branches), -1, -1)
    row = explained(weights, branches, network.outputs)  # (Q, K)
    for value in values:
        for window in source.landed.get(value, ()):
            maps = window.dense().data.flatten(1)
            if rows.shared:
                total = row[:, window.row] @ maps
            else:
                total = maps.new_zeros(len(branches), maps.shape[1])
                total.index_add_(0, window.row // rows.count, maps * row.flatten()[window.row][:, None])
            yield value, total.reshape(-1, *network.shape(value))


def pull_back(frozen: Frozen, branches: Branches, seeds: list[tuple[Value, Tensor]]) -> tuple[Tensor, Tensor]:
    """Pull maps (Q, …) at values of the frozen network down to the input: the weight there, and the bias on the way."""
    network = frozen.network
    pending: dict[Value, Tensor] = {}
    for value, maps in seeds:
        pending[value] = pending[value] + maps if value in pending else maps
    bias = torch.zeros(len(branches), dtype=precise(frozen.images), device=frozen.images.device)
    row = torch.arange(len(branches), device=bias.device)
    for node in reversed(network.nodes):
        for output, made in enumerate(node.outputs):
            if made is None or made not in pending:
                continue
            cotangent = Window.full(pending.pop(made), row, branches.image)
            if node.index in network.gates:
                gate = network.gates[node.index]
                slopes = frozen.slopes(gate)
                if slopes.offset is not None:
                    bias = bias + total(cotangent, slopes.offset)
                below = [(gate.source, cotangent.scale(slopes.slope))]
            else:
                constant = frozen.constant(node, cotangent)
                bias = bias if constant is None else bias + constant
                below = frozen.pull(node, output, cotangent)
            for source, window in below:
                maps = window.dense().data
                pending[source] = pending[source] + maps if source in pending else maps
    shape = tuple(frozen.images.shape[1:])
    weight = pending.get(network.graph.input)
    return (frozen.images.new_zeros(len(branches), *shape) if weight is None else weight), bias
