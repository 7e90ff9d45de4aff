"""The linear model of a path: its weight, bias and score, pulled back from the deepest path layer to the input."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch
from torch import Tensor

from pathx.engine.branches import Branches, Kept
from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate
from pathx.engine.path import Paths
from pathx.engine.record.operations import Node, Value
from pathx.engine.rows import pull_back, sum_into
from pathx.engine.rules.shared import total
from pathx.engine.rules.table import Cotangents, precise
from pathx.engine.window import Window, cached_arange


@dataclass(frozen=True, eq=False)
class LinearModel:
    """f(X) = weight · X + bias for every branch.

    Args:
        weight: (Q, *input shape).
        bias: (Q,) the constant parts of every operation below the path, each under the cotangent that reaches it. It
            is not taken from the score, so score - weight · X - bias is a real check.
        score: (Q,) what the deepest path layer sends to the explained logit, and what jumps over it.
    """

    weight: Tensor
    bias: Tensor
    score: Tensor


def linear_model(frozen: Frozen, paths: Paths) -> LinearModel:
    """The exact linear model of each branch's path."""
    branches, network = paths.branches, frozen.network
    score, seeds = _from_deepest(frozen, branches, paths.layers[-1])
    row = cached_arange(len(branches), branches.image.device)
    for value, maps in _weights_of_jumps(frozen, paths).items():
        window = Window.full(maps, row, branches.image)
        gate = None if value == network.graph.input else network.gates[network.producers[value].index]
        score = score + total(window, frozen.images if gate is None else frozen.activation(gate))
        seeds.append((value, window))
    weight, bias = pull_to_input(frozen, branches, seeds)
    return LinearModel(weight, bias, score)


def _from_deepest(frozen: Frozen, branches: Branches, kept: Kept) -> tuple[Tensor, list[tuple[Value, Window]]]:
    """Score of the deepest path layer, and what its kept units send down, at their pre-activations."""
    score = (kept.weight * kept.slope_times_h).sum(1, dtype=precise(kept.weight))
    count = kept.weight.shape[1]
    row = cached_arange(len(branches), score.device).repeat_interleave(count)
    image = branches.image.repeat_interleave(count)
    seeds = []
    for gate, index, mask in kept.by_gate():
        weight = (kept.weight * mask).flatten()
        seed = Window.one_hot(weight, index.flatten(), gate.shape, row, image)
        seeds.append((gate.source, replace(frozen.slopes(gate).pull_back(seed), ordered=False)))
    return score, seeds


def _weights_of_jumps(frozen: Frozen, paths: Paths) -> dict[Value, Tensor]:
    """What routes that jump over the deepest path layer send to the explained logit, where they land below it: (Q, …)."""
    below = (1 << paths.layers[-1].layer) - 1
    seeds = [seed for rows in paths.jumping for seed in rows.seeds_of_sums(rows.weight[:, None])]
    landed = pull_back(frozen, seeds, below, windows=False)
    return {value: sum((window.data for window in rest), first.data) for value, (first, *rest) in landed.items()}


def frozen_gradients(frozen: Frozen, targets: Sequence[int], on_gate: OnGate | None = None) -> Tensor:
    """(B, …) the gradient of a class's logit in the frozen network, every unit kept: one backward pass.

    Args:
        targets: one class per image.
        on_gate: is called with every gate on the way down and the cotangent of its output, (B, *shape).
    """
    if frozen.parts and on_gate is None:
        return torch.cat([frozen_gradients(part, [one]) for part, one in zip(frozen.parts, targets, strict=True)])
    network, device = frozen.network, frozen.images.device
    classes, image = torch.tensor(targets, device=device), cached_arange(len(targets), device)
    branches = Branches(image, classes, max(2, network.outputs), frozen.images.dtype, single_logit=network.outputs == 1)
    seed = branches.explained if network.outputs > 1 else branches.explained[:, 1:]
    seed = seed.reshape(len(targets), *network.shape(network.logits))
    return pull_to_input(frozen, branches, [(network.logits, Window.full(seed, image, image))], on_gate)[0]


OnGate = Callable[[Gate, Tensor], None]


def pull_to_input(
    frozen: Frozen, branches: Branches, seeds: Iterable[tuple[Value, Window]], on_gate: OnGate | None = None
) -> tuple[Tensor, Tensor]:
    """Pull cotangents of the branches (rows) back to the input: the weight there, and the bias on the way.

    Args:
        on_gate: as for `frozen_gradients`.
    """
    network = frozen.network
    pending: dict[Value, list[Window]] = {}
    for value, window in seeds:
        pending.setdefault(value, []).append(window)
    constants: list[tuple[Tensor, Tensor]] = []
    for node in reversed(network.nodes):
        for output, result in enumerate(node.outputs):
            if result is None or result not in pending:
                continue
            for cotangent in _merge(pending.pop(result), branches):
                if on_gate is not None and node.index in network.gates:
                    on_gate(network.gates[node.index], _sum_maps([cotangent], branches).data)
                below, constant = _step(frozen, node, output, cotangent)
                if constant is not None:
                    constants.append((cotangent.row, constant))
                for source, window in below:
                    pending.setdefault(source, []).append(window)
    bias = torch.zeros(len(branches), dtype=precise(frozen.images), device=frozen.images.device)
    if constants:
        rows, values = zip(*constants, strict=True)
        bias.index_add_(0, torch.cat(rows), torch.cat(values))
    at_input = pending.get(network.graph.input)
    if at_input is None:
        return torch.zeros_like(frozen.images).index_select(0, branches.image), bias
    return _sum_maps(at_input, branches).data, bias


def _step(frozen: Frozen, node: Node, output: int, cotangent: Window) -> tuple[Cotangents, Tensor | None]:
    """Cotangents below one node, and what its constant part adds under these."""
    gate = frozen.network.gates.get(node.index) or frozen.network.class_gates.get(node.index)
    if gate is None:
        return frozen.pull(node, output, cotangent), frozen.constant(node, cotangent)
    slopes = frozen.slopes(gate)
    constant = None if slopes.offset is None else total(cotangent, slopes.offset, finite=slopes.finite)
    return [(gate.source, slopes.pull_back(cotangent))], constant


def _merge(windows: list[Window], branches: Branches) -> list[Window]:
    """The cotangents as they are while their boxes are few and small; otherwise their sum, one map for every branch."""
    first = windows[0]
    single = len(windows) == 1 and first.data.shape[0] == len(branches) and first.ordered
    if single and not any(first.overhang):
        return windows
    if 4 * sum(window.data.numel() for window in windows) <= len(branches) * prod(first.shape):
        return windows
    return [_sum_maps(windows, branches)]


def _sum_maps(windows: list[Window], branches: Branches) -> Window:
    """The sum of cotangents as one whole map for every branch."""
    shape = windows[0].shape
    full = [window.data for window in windows if window.is_full and window.ordered]
    rest = [window for window in windows if not (window.is_full and window.ordered)]
    maps = sum(full[1:], full[0]) if full else windows[0].data.new_zeros(len(branches), *shape)
    if rest and full:
        maps = maps.clone(memory_format=torch.contiguous_format)
    for window in rest:
        sum_into(maps, window, window.row)
    return Window.full(maps, cached_arange(len(branches), branches.image.device), branches.image)
