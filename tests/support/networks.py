"""Small random networks, written down so that both PyTorch and a slow reference can run them.

A `Network` is a list of `Node`s in order of execution: node 0 is the input, the last one the logits. `Network.module()`
spells it as an ordinary `nn.Module` (in-place, functional, re-used ReLUs and all); `evaluate` says what each node
means, and the reference interprets the nodes one by one, so that it needs neither hooks nor tracing.
"""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
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


# What an activation does, as torch has it.
ACTIVATIONS: dict[str, Callable[..., Tensor]] = {
    "relu": lambda h: h.clamp(min=0),
    "relu6": lambda h: h.clamp(0, 6),
    "leaky_relu": lambda h, negative_slope: torch.where(h > 0, h, negative_slope * h),
    "hardtanh": lambda h, min_val, max_val: h.clamp(min_val, max_val),
}


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
    "lerp": lambda x, constant: torch.lerp(x, constant.expand_as(x), 0.25),
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
    layers = {"relu": nn.ReLU, "relu6": nn.ReLU6, "leaky_relu": nn.LeakyReLU, "hardtanh": nn.Hardtanh}
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
        case "flatten":
            layer = nn.Flatten()
        case "dropout":
            layer = nn.Dropout(**options)
        case _:
            raise ValueError(f"no such operation: {node.op}")
    layer.to(FLOAT).load_state_dict(weights, strict=False)
    return layer


# --- Drawing: from a seed to nodes ------------------------------------------------------------------------------------


class Builder:
    """Appends nodes and runs a few probe images through them, so that shapes follow and values stay near 1."""

    def __init__(self, seed: int, shape: tuple[int, ...], activation: str = "relu") -> None:
        self.choice = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.activation = activation
        self.nodes = [Node("input", shape=shape)]
        self.values = [self.normal(4, *shape)]

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=FLOAT, generator=self.generator)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        return low + (high - low) * torch.rand(*shape, dtype=FLOAT, generator=self.generator)

    def chance(self, probability: float) -> bool:
        return self.choice.random() < probability

    def append(
        self, op: str, *inputs: int, spelling: str = "module", weights: dict[str, Tensor], **options: Any
    ) -> int:
        node = Node(op, inputs, options, weights, spelling)
        value = evaluate(node, *(self.values[i] for i in inputs))
        self.nodes.append(Node(op, inputs, options, weights, spelling, tuple(value.shape[1:])))
        self.values.append(value)
        return len(self.nodes) - 1

    def shape(self, x: int) -> tuple[int, ...]:
        return self.nodes[x].shape

    # Linear operations.

    def _weighted(self, op: str, x: int, weight: Tensor, bias: bool, scale: float, **options: Any) -> int:
        value = evaluate(Node(op, options=options, weights={"weight": weight}), self.values[x])
        weights = {"weight": weight * (scale / value.std().clamp(min=1e-3))}
        if bias:
            weights["bias"] = 0.3 * scale * self.normal(weight.shape[op == "conv_transpose"])
        return self.append(op, x, weights=weights, **options)

    def conv(self, x: int, channels: int, kernel: tuple[int, int] = (1, 1), scale: float = 1.0, **options: Any) -> int:
        options = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1, **options}
        weight = self.normal(channels, self.shape(x)[0] // options["groups"], *kernel)
        return self._weighted("conv", x, weight, self.chance(0.7), scale, **options)

    def linear(self, x: int, features: int, scale: float = 1.0, bias: bool | None = None) -> int:
        weight = self.normal(features, self.shape(x)[0])
        return self._weighted("linear", x, weight, self.chance(0.8) if bias is None else bias, scale)

    def batchnorm(self, x: int) -> int:
        channels = self.shape(x)[0]
        sign = 1 - 2 * (torch.rand(channels, generator=self.generator) < 0.3).to(FLOAT)
        weights = {
            "running_mean": 0.3 * self.normal(channels),
            "running_var": self.uniform(0.5, 2.0, channels),
            "weight": sign * self.uniform(0.5, 1.5, channels),
            "bias": 0.3 * self.normal(channels),
        }
        return self.append("batchnorm", x, weights=weights)

    def maybe_batchnorm(self, x: int) -> int:
        return self.batchnorm(x) if self.chance(0.5) else x

    def any_conv(self, x: int, channels: int) -> int:
        """Any convolution that fits: 1x1, grouped, depthwise, strided, dilated, oblong, padded or not."""
        into, height, width = self.shape(x)
        kinds: list[tuple[tuple[int, int], dict[str, Any]]] = [
            ((1, 1), {}),
            ((3, 3), {"padding": 1}),
            ((3, 3), {"padding": 1, "stride": 2}),
            ((3, 3), {}),
            ((2, 2), {"stride": (2, 1)}),
            ((3, 3), {"dilation": 2, "padding": 2}),
            ((1, 3), {"padding": (0, 1)}),
            ((3, 2), {"padding": (1, 0), "stride": (1, 2), "dilation": (1, 2)}),
        ]
        kernel, options = self.choice.choice(kinds)
        if min(height, width) < 3:
            kernel, options = (1, 1), {}
        if into > 1 and self.chance(0.3):
            options = {**options, "groups": into}
            channels = into * math.ceil(channels / into)
        elif into % 2 == 0 and self.chance(0.3):
            options = {**options, "groups": 2}
            channels += channels % 2
        return self.conv(x, channels, kernel, **options)

    def any_pool(self, x: int) -> int:
        """Any pooling that fits: max, average and adaptive; overlapping, padded, dilated, with a ceiling."""
        _, height, width = self.shape(x)
        if min(height, width) < 3:
            return x
        pools: list[tuple[str, dict[str, Any]]] = [
            ("maxpool", {"kernel_size": 2, "stride": 2}),
            ("maxpool", {"kernel_size": 3, "stride": 2, "padding": 1}),
            ("maxpool", {"kernel_size": 3, "stride": 1, "padding": 1}),
            ("maxpool", {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
            ("maxpool", {"kernel_size": 2, "stride": 1, "dilation": 2}),
            ("maxpool", {"kernel_size": (2, 3), "stride": (1, 2)}),
            ("avgpool", {"kernel_size": 2, "stride": 2}),
            ("avgpool", {"kernel_size": 3, "stride": 2, "padding": 1}),
            ("avgpool", {"kernel_size": 3, "stride": 1, "padding": 1, "count_include_pad": False}),
            ("avgpool", {"kernel_size": 2, "stride": 2, "ceil_mode": True}),
            ("adaptive_avgpool", {"output_size": (2, 3)}),
            ("adaptive_maxpool", {"output_size": (3, 2)}),
        ]
        op, options = self.choice.choice(pools)
        return self.append(op, x, weights={}, **options)

    def any_move(self, x: int) -> int:
        """A crop, a padding, a constant or a change of places: whatever real networks have between their layers."""
        if len(self.shape(x)) == 1:
            return self.constant(x) if self.chance(0.5) else x
        steps = [self.crop, self.pad, self.padded_maxpool, self.constant, self.conv_transpose, self.move]
        return x if min(self.shape(x)[1:]) < 4 else self.choice.choice(steps)(x)

    def crop(self, x: int) -> int:
        sides = tuple(
            self.choice.choice([0, 1, 2]) if size > 5 else self.choice.choice([0, 1])
            for size in (self.shape(x)[2],) * 2 + (self.shape(x)[1],) * 2
        )
        return self.append("crop", x, spelling=self.choice.choice(list(CROPS)), weights={}, sides=sides)

    def pad(self, x: int) -> int:
        pads = tuple(self.choice.choice([-1, 0, 1, 2]) for _ in range(4))
        return self.append("pad", x, weights={}, pad=pads, value=self.choice.choice([0.0, 0.7, -1.3]))

    def padded_maxpool(self, x: int) -> int:
        pads = tuple(self.choice.choice([0, 1]) for _ in range(4))
        stride = self.choice.choice([1, 2])
        return self.append("infinitely padded maxpool", x, weights={}, padding=pads, kernel_size=3, stride=stride)

    def constant(self, x: int) -> int:
        constant = self.uniform(0.5, 1.5, *self.shape(x)[:1], *(1,) * (len(self.shape(x)) - 1))
        return self.append(
            "constant", x, weights={"constant": constant}, kind=self.choice.choice(list(WITH_A_CONSTANT))
        )

    def conv_transpose(self, x: int) -> int:
        """With padding, strides, and output_padding both less and more than the stride."""
        options: dict[str, Any] = self.choice.choice(
            [
                {"padding": 1},
                {"stride": 2, "padding": 1, "output_padding": 1},
                {"stride": (1, 2), "padding": (2, 0)},
                {"dilation": (2, 2), "output_padding": 1, "padding": 2},
            ]
        )
        weight = self.normal(self.shape(x)[0], 2, 3, 3)
        return self._weighted("conv_transpose", x, weight, self.chance(0.7), 1.0, **options)

    def move(self, x: int) -> int:
        return self.append("move", x, weights={}, kind=self.choice.choice(list(MOVES)))

    def add(self, a: int, b: int) -> int:
        return self.append("add", a, b, spelling=self.choice.choice(["a + b", "a += b"]), weights={})

    def concat(self, *parts: int) -> int:
        return self.append("concat", *parts, weights={})

    def flatten(self, x: int) -> int:
        return self.append("flatten", x, spelling=self.choice.choice(["module", "function", "view"]), weights={})

    def relu(self, x: int) -> int:
        """The network's activation in a random spelling; `finish` takes back what would not be safe in place."""
        kind = self.choice.choice(list(ACTIVATIONS)) if self.activation == "mixed" else self.activation
        spellings = ["module", "module, in place", "module, re-used", "function", "function, in place"]
        if kind == "relu":
            spellings += ["torch.relu", "method", "method, in place"]
        options = {"leaky_relu": {"negative_slope": 0.2}, "hardtanh": {"min_val": -0.8, "max_val": 1.2}}.get(kind, {})
        return self.append("relu", x, spelling=self.choice.choice(spellings), weights={}, kind=kind, **options)

    @property
    def scale(self) -> float:
        """ReLU6 clips far out: values have to get there."""
        return 4.0 if self.activation in ("relu6", "mixed") else 1.0

    # Blocks, from one node to another.

    def chain(self, x: int) -> int:
        if len(self.shape(x)) == 1:
            return self.relu(self.maybe_batchnorm(self.linear(x, self.choice.randint(2, 5), self.scale)))
        x = self.relu(self.maybe_batchnorm(self.any_conv(x, self.choice.randint(2, 4))))
        return self.any_pool(x) if self.chance(0.5) else x

    def residual(self, x: int) -> int:
        """ResNet's block: identity or projection, ReLU after the addition or none."""
        if len(self.shape(x)) == 1:
            features = self.shape(x)[0] if self.chance(0.5) else self.choice.randint(2, 4)
            inner = self.linear(self.relu(self.maybe_batchnorm(self.linear(x, 4, self.scale))), features)
            skip = x if features == self.shape(x)[0] else self.linear(x, features)
        else:
            project = self.chance(0.5)
            channels = self.choice.randint(2, 4) if project else self.shape(x)[0]
            stride = self.choice.choice([1, 2]) if project else 1
            inner = self.conv(x, self.choice.randint(2, 4), (3, 3), self.scale, padding=1, stride=stride)
            inner = self.relu(self.maybe_batchnorm(inner))
            inner = self.maybe_batchnorm(self.conv(inner, channels, (3, 3), padding=1))
            skip = self.maybe_batchnorm(self.conv(x, channels, stride=stride)) if project else x
        x = self.add(inner, skip)
        return self.relu(x) if self.chance(0.7) else x

    def fire(self, x: int) -> int:
        """SqueezeNet's module: two branches of equal length, concatenated."""
        if len(self.shape(x)) == 1:
            squeezed = self.relu(self.linear(x, 3))
            return self.concat(self.relu(self.linear(squeezed, 2)), self.relu(self.linear(squeezed, 3)))
        squeezed = self.relu(self.conv(x, 2, scale=self.scale))
        wide = self.relu(self.conv(squeezed, 2, (3, 3), padding=1))
        return self.concat(self.relu(self.conv(squeezed, 2)), wide)

    def dense(self, x: int) -> int:
        """DenseNet's layers: each sees, and passes on, all that came before."""
        image = len(self.shape(x)) == 3
        for _ in range(self.choice.randint(1, 2)):
            h = self.relu(self.batchnorm(x))
            x = self.concat(x, self.conv(h, 2, (3, 3), padding=1) if image else self.linear(h, 2))
        if image and self.chance(0.5):
            x = self.any_pool(self.conv(self.relu(self.batchnorm(x)), 3))
        return x

    def inception(self, x: int) -> int:
        """Branches of unequal length: some routes jump over a layer."""
        if len(self.shape(x)) == 1:
            long = self.relu(self.linear(self.relu(self.linear(x, 3, self.scale)), 2))
            return self.concat(self.relu(self.linear(x, 2)), long)
        long = self.relu(self.conv(self.relu(self.conv(x, 2, scale=self.scale)), 2, (3, 3), padding=1))
        pooled = self.append("maxpool", x, weights={}, kernel_size=3, stride=1, padding=1)
        return self.concat(self.relu(self.conv(x, 2)), long, self.relu(self.conv(pooled, 2)))

    # Heads, from a node to the logits.

    def head(self, x: int, outputs: int) -> int:
        if len(self.shape(x)) == 1:
            return self.linear(x, outputs, scale=2.0)
        match self.choice.choice(["flatten", "hidden", "average", "mean", "map"]):
            case "flatten":
                return self.linear(self.flatten(x), outputs, scale=2.0)
            case "hidden":
                h = self.relu(self.linear(self.flatten(x), 5, self.scale))
                return self.linear(self.append("dropout", h, weights={}, p=0.5), outputs, scale=2.0)
            case "average":
                return self.linear(self.flatten(self.average(x)), outputs, scale=2.0)
            case "mean":
                return self.linear(self.append("mean", x, weights={}), outputs, scale=2.0)
            case _:  # SqueezeNet: a ReLU map per class, then its average
                return self.flatten(self.average(self.relu(self.conv(x, outputs, scale=2.0))))

    def average(self, x: int) -> int:
        return self.append("adaptive_avgpool", x, weights={}, output_size=(1, 1))

    def finish(self, ending: str, recipe: str) -> Network:
        readers = [sum(node.inputs.count(position) for node in self.nodes) for position in range(len(self.nodes))]
        nodes = []
        for node in self.nodes:
            spelling = node.spelling
            if spelling == "view" and self.nodes[node.inputs[0]].op in ("crop", "move"):
                spelling = "function"  # a part of a tensor has no such view
            if node.op in ("relu", "add"):
                source = node.inputs[0]
                fresh = self.nodes[source].op in ("conv", "linear", "batchnorm", "add", "concat")
                if not (fresh and readers[source] == 1):
                    spelling = {"a += b": "a + b"}.get(spelling, spelling.removesuffix(", in place"))
            nodes.append(Node(node.op, node.inputs, node.options, node.weights, spelling, node.shape))
        return Network(tuple(nodes), ending, recipe)


BLOCKS = ("chain", "residual", "fire", "dense", "inception")


def random_network(
    seed: int,
    *,
    image: bool = True,
    blocks: tuple[str, ...] = ("chain",),
    activation: str = "relu",
    outputs: int = 3,
    ending: str = "logits",
    moves: float = 0.0,
) -> Network:
    """A network of the given blocks; everything else follows from the seed.

    Args:
        moves: how likely crops, paddings, constants and the like are between the blocks.
    """
    choice = random.Random(seed)
    height, width = choice.choice([(5, 5), (6, 6), (7, 7), (5, 9), (8, 6)])
    shape = (choice.randint(1, 3), height, width) if image else (choice.randint(3, 6),)
    builder = Builder(seed, shape, activation)
    x = 0
    for block in blocks:
        x = getattr(builder, block)(builder.any_move(x) if builder.chance(moves) else x)
    builder.head(builder.any_move(x) if builder.chance(moves) else x, outputs)
    recipe = f"random_network({seed}, {image=}, {blocks=}, {activation=}, {outputs=}, {ending=}, {moves=})"
    return builder.finish(ending, recipe)


def tiny_network(seed: int, *, image: bool, blocks: tuple[str, ...], activation: str = "relu") -> Network:
    """A network small enough to walk every one-way path of it."""
    choice = random.Random(seed)
    builder = Builder(seed, (1, 4, 3) if image else (3,), activation)
    x = 0
    for block in blocks:
        if not image:
            x = getattr(builder, block)(x)
            continue
        kernel, padding = choice.choice([((1, 1), 0), ((2, 2), 0), ((2, 2), 1)])
        if min(builder.shape(x)[1:]) < 2:
            kernel, padding = (1, 1), 0
        h = builder.relu(builder.conv(x, 2, kernel, padding=padding))
        x = builder.add(builder.conv(x, 2, kernel, padding=padding), h) if block == "residual" else h
        x = builder.any_pool(x) if builder.chance(0.4) else x
    builder.linear(builder.flatten(x) if image else x, 2, scale=2.0)
    return builder.finish("logits", f"tiny_network({seed}, {image=}, {blocks=}, {activation=})")


# --- Strategies -------------------------------------------------------------------------------------------------------

SEEDS = st.integers(0, 2**31 - 1)
ACTIVATION_KINDS = st.sampled_from(["relu", "relu", "relu", *sorted(set(ACTIVATIONS) - {"relu"}), "mixed"])


@st.composite
def networks(
    draw: st.DrawFn, *, activation: st.SearchStrategy[str] = ACTIVATION_KINDS, most: int = 3, moves: bool = True
) -> Network:
    """Random networks of one to `most` blocks, with or without crops, paddings and constants between them."""
    outputs = draw(st.integers(1, 5))
    return random_network(
        draw(SEEDS),
        image=draw(st.sampled_from([True, True, False])),
        blocks=tuple(draw(st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=most))),
        activation=draw(activation),
        outputs=outputs,
        ending=draw(
            st.sampled_from(["logits", "logits", *(["sigmoid"] if outputs == 1 else ["softmax", "log_softmax"])])
        ),
        moves=draw(st.sampled_from([0.0, 0.5, 1.0])) if moves else 0.0,
    )


@st.composite
def tiny_networks(draw: st.DrawFn) -> Network:
    """Random networks with few enough one-way paths to walk each."""
    image = draw(st.booleans())
    blocks = st.sampled_from(["chain", "residual"] if image else ["chain", "residual", "inception"])
    return tiny_network(
        draw(SEEDS),
        image=image,
        blocks=tuple(draw(st.lists(blocks, min_size=1, max_size=2))),
        activation=draw(ACTIVATION_KINDS),
    )


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
