"""Random networks: from a seed to nodes, and strategies that draw them."""

from __future__ import annotations

import math
import random
from typing import Any

import torch
from hypothesis import strategies as st
from support.networks import ACTIVATIONS, CROPS, FLOAT, MOVES, SMOOTH, WITH_A_CONSTANT, Network, Node, evaluate
from torch import Tensor

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
        piecewise = [kind for kind in ACTIVATIONS if kind not in SMOOTH]
        kind = self.choice.choice({"mixed": piecewise, "smooth": SMOOTH}.get(self.activation, [self.activation]))
        spellings = ["module", "module, re-used", "function"]
        if kind != "gelu":
            spellings += ["module, in place", "function, in place"]
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

    def gated(self, x: int) -> int:
        """EfficientNet's block: channels are let through by what the whole map is like, which is held at the image."""
        image = len(self.shape(x)) == 3
        h = self.relu(self.conv(x, 3, (3, 3), self.scale, padding=1) if image else self.linear(x, 4, self.scale))
        squeezed = self.relu(self.conv(self.average(h), 2) if image else self.linear(h, 2))
        gate = self.conv(squeezed, 3) if image else self.linear(squeezed, 4)
        return self.append("gate", h, gate, weights={})

    def normed(self, x: int) -> int:
        """ConvNeXt's block: what is added is normalised first."""
        channels, image = self.shape(x)[0], len(self.shape(x)) == 3
        if channels < 3:
            x, channels = self.conv(x, 3) if image else self.linear(x, 3), 3
        h = self.norm(self.conv(x, channels, (3, 3), padding=1) if image else x)
        h = self.relu(self.conv(h, 4, scale=self.scale) if image else self.linear(h, 4, self.scale))
        return self.add(self.conv(h, channels) if image else self.linear(h, channels), x)

    def norm(self, x: int) -> int:
        channels, *places = self.shape(x)
        dims = self.choice.choice([(1,), tuple(range(1, 2 + len(places)))])
        weights = {"weight": self.uniform(0.5, 1.5, channels), "bias": 0.3 * self.normal(channels)}
        return self.append("norm", x, weights=weights, dims=dims)

    def attended(self, x: int) -> int:
        """A transformer's block over the places of a map."""
        if len(self.shape(x)) == 1:
            return self.normed(x)
        x = self.conv(x, 3)
        weights = {name: self.normal(3, 3) for name in ("query", "key", "value")}
        return self.normed(self.add(self.append("attention", self.norm(x), weights=weights), x))

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
        viewable = not any(node.op in ("crop", "move", "attention") for node in self.nodes)  # these change strides
        nodes = []
        for node in self.nodes:
            spelling = node.spelling
            if spelling == "view" and not viewable:
                spelling = "function"
            if node.op in ("relu", "add"):
                source = node.inputs[0]
                fresh = self.nodes[source].op in ("conv", "linear", "batchnorm", "norm", "add", "concat")
                if not (fresh and readers[source] == 1):
                    spelling = {"a += b": "a + b"}.get(spelling, spelling.removesuffix(", in place"))
            nodes.append(Node(node.op, node.inputs, node.options, node.weights, spelling, node.shape))
        return Network(tuple(nodes), ending, recipe)


BLOCKS = ("chain", "residual", "fire", "dense", "inception")
HELD_BLOCKS = ("gated", "normed", "attended")
"""Blocks that multiply by what they computed."""


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
PIECEWISE = st.sampled_from(["relu", "relu", "relu", "relu6", "leaky_relu", "hardtanh", "mixed"])


@st.composite
def networks(draw: st.DrawFn, *, moves: bool = True, region: bool = False) -> Network:
    """Random networks of one to three blocks, with or without crops, paddings and constants between them.

    Args:
        region: ReLU networks alone. Of the others, half multiply by what they computed.
    """
    outputs = draw(st.integers(1, 5))
    held = not region and draw(st.booleans())
    return random_network(
        draw(SEEDS),
        image=draw(st.sampled_from([True, True, False])),
        blocks=tuple(draw(st.lists(st.sampled_from(HELD_BLOCKS + BLOCKS if held else BLOCKS), min_size=1, max_size=3))),
        activation=draw(st.sampled_from(["relu", "smooth"]) if held else PIECEWISE),
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
        activation=draw(PIECEWISE),
    )
