"""Small random networks, written down so that both PyTorch and a slow reference can run them.

A `Network` is a list of `Node`s in order of execution: node 0 is the input, the last one the logits. `Network.module()`
spells it as an ordinary `nn.Module` (in-place, functional, re-used ReLUs and all); `evaluate` says what each node
means, and the reference interprets the nodes one by one, so that it needs neither hooks nor tracing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

FLOAT = torch.float64


@dataclass(frozen=True, eq=False)
class Node:
    """One operation.

    Args:
        op: a key of `OPERATIONS`, or "input".
        inputs: positions of the nodes that it reads.
        options: what `torch.nn.functional` takes beside tensors; for an activation also its `kind`.
        weights: named as in the `nn.Module` of that operation.
        spelling: how `Network.module` writes it down; of no meaning to the result.
    """

    op: str
    inputs: tuple[int, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    weights: dict[str, Tensor] = field(default_factory=dict)
    spelling: str = "module"
    shape: tuple[int, ...] = ()  # of the output, for one image

    @property
    def carried(self) -> tuple[int, ...]:
        """The inputs that it is linear in once its multipliers are held."""
        return self.inputs[:1] if self.op == "gate" else self.inputs


# What an activation does, as torch has it.
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": lambda h: h.clamp(min=0),
    "relu6": lambda h: h.clamp(0, 6),
    "leaky_relu": lambda h, negative_slope: torch.where(h > 0, h, negative_slope * h),
    "hardtanh": lambda h, min_val, max_val: h.clamp(min_val, max_val),
    "silu": lambda h: h * torch.sigmoid(h),
    "gelu": lambda h: h * torch.special.ndtr(h),
    "hardswish": lambda h: h * (h + 3).clamp(0, 6) / 6,
}
SMOOTH = ("silu", "gelu", "hardswish")
"""Activations that multiply h by a number that depends on h."""


def _activation(h: Tensor, kind: str, **options: float) -> Tensor:
    return ACTIVATIONS[kind](h, **options)


def infinitely_padded_maxpool(x: Tensor, padding: tuple[int, ...], **options: Any) -> Any:
    """How "same" padding is spelled where a framework's own is asymmetric."""
    return F.max_pool2d(F.pad(x, padding, value=-math.inf), **options)


# Crops of a map by (left, right, top, bottom), in the ways that people write them.
CROPS: dict[str, Callable[[Tensor, int, int, int, int], Tensor]] = {
    "slice": lambda x, a, b, c, d: x[:, :, c : x.shape[2] - d, a : x.shape[3] - b],
    "negative slice": lambda x, a, b, c, d: x[..., c : -d or None, a : -b or None],
    "narrow": lambda x, a, b, c, d: x.narrow(2, c, x.shape[2] - c - d).narrow(3, a, x.shape[3] - a - b),
    "negative padding": lambda x, a, b, c, d: F.pad(x, (-a, -b, -c, -d)),
    "split": lambda x, a, b, c, d: x.split([c, x.shape[2] - c - d, d], 2)[1].split([a, x.shape[3] - a - b, b], 3)[1],
    "rows by number": lambda x, a, b, c, d: torch.stack(
        [x[:, :, row] for row in range(c, x.shape[2] - d)], 2
    ).index_select(3, torch.arange(a, x.shape[3] - b, device=x.device)),
    "joined": lambda x, a, b, c, d: torch.cat(
        [x[:, :, c : c + 1, a : x.shape[3] - b], x[:, :, c + 1 : x.shape[2] - d, a : x.shape[3] - b]], 2
    ),
}

# Arithmetic with a constant, which may be one number per channel.
WITH_A_CONSTANT: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "x - constant": lambda x, constant: x - constant,
    "constant - x": lambda x, constant: constant - x,
    "x + constant": lambda x, constant: x + constant,
    "x * constant": lambda x, constant: x * constant,
    "x / constant": lambda x, constant: x / constant,
    "x - 2 * constant": lambda x, constant: torch.sub(x, constant, alpha=2),
    "constant - 2 * x": lambda x, constant: torch.sub(constant, x, alpha=2),
}

# Maps whose elements change places, or mix, in some linear way.
MOVES: dict[str, Callable[[Tensor], Tensor]] = {
    "flip": lambda x: x.flip(3),
    "roll": lambda x: x.roll((1, -2), (2, 3)),
    "transposed": lambda x: x.transpose(2, 3),
    "reflected": lambda x: F.pad(x, (1, 0, 2, 1), mode="reflect"),
    "replicated": lambda x: F.pad(x, (0, 2, 1, 0), mode="replicate"),
    "circular": lambda x: F.pad(x, (1, 1, 0, 2), mode="circular"),
    "every other": lambda x: x[:, :, ::2, 1::2],
    "repeated": lambda x: x.repeat(1, 1, 1, 2)[..., 1:],
    "enlarged": lambda x: F.interpolate(x, scale_factor=2)[:, :, 1:-2, 3:],
    "channels by pixels": lambda x: F.pixel_unshuffle(x[:, :, : x.shape[2] // 2 * 2, : x.shape[3] // 2 * 2], 2),
    "one channel": lambda x: x[:, :1].expand(-1, 2, -1, -1),
    "cumulative": lambda x: x.cumsum(3),
}


def _norm(x: Tensor, at: Tensor, dims: tuple[int, ...], weight: Tensor, bias: Tensor) -> Tensor:
    centred, there = (value - value.mean(dims, keepdim=True) for value in (x, at))
    scale = (there.square().mean(dims, keepdim=True) + 1e-5).rsqrt()
    shape = (-1, *[1] * (x.dim() - 2))
    return centred * scale * weight.view(shape) + bias.view(shape)


def _attend(x: Tensor, at: Tensor, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    tokens, there = (value.flatten(2).transpose(1, 2) for value in (x, at))  # (B, places, channels)
    pattern = (there @ query.T @ (there @ key.T).mT / math.sqrt(len(query))).softmax(-1)
    return (pattern @ (tokens @ value.T)).transpose(1, 2).unflatten(2, x.shape[2:])


# What multiplies by what it computed: (inputs…, inputs at the image…, **weights, **options) -> output, with the factors held
# as they are at the image.
HELD: dict[str, Callable[..., Tensor]] = {
    "gate": lambda x, s, _, at: x * torch.sigmoid(at),
    "norm": _norm,
    "attention": _attend,
}


# What a node computes: (inputs…, **weights, **options) -> output, with a leading batch dimension.
OPERATIONS: dict[str, Callable[..., Tensor]] = {
    "conv": F.conv2d,
    "linear": F.linear,
    "batchnorm": lambda x, **weights: F.batch_norm(x, **weights),  # eval mode: the running statistics are used
    "maxpool": F.max_pool2d,
    "adaptive_maxpool": F.adaptive_max_pool2d,
    "avgpool": F.avg_pool2d,
    "adaptive_avgpool": F.adaptive_avg_pool2d,
    "mean": lambda x: x.mean(dim=(2, 3)),
    "flatten": lambda x: x.flatten(1),
    "dropout": lambda x, p: x,  # eval mode
    "add": lambda a, b: a + b,
    "concat": lambda *parts: torch.cat(parts, 1),
    "relu": _activation,
    "crop": lambda x, sides: CROPS["slice"](x, *sides),
    "pad": F.pad,
    "infinitely padded maxpool": infinitely_padded_maxpool,
    "constant": lambda x, kind, constant: WITH_A_CONSTANT[kind](x, constant),
    "conv_transpose": F.conv_transpose2d,
    "move": lambda x, kind: MOVES[kind](x),
    **{name: lambda *inputs, held=held, **more: held(*inputs, *inputs, **more) for name, held in HELD.items()},
}


def evaluate(node: Node, *inputs: Tensor) -> Tensor:
    """The output of one node for a batch of inputs."""
    return OPERATIONS[node.op](*inputs, **node.weights, **node.options)


@dataclass(frozen=True, eq=False)
class Network:
    """Nodes in order of execution, from the input to the logits.

    Args:
        ending: what follows the logits in the module: "logits" (nothing), "softmax", "log_softmax" or "sigmoid".
        recipe: the call that makes it again.
    """

    nodes: tuple[Node, ...]
    ending: str = "logits"
    recipe: str = ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.nodes[0].shape

    @property
    def outputs(self) -> int:
        return self.nodes[-1].shape[0]

    @property
    def classes(self) -> int:
        """One logit means two classes, negative and positive."""
        return max(2, self.outputs)

    @property
    def relus(self) -> list[int]:
        return [position for position, node in enumerate(self.nodes) if node.op == "relu"]

    @property
    def exact(self) -> str:
        """How far its frozen network reaches: what never carries anything to the logits does not count."""
        reached = {len(self.nodes) - 1}
        for position in reversed(range(len(self.nodes))):
            reached |= {*self.nodes[position].carried} if position in reached else set()
        nodes = (self.nodes[position] for position in reached)
        held = any(node.op in HELD or node.options.get("kind") in SMOOTH for node in nodes)
        return "image" if held else "region"

    def images(self, count: int, seed: int) -> Tensor:
        return torch.randn(count, *self.input_shape, dtype=FLOAT, generator=torch.Generator().manual_seed(seed))

    def module(self) -> nn.Module:
        """The network as a float64 module in eval mode; its `.code` can be read."""
        return _spell(self)

    def __repr__(self) -> str:
        lines = []
        for position, node in enumerate(self.nodes):
            options = {**node.options, **{name: list(value.shape) for name, value in node.weights.items()}}
            reads = ", ".join(f"%{i}" for i in node.inputs)
            lines.append(f"%{position} = {node.op}({reads}) {options or ''} [{node.spelling}] -> {list(node.shape)}")
        return f"{self.recipe or 'Network'}:\n  " + "\n  ".join(lines) + f"\n  -> {self.ending}\n"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        """How hypothesis shows a network that breaks a law."""
        printer.text(repr(self))


# --- Spelling: from nodes to a module ---------------------------------------------------------------------------------


def _spell(network: Network) -> nn.Module:
    modules: dict[str, nn.Module] = {}
    graph = fx.Graph()
    written: list[fx.Node] = []

    def call(name: str, module: nn.Module, *args: Any) -> fx.Node:
        modules.setdefault(name, module)
        return graph.call_module(name, args)

    for position, node in enumerate(network.nodes):
        args = [written[i] for i in node.inputs]
        shapes = [network.nodes[i].shape for i in node.inputs]
        if node.op == "input":
            result = graph.placeholder("x")
        elif node.op == "relu":
            result = _spell_activation(graph, call, f"relu{position}", node, args[0])
        elif node.op == "add":
            result = graph.call_function({"a + b": operator.add, "a += b": operator.iadd}[node.spelling], tuple(args))
        elif node.op == "concat":
            result = graph.call_function(torch.cat, (args, 1))
        elif node.op == "crop":
            result = graph.call_function(CROPS[node.spelling], (args[0], *node.options["sides"]))
        elif node.op == "pad":
            result = graph.call_function(F.pad, (args[0],), node.options)
        elif node.op == "infinitely padded maxpool":
            result = graph.call_function(infinitely_padded_maxpool, (args[0],), node.options)
        elif node.op == "move":
            result = graph.call_function(MOVES[node.options["kind"]], (args[0],))
        elif node.op == "constant":
            result = call(f"constant{position}", WithAConstant(**node.options, **node.weights), args[0])
        elif node.op == "mean":
            result = graph.call_method("mean", (args[0], [2, 3]))
        elif node.op == "gate":
            result = graph.call_function(operator.mul, (args[0], graph.call_function(torch.sigmoid, (args[1],))))
        elif node.op == "flatten" and node.spelling == "view":
            size = graph.call_method("size", (args[0], 0))
            result = graph.call_method("view", (args[0], size, -1))
        elif node.op == "flatten" and node.spelling == "function":
            result = graph.call_function(torch.flatten, (args[0], 1))
        else:
            result = call(f"{node.op}{position}", _layer(node, shapes[0]), args[0])
        written.append(result)

    result = written[-1]
    if network.ending == "softmax":
        result = call("softmax", nn.Softmax(dim=1), result)
    elif network.ending == "log_softmax":
        result = graph.call_function(F.log_softmax, (result,), {"dim": 1})
    elif network.ending == "sigmoid":
        result = graph.call_function(torch.sigmoid, (result,))
    graph.output(result)
    return fx.GraphModule(modules, graph, class_name="RandomNetwork").eval()


class ChannelNorm(nn.LayerNorm):
    """Over the channels at every place."""

    def forward(self, x: Tensor) -> Tensor:
        made = F.layer_norm(x.movedim(1, -1), self.normalized_shape, self.weight, self.bias, self.eps)
        return made.movedim(-1, 1).contiguous()


class Attention(nn.Module):
    """Of every place to every other."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(channels, channels, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        made = F.scaled_dot_product_attention(self.query(tokens), self.key(tokens), self.value(tokens))
        return made.transpose(1, 2).reshape(x.shape)


class WithAConstant(nn.Module):
    """A layer of arithmetic with a buffer."""

    constant: Tensor

    def __init__(self, kind: str, constant: Tensor) -> None:
        super().__init__()
        self.function = WITH_A_CONSTANT[kind]
        self.register_buffer("constant", constant)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.constant)


def _spell_activation(graph: fx.Graph, call: Callable[..., fx.Node], name: str, node: Node, h: fx.Node) -> fx.Node:
    options = {key: value for key, value in node.options.items() if key != "kind"}
    kind = node.options["kind"]
    layers: dict[str, Callable[..., nn.Module]] = {
        **{"relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "hardtanh": nn.Hardtanh},
        **{"silu": nn.SiLU, "gelu": nn.GELU, "hardswish": nn.Hardswish},
    }
    match node.spelling:
        case "module":
            return call(name, layers[kind](**options), h)
        case "module, in place":
            return call(name, layers[kind](**options, inplace=True), h)
        case "module, re-used":
            return call(f"shared_{kind}", layers[kind](**options), h)
        case "function":
            return graph.call_function(getattr(F, kind), (h,), options)
        case "function, in place":
            return graph.call_function(getattr(F, kind), (h,), {**options, "inplace": True})
        case "torch.relu":
            return graph.call_function(torch.relu, (h,))
        case "method":
            return graph.call_method("relu", (h,))
        case "method, in place":
            return graph.call_method("relu_", (h,))
    raise ValueError(f"no such spelling: {node.spelling}")


def _layer(node: Node, shape: tuple[int, ...]) -> nn.Module:
    weights, options = node.weights, node.options
    layer: nn.Module
    match node.op:
        case "conv":
            out_channels, _, *kernel = weights["weight"].shape
            size = (kernel[0], kernel[1])
            layer = nn.Conv2d(shape[0], out_channels, size, bias="bias" in weights, **options)
        case "conv_transpose":
            _, out_channels, *kernel = weights["weight"].shape
            size = (kernel[0], kernel[1])
            layer = nn.ConvTranspose2d(shape[0], out_channels, size, bias="bias" in weights, **options)
        case "linear":
            layer = nn.Linear(shape[0], weights["weight"].shape[0], bias="bias" in weights)
        case "batchnorm":
            layer = nn.BatchNorm2d(shape[0]) if len(shape) == 3 else nn.BatchNorm1d(shape[0])
        case "maxpool":
            layer = nn.MaxPool2d(**options)
        case "adaptive_maxpool":
            layer = nn.AdaptiveMaxPool2d(**options)
        case "avgpool":
            layer = nn.AvgPool2d(**options)
        case "adaptive_avgpool":
            layer = nn.AdaptiveAvgPool2d(**options)
        case "norm":
            whole = len(options["dims"]) > 1
            layer = nn.GroupNorm(1, shape[0]) if whole else ChannelNorm(shape[0])
        case "attention":
            layer = Attention(shape[0])
            weights = {f"{name}.weight": value for name, value in weights.items()}
        case "flatten":
            layer = nn.Flatten()
        case "dropout":
            layer = nn.Dropout(**options)
        case _:
            raise ValueError(f"no such operation: {node.op}")
    layer.to(FLOAT).load_state_dict(weights, strict=False)
    return layer


def worked_example() -> Network:
    """The paper's: h¹ = (-x₁ + x₂, x₁ + x₂ - 4), h² = ReLU(h¹₁) - ReLU(h¹₂) + 2, y = ReLU(h²) - 1."""

    def linear(source: int, weight: list[list[float]], bias: list[float]) -> Node:
        weights = {"weight": torch.tensor(weight, dtype=FLOAT), "bias": torch.tensor(bias, dtype=FLOAT)}
        return Node("linear", (source,), weights=weights, shape=(len(bias),))

    return Network(
        (
            Node("input", shape=(2,)),
            linear(0, [[-1, 1], [1, 1]], [0, -4]),
            Node("relu", (1,), {"kind": "relu"}, shape=(2,)),
            linear(2, [[1, -1]], [2]),
            Node("relu", (3,), {"kind": "relu"}, shape=(1,)),
            linear(4, [[1]], [-1]),
        )
    )
