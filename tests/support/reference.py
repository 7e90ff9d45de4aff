"""The method, slow and literal, in float64, one image at a time; to be read next to section 1 of the design.

Two implementations that share nothing but the definition:

- `explain`: every operation of the frozen network is a matrix, every step of Algorithm 1 takes a full Jacobian.
- `one_way_paths`: walks every single route from a logit down to an input element or a constant, weight by weight.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from support.networks import FLOAT, HELD, Network, Node, evaluate
from torch import Tensor

# --- The frozen network -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Frozen:
    """The network at X: every node is `sum(matrix @ input) + constant`, all flat.

    Args:
        values: of each node.
        matrices: of each node, one (outputs, inputs) matrix per input.
        constants: of each node.
        weight, bias: of each node, its whole linear model: value = weight @ X + bias.
    """

    network: Network
    values: list[Tensor]
    matrices: list[list[Tensor]]
    constants: list[Tensor]
    weight: list[Tensor]
    bias: list[Tensor]

    def slope(self, relu: int) -> Tensor:
        return self.matrices[relu][0].diagonal()

    def before(self, relu: int) -> int:
        """The node that a ReLU reads: its pre-activation."""
        return self.network.nodes[relu].inputs[0]


def slope(node: Node, h: Tensor) -> Tensor:
    """The slope of an activation at h: of a smooth one, what it multiplies h by."""
    match node.options["kind"]:
        case "relu":
            return (h > 0).to(FLOAT)
        case "relu6":
            return ((h > 0) & (h < 6)).to(FLOAT)
        case "leaky_relu":
            return torch.where(h > 0, torch.ones_like(h), torch.full_like(h, node.options["negative_slope"]))
        case "hardtanh":
            return ((h > float(node.options["min_val"])) & (h < float(node.options["max_val"]))).to(FLOAT)
        case "silu":
            return torch.sigmoid(h)
        case "gelu":
            return torch.special.ndtr(h)
        case "hardswish":
            return (h + 3).clamp(0, 6) / 6
    raise ValueError(node.options["kind"])


def matrix(network: Network, node: Node, argument: int, values: list[Tensor]) -> Tensor:
    """What one node does to one of the arguments that it is linear in, as an (outputs, inputs) matrix."""
    if node.op == "relu":
        return slope(node, values[node.inputs[0]]).diag()
    shapes = [network.nodes[i].shape for i in node.inputs]
    if node.op in ("maxpool", "adaptive_maxpool"):
        pool = F.max_pool2d if node.op == "maxpool" else F.adaptive_max_pool2d
        channels, height, width = shapes[0]
        _, route = pool(values[node.inputs[0]].view(1, *shapes[0]), **node.options, return_indices=True)
        winners = route[0].flatten(1) + height * width * torch.arange(channels)[:, None]
        return F.one_hot(winners.flatten(), channels * height * width).to(FLOAT)
    if node.op == "infinitely padded maxpool":  # who won, by its number in the map without the padding
        channels, height, width = shapes[0]
        numbers = torch.arange(channels * height * width, dtype=FLOAT).view(1, *shapes[0])
        value = values[node.inputs[0]].view(1, *shapes[0])
        pads, options = node.options["padding"], {k: v for k, v in node.options.items() if k != "padding"}
        padded, numbers = F.pad(value, pads, value=-math.inf), F.pad(numbers, pads)
        _, route = F.max_pool2d(padded, **options, return_indices=True)
        winners = numbers.flatten(2).gather(2, route.flatten(2)).flatten().long()
        return F.one_hot(winners, channels * height * width).to(FLOAT)
    # Linear as it is: column i is what the i-th basis vector gives, minus the constant.
    size = math.prod(shapes[argument])
    zeros = [torch.zeros(1, *shape, dtype=FLOAT) for shape in shapes]
    basis = [zero.expand(size, *zero.shape[1:]) for zero in zeros]
    basis[argument] = torch.eye(size, dtype=FLOAT).view(size, *shapes[argument])
    if node.op in HELD:
        image = [values[i].view(1, *shape) for i, shape in zip(node.inputs, shapes, strict=True)]
        one, none = (HELD[node.op](*given, *image, **node.weights, **node.options) for given in (basis, zeros))
        return (one - none).flatten(1).T
    return (evaluate(node, *basis) - evaluate(node, *zeros)).flatten(1).T


def freeze(network: Network, image: Tensor) -> Frozen:
    """Fix every gate and route at X."""
    image = image.to(FLOAT).flatten()
    frozen = Frozen(
        network, [image], [[]], [torch.zeros_like(image)], [torch.eye(len(image), dtype=FLOAT)], [0 * image]
    )
    for node in network.nodes[1:]:
        inputs = [frozen.values[i].view(1, *network.nodes[i].shape) for i in node.inputs]
        value = evaluate(node, *inputs).flatten()
        matrices = [matrix(network, node, argument, frozen.values) for argument in range(len(node.carried))]
        models = [torch.column_stack([frozen.weight[i], frozen.bias[i], frozen.values[i]]) for i in node.carried]
        model = torch.stack([m @ below for m, below in zip(matrices, models, strict=True)]).sum(0)
        constant = value - model[:, -1]
        frozen.weight.append(model[:, :-2])
        frozen.bias.append(model[:, -2] + constant)
        frozen.values.append(value)
        frozen.matrices.append(matrices)
        frozen.constants.append(constant)
    return frozen


def hidden_layers(network: Network) -> dict[int, list[int]]:
    """The ReLU nodes of each hidden layer n = 1 … N, in order of execution, by their longest route to the output.

    A class layer belongs to the output and is not counted, nor is what only decides a multiplier.
    """
    class_relus = class_layer(network)
    relus = [relu for relu in network.relus if relu not in class_relus]
    distance = _distances(network, relus)
    count = max(distance)
    return {n: [relu for relu in relus if count - distance[relu] + 1 == n] for n in range(1, count + 1)}


def _distances(network: Network, relus: list[int]) -> list[int]:
    """Of each node, the largest number of ReLUs on a route to the output, itself included; -1 without a route."""
    distance = [-1] * len(network.nodes)
    distance[-1] = 0
    for position in reversed(range(len(network.nodes))):
        for source in network.nodes[position].carried if distance[position] >= 0 else ():
            distance[source] = max(distance[source], distance[position] + (source in relus))
    return distance


@functools.cache
def class_layer(network: Network) -> frozenset[int]:
    """The ReLUs of the top layer where each of its units sends to one class only; none where there is no layer below it."""
    distance = _distances(network, network.relus)
    top = frozenset(relu for relu in network.relus if distance[relu] == 1)
    if network.outputs == 1 or max(distance) == 1:
        return frozenset()
    frozen = freeze(network, network.images(1, 0)[0])
    sent = land(frozen, {len(network.nodes) - 1: torch.eye(network.outputs, dtype=FLOAT)}, frozenset())
    one_class = all(bool(((sent[relu] != 0).sum(0) <= 1).all()) for relu in top)
    return top if one_class else frozenset()


def land(frozen: Frozen, seeds: dict[int, Tensor], class_relus: frozenset[int]) -> dict[int, Tensor]:
    """Send rows of cotangents from nodes down to where they land: the next ReLU outputs, or the input.

    Nothing passes a ReLU, so this is what is sent directly, without meeting any hidden unit on the way. Only those of a
    class layer are passed.
    """
    cotangents = dict(seeds)
    landed = {}
    for position in reversed(range(len(frozen.network.nodes))):
        if position not in cotangents:
            continue
        node, rows = frozen.network.nodes[position], cotangents[position]
        if node.op == "input" or (node.op == "relu" and position not in class_relus):
            landed[position] = rows
            continue
        for m, source in zip(frozen.matrices[position], node.carried, strict=True):
            cotangents[source] = cotangents.get(source, 0) + rows @ m
    return landed


# --- Importance -------------------------------------------------------------------------------------------------------


def margins(z: Tensor, target: int) -> Tensor:
    """What units are ranked by: 0 exactly where z = 0, in the order of the importances. z is (classes, units)."""
    others = torch.cat([z[:target], z[target + 1 :]])
    most = others.max(0).values
    return z[target] - most - torch.expm1(others - most).mean(0).log1p()


def importance_of(margin: Tensor, classes: int) -> Tensor:
    return torch.sigmoid(margin - math.log(classes - 1))


def threshold(alpha: float, classes: int) -> float:
    """The margin that stands for an importance of alpha; exactly 0 for alpha = 1/C."""
    if alpha in (0.0, 1.0):
        return math.inf * (2 * alpha - 1)
    return 0.0 if alpha == 1 / classes else math.log(alpha / (1 - alpha)) + math.log(classes - 1)


# --- Algorithm 1 ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """One kept unit. `relu` is the position of its tensor within the layer, in order of execution."""

    relu: int
    index: tuple[int, ...]
    activation: float
    weight: float
    contribution: float
    importance: float


@dataclass(frozen=True)
class Layer:
    """The kept units of one layer, by falling importance.

    Args:
        nodes: the layer's ReLU nodes, in order of execution.
        kept: flat indices over all the units of the layer, `nodes` one after the other.
        gap: how far the decision was from going otherwise, in units of the margin.
        edges: for each layer above, None for the class: (kept units here, kept units there, or 1), what the one sends to
            the target through the other.
    """

    layer: int
    nodes: tuple[int, ...]
    below_alpha: bool
    kept: tuple[int, ...]
    units: tuple[Unit, ...]
    gap: float
    edges: dict[int | None, Tensor]


@dataclass(frozen=True, eq=False)
class Reference:
    """What `pathx.explain` must return for one image, and the frozen network that it was computed from."""

    target: int
    path: tuple[Layer, ...]
    attribution: Tensor
    weight: Tensor
    bias: float
    score: float
    logits: Tensor
    frozen: Frozen

    @property
    def gap(self) -> float:
        """Below rounding, another order of summation may rightly keep other units: structural ties."""
        return min(layer.gap for layer in self.path)


def explain(
    network: Network,
    image: Tensor,
    *,
    target: int | None = None,
    depth: int | str = 3,
    width: int | str = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
    against: int | None = None,
    only: tuple[int, int] | None = None,
    importance: str = "paper",
) -> Reference:
    """Algorithm 1 and the linear model of its path.

    Args:
        against: the classes are the target and this one alone, and what is explained is the difference of the two.
        only: fix the path in one layer to one unit (layer, flat index), as a decomposition does, and drop what jumps
            over that layer.
        importance: "effect" ranks units by their first-order effect on the log-odds of the target instead.
    """
    frozen = freeze(network, image)
    layers = hidden_layers(network)
    last = len(layers)
    deepest = 1 if depth == "all" else last - int(depth) + 1
    assert 1 <= deepest <= last, "depth beyond the network"
    logits, target, start = _classes(network, frozen.values[-1], target)
    at, explained = target, torch.eye(network.classes, dtype=FLOAT)[target]  # where the target is, and what to explain
    if against is not None:
        start, at, explained = start[[target, against]], 0, torch.tensor([1.0, -1.0], dtype=FLOAT)
    classes = len(start)
    by_effect = importance == "effect"
    default = 0.0 if by_effect else 1 / classes
    alpha = default if alpha is None else alpha
    # The gradient of log p_t - log(1 - p_t) by the logits: 1 at the target, -p_c / (1 - p_t) elsewhere.
    p = (logits if against is None else logits[[target, against]]).softmax(0)
    others = p.clone().index_fill_(0, torch.tensor(at), 0.0)
    log_odds = torch.eye(classes, dtype=FLOAT)[at] - others / others.sum()

    # What was sent so far: from the logits, then from the kept units of each layer, W_prev (classes, kept) and the full
    # Jacobian of those units, where it lands.
    output = len(network.nodes) - 1
    sent: list[tuple[int | None, Tensor, dict[int, Tensor]]]  # (layer, W_prev, Jacobian); layer None for the logits
    class_relus = class_layer(network)
    sent = [(None, start, land(frozen, {output: torch.eye(network.outputs, dtype=FLOAT)}, class_relus))]
    path = []
    for n in range(last, deepest - 1, -1):
        relus = layers[n]
        slopes = torch.cat([frozen.slope(relu) for relu in relus])
        h = torch.cat([frozen.values[frozen.before(relu)] for relu in relus])
        activation = torch.cat([frozen.values[relu] for relu in relus])

        # 1. W = W_prev · ∂h⁽ⁿ⁺¹⁾[path]/∂h⁽ⁿ⁾; with skips = all also what the layers above n+1 send here directly.
        W = torch.zeros(classes, len(h), dtype=FLOAT)
        edges: dict[int | None, Tensor] = {}
        for above, W_prev, jacobian in sent if skips == "all" else sent[-1:]:
            J = _columns(frozen, jacobian, relus, W_prev.shape[1]) * slopes
            W = W + W_prev @ J
            through = (explained @ W_prev)[:, None] * J * h
            edges[above] = (through.sum(0, keepdim=True) if above is None else through).T

        # 2. Importance.
        margin = log_odds @ W * h if by_effect else margins(W * h, at)
        shown = margin if by_effect else importance_of(margin, classes)

        # 3. Keep. A unit that is not active, or sends nothing to any class, is no candidate.
        live = (slopes != 0) & (
            margin != 0 if by_effect else (W * h != 0).any(0)
        )  # a unit with z = 0 can never be kept
        if only is not None and n == only[0]:
            live = torch.arange(len(h)) == only[1]
            sent = []
        ranked = sorted(live.nonzero().flatten().tolist(), key=lambda unit: (-float(margin[unit]), unit))
        least = alpha if by_effect else threshold(alpha, classes)
        passing = [unit for unit in ranked if margin[unit] > least]
        kept = (passing if width == "all" else passing[: int(width)]) or ranked[:1]
        gaps = [abs(float(margin[unit]) - least) for unit in ranked]
        gaps += [float(margin[a] - margin[b]) for a, b in itertools.pairwise(ranked[len(kept) - 1 : len(kept) + 1])]

        # 4. W_prev = W[:, kept].
        jacobian = land(frozen, _identities(frozen, relus), class_relus)
        sent.append((n, W[:, kept], {spot: rows[kept] for spot, rows in jacobian.items()}))

        owner = [(which, flat) for which, relu in enumerate(relus) for flat in range(len(frozen.values[relu]))]
        units = tuple(
            Unit(
                relu=owner[unit][0],
                index=_unravel(owner[unit][1], network.nodes[relus[owner[unit][0]]].shape),
                activation=float(activation[unit]),
                weight=float(explained @ W[:, unit] / slopes[unit]),
                contribution=float(explained @ W[:, unit] * h[unit]),
                importance=float(shown[unit]),
            )
            for unit in kept
        )
        edges = {above: value[kept] for above, value in edges.items()}
        path.append(Layer(n, tuple(relus), not passing, tuple(kept), units, min(gaps, default=math.inf), edges))

    # The linear model. f₁ is the frozen network from X to h⁽ᵐ⁾: nothing masked, all skips.
    W_prev, kept = explained @ sent[-1][1], list(path[-1].kept)
    relus = layers[deepest]
    W1 = torch.cat([frozen.weight[frozen.before(relu)] for relu in relus])[kept]
    b1 = torch.cat([frozen.bias[frozen.before(relu)] for relu in relus])[kept]
    h = torch.cat([frozen.values[frozen.before(relu)] for relu in relus])[kept]
    weight, bias, score = W_prev @ W1, W_prev @ b1, W_prev @ h
    if skips == "all":  # what jumps over layer m, taken where it lands: the next ReLU outputs below m, or X itself
        below = [0, *(relu for n in range(1, deepest) for relu in layers[n])]
        for _, W_above, jacobian in sent[:-1]:
            for spot in set(below) & set(jacobian):
                rows = explained @ W_above @ jacobian[spot]
                weight = weight + rows @ frozen.weight[spot]
                bias = bias + rows @ frozen.bias[spot]
                score = score + rows @ frozen.values[spot]
    weight = weight.view(network.input_shape)
    attribution = weight * image.to(FLOAT)
    return Reference(target, tuple(path), attribution, weight, float(bias), float(score), logits, frozen)


def _classes(network: Network, output: Tensor, target: int | None) -> tuple[Tensor, int, Tensor]:
    """Logits, target, and the first W_prev (classes, outputs).

    One logit y is two classes with logits (0, y). Softmax sees differences only, so (-y, 0) is the same; that is how
    the negative class has something to explain: "negative minus positive".
    """
    if network.outputs > 1:
        return output, int(output.argmax()) if target is None else target, torch.eye(network.outputs, dtype=FLOAT)
    logits = torch.cat([torch.zeros(1, dtype=FLOAT), output])
    target = int(logits.argmax()) if target is None else target
    return logits, target, torch.tensor([[0.0], [1.0]] if target == 1 else [[-1.0], [0.0]], dtype=FLOAT)


def _identities(frozen: Frozen, relus: list[int]) -> dict[int, Tensor]:
    """One row per unit of a layer, seeded at its pre-activation."""
    sizes = [len(frozen.values[relu]) for relu in relus]
    seeds: dict[int, Tensor] = {}
    for relu, block in zip(relus, torch.split(torch.eye(sum(sizes), dtype=FLOAT), sizes, dim=1), strict=True):
        seeds[frozen.before(relu)] = seeds.get(frozen.before(relu), 0) + block
    return seeds


def _columns(frozen: Frozen, jacobian: dict[int, Tensor], relus: list[int], rows: int) -> Tensor:
    """The part of a Jacobian that lands on one layer: (rows, units)."""
    nothing = [torch.zeros(rows, len(frozen.values[relu]), dtype=FLOAT) for relu in relus]
    return torch.cat([jacobian.get(relu, zero) for relu, zero in zip(relus, nothing, strict=True)], dim=1)


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), shape))


# --- Law 13: removal --------------------------------------------------------------------------------------------------


def logits_without(network: Network, image: Tensor, units: set[tuple[int, int]]) -> Tensor:
    """What the network answers with units, (ReLU node, flat element), set to zero: everything else is free to follow."""
    values = [image.to(FLOAT)[None]]
    for position, node in enumerate(network.nodes[1:], start=1):
        value = evaluate(node, *(values[i] for i in node.inputs)).clone(memory_format=torch.contiguous_format)
        value.view(-1)[[element for relu, element in units if relu == position]] = 0
        values.append(value)
    return values[-1].flatten()


# --- Law 3: the sum over one-way paths --------------------------------------------------------------------------------


def edges(
    network: Network, position: int, element: int, values: list[Tensor]
) -> tuple[list[tuple[int, int, float]], float]:
    """Where one number of a tiny network comes from: (node, element, factor) each, and a constant."""
    node = network.nodes[position]
    source = node.inputs[0]
    came, here = network.nodes[source].shape, network.nodes[position].shape
    at = _unravel(element, here)

    def flat(*index: int) -> int:
        return int(sum(i * math.prod(came[axis + 1 :]) for axis, i in enumerate(index)))

    match node.op:
        case "linear":
            weight, bias = node.weights["weight"][at[0]], node.weights.get("bias")
            return [(source, i, float(w)) for i, w in enumerate(weight)], 0.0 if bias is None else float(bias[at[0]])
        case "conv":
            weight, bias = node.weights["weight"], node.weights.get("bias")
            per_group, first = weight.shape[1], at[0] // (here[0] // node.options["groups"]) * weight.shape[1]
            taps = []
            for c, ky, kx in itertools.product(range(per_group), range(weight.shape[2]), range(weight.shape[3])):
                y, x = (
                    at[1 + axis] * _pair(node, "stride")[axis]
                    + k * _pair(node, "dilation")[axis]
                    - _pair(node, "padding")[axis]
                    for axis, k in enumerate((ky, kx))
                )
                if 0 <= y < came[1] and 0 <= x < came[2]:
                    taps.append((source, flat(first + c, y, x), float(weight[at[0], c, ky, kx])))
            return taps, 0.0 if bias is None else float(bias[at[0]])
        case "batchnorm":
            mean, var = node.weights["running_mean"][at[0]], node.weights["running_var"][at[0]]
            scale = float(node.weights["weight"][at[0]] / (var + 1e-5).sqrt())
            return [(source, element, scale)], float(node.weights["bias"][at[0]] - mean * scale)
        case "maxpool" | "adaptive_maxpool" | "avgpool" | "adaptive_avgpool":
            window = [flat(at[0], y, x) for y, x in itertools.product(*_window(node, came, here, at))]
            if "max" in node.op:
                return [(source, max(window, key=lambda i: (values[source][i], -i)), 1.0)], 0.0
            return [(source, i, 1 / _divisor(node, came, at, len(window))) for i in window], 0.0
        case "flatten":
            return [(source, element, 1.0)], 0.0
        case "add":
            return [(i, element, 1.0) for i in node.inputs], 0.0
        case "concat":
            for i in node.inputs:
                size = math.prod(network.nodes[i].shape)
                if element < size:
                    return [(i, element, 1.0)], 0.0
                element -= size
        case "relu":
            h = values[source][element]
            factor = float(slope(node, h))
            return [(source, element, factor)], float(evaluate(node, h) - factor * h)
    raise ValueError(f"no such operation: {node.op}")


def _pair(node: Node, option: str) -> tuple[int, int]:
    """An option of a convolution or pooling for both axes."""
    value = node.options.get(option, {"padding": 0, "dilation": 1}.get(option))
    return value if isinstance(value, tuple) else (value, value)


def _window(node: Node, came: tuple[int, ...], here: tuple[int, ...], at: tuple[int, ...]) -> list[list[int]]:
    """The rows and the columns that one pooled element looks at."""
    axes = []
    for axis, (size, out, i) in enumerate(zip(came[1:], here[1:], at[1:], strict=True)):
        if "adaptive" in node.op:
            axes.append(list(range(i * size // out, -((-(i + 1) * size) // out))))
            continue
        start = i * _pair(node, "stride")[axis] - _pair(node, "padding")[axis]
        taps = [start + k * _pair(node, "dilation")[axis] for k in range(_pair(node, "kernel_size")[axis])]
        axes.append([tap for tap in taps if 0 <= tap < size])
    return axes


def _divisor(node: Node, came: tuple[int, ...], at: tuple[int, ...], inside: int) -> int:
    """An average counts the padding unless told not to, but never what the ceiling adds beyond it."""
    if "adaptive" in node.op or not node.options.get("count_include_pad", True):
        return inside
    extent = 1
    for axis in (0, 1):
        padding = _pair(node, "padding")[axis]
        start = at[1 + axis] * _pair(node, "stride")[axis] - padding
        extent *= min(start + _pair(node, "kernel_size")[axis], came[1 + axis] + padding) - start
    return extent


def one_way_paths(
    network: Network, image: Tensor, target: int, path: dict[int, set[tuple[int, int]]], skips: str = "adjacent"
) -> Iterator[tuple[int | None, float]]:
    """Every one-way path inside a path, from a logit down: (input element, or None for a constant; product of weights).

    Args:
        path: for each of its layers n the kept units, as (ReLU node, flat element).
    """
    values = freeze(network, image).values
    layer_of = {relu: n for n, relus in hidden_layers(network).items() for relu in relus}
    deepest = min(path)

    def walk(
        position: int, element: int, product: float, above: int, below: bool
    ) -> Iterator[tuple[int | None, float]]:
        """`above`: the last layer met. `below`: the route has left the path, into the network that nothing masks."""
        node = network.nodes[position]
        if node.op == "input":
            if below or skips == "all":
                yield element, product
            return
        if node.op == "relu" and not below:
            n = layer_of[position]
            if n >= deepest and (position, element) not in path[n]:
                return
            if skips == "adjacent" and n != above - 1:
                return
            above, below = n, n <= deepest
        sources, constant = edges(network, position, element, values)
        if below and constant:
            yield None, product * constant
        for source, came_from, factor in sources:
            if factor:
                yield from walk(source, came_from, product * factor, above, below)

    yield from walk(len(network.nodes) - 1, target, 1.0, max(layer_of.values()) + 1, False)


def sum_of_one_way_paths(network: Network, image: Tensor, reference: Reference, skips: str) -> tuple[Tensor, float]:
    """Weight and bias of a path's linear model, one-way path by one-way path (for networks of two logits and more)."""
    path = {}
    for layer in reference.path:
        shapes = [network.nodes[node].shape for node in layer.nodes]
        path[layer.layer] = {
            (
                layer.nodes[unit.relu],
                sum(i * math.prod(shapes[unit.relu][axis + 1 :]) for axis, i in enumerate(unit.index)),
            )
            for unit in layer.units
        }
    weight, bias = torch.zeros(math.prod(network.input_shape), dtype=FLOAT), 0.0
    for element, product in one_way_paths(network, image, reference.target, path, skips):
        if element is None:
            bias += product
        else:
            weight[element] += product
    return weight.view(network.input_shape), bias
