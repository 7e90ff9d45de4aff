"""Freezing: one forward pass that fixes the gates and routes of a network at its input."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from pathx.errors import PathxError
from pathx.forwards import FORWARDS
from pathx.network import Gate, Network, read_network
from pathx.operations import CONSTANTS, GATES, PLAIN_LINEAR, TRANSPOSES, Call, Cotangents, Slopes
from pathx.states import State, Watch
from pathx.trace import Node, Value, filled, named_tensors, trace, unwrapped
from pathx.transposes import vjp, vjp_constant
from pathx.window import Window


@dataclass(eq=False)
class Frozen:
    """A network frozen at a batch of pictures.

    Args:
        images: (B, …) the pictures.
        logits: (B, outputs).
        kept: the values of the forward pass that rules need: gates, routes, weights.
        compact: rows that are known to be empty may be dropped, so shapes depend on data; off where that costs a
            synchronisation.
    """

    network: Network
    images: Tensor
    logits: Tensor
    kept: dict[Value, Tensor]
    compact: bool
    _calls: dict[int, Call] = field(default_factory=dict)
    _slopes: dict[int, Slopes] = field(default_factory=dict)

    def call(self, node: Node) -> Call:
        """A node with the tensors that its rules need."""
        if node.index not in self._calls:
            states, shapes = self.network.states, self.network.graph.shapes
            args = tuple(arg if type(arg) in _PLAIN else filled(arg, self._fixed) for arg in node.args)
            kwargs = {name: filled(arg, self._fixed) for name, arg in node.kwargs.items()}
            values = [*node.inputs, *(value for value in node.outputs if value is not None)]
            saved = {v: self.kept[v] for v in values if states[v] is State.FROZEN and v in self.kept}
            self._calls[node.index] = Call(
                node, args, kwargs, {v: shapes[v.index][1:] for v in values}, saved, self.compact
            )
        return self._calls[node.index]

    def _fixed(self, leaf: Any) -> Any:
        """The tensor behind a value that does not depend on the picture; anything else as it is."""
        known = isinstance(leaf, Value) and self.network.states[leaf] is State.FIXED
        return self.kept[leaf] if known else leaf

    def slopes(self, gate: Gate) -> Slopes:
        """A gate's slope and gain at these pictures."""
        if gate.node.index not in self._slopes:
            rule = GATES[gate.node.kind]
            value = gate.output if gate.node.kind == "relu" else gate.source
            self._slopes[gate.node.index] = rule(self.call(gate.node), self.kept[value])
        return self._slopes[gate.node.index]

    def activation(self, gate: Gate) -> Tensor:
        """A gate's output, (B, *shape)."""
        slopes = self.slopes(gate)
        return slopes.gain if slopes.offset is None else slopes.gain + slopes.offset

    def pull(self, node: Node, output: int, cotangent: Window) -> Cotangents:
        """Cotangents of a linear node's inputs from those of one of its outputs."""
        linear = TRANSPOSES.get(node.kind)
        rule = vjp if linear is None else linear.transpose
        return rule(self.call(node), output, cotangent)

    def constant(self, node: Node, cotangent: Window) -> Tensor | None:
        """(P,) what the constant part of a linear node adds under these cotangents; None where it has none."""
        name = node.kind
        if name in CONSTANTS:
            return CONSTANTS[name](self.call(node), cotangent)
        if name in PLAIN_LINEAR or name == "constant_pad_nd":
            return vjp_constant(self.call(node), cotangent)
        return None

    @cached_property
    def batch(self) -> int:
        return len(self.images)


def freeze(model: nn.Module, images: Tensor) -> Frozen:
    """Run `model` on `images` once and fix its gates and routes there. The model is left as it was."""
    _check_call(model, images)
    images = images.detach().as_subclass(Tensor)
    network, weights = _network_and_weights(unwrapped(model), images)
    dtype = images.dtype if images.dtype in (torch.float32, torch.float64) else torch.float32
    images = images.to(dtype)
    graph = network.graph
    values: dict[Value, Tensor] = {graph.input: images}
    for name, value in graph.parameters.items():
        values[value] = _as(weights[name].detach(), dtype, images.device)
    for value, tensor in graph.constants.items():
        values[value] = _as(tensor.detach(), dtype, images.device)
    with exactly(images.device):
        kept = _forward(network, values, dtype)
    logits = kept[network.logits].reshape(len(images), -1)
    return Frozen(network, images, logits, kept, compact=images.device.type == "cpu")


@contextmanager
def exactly(device: torch.device) -> Iterator[None]:
    """No gradients, and no autocast that would change precision."""
    with torch.no_grad(), torch.autocast(device.type, enabled=False):
        yield


def _check_call(model: nn.Module, images: Tensor) -> None:
    """Refuse what is no model or no batch of pictures."""
    if not isinstance(model, nn.Module):
        raise PathxError(f"the model must be a torch.nn.Module, not {_described(model)}", usage=True)
    if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
        raise PathxError("images must be a tensor with the pictures along its first dimension, (B, …)", usage=True)
    if images.is_meta or not images.is_floating_point() or images.layout is not torch.strided or images.is_quantized:
        kind = str(images.dtype).removeprefix("torch.")
        found = (
            f"images must be a dense tensor of real numbers, not {kind if images.layout is torch.strided else 'sparse'}"
        )
        raise PathxError(f"{found}: convert them, or cut off what looks its input up (an embedding)", usage=True)


def _check_weights(model: nn.Module) -> None:
    """Refuse weights that cannot be computed with."""
    for name, tensor in named_tensors(model):
        if isinstance(tensor, (nn.UninitializedParameter, nn.UninitializedBuffer)):
            raise PathxError(f"{name} of the model has no shape yet; run the model once on an input first", usage=True)
        if tensor.is_meta:
            raise PathxError(
                f"{name} of the model holds no numbers (it is on the meta device); load weights", usage=True
            )
        if tensor.is_complex():
            raise PathxError(f"{name} of the model is complex: pathx explains networks of real numbers", usage=True)
        if tensor.is_quantized:
            raise PathxError(f"{name} of the model is quantised: explain the network it was made from", usage=True)


def _described(item: object) -> str:
    return f"the class {item.__name__} itself" if isinstance(item, type) else type(item).__name__


def _as(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)


_NETWORKS: WeakKeyDictionary[nn.Module, dict[Any, Network]] = WeakKeyDictionary()


def network_of(model: nn.Module, images: Tensor) -> Network:
    """The network that a model is for inputs of this shape; traced once, and again when the model is another."""
    return _network_and_weights(unwrapped(model), images)[0]


def _network_and_weights(model: nn.Module, images: Tensor) -> tuple[Network, dict[str, Tensor]]:
    try:
        identity, weights = _inventory(model)
    except RuntimeError:  # tensors without a shape
        _check_weights(model)
        raise
    known = _NETWORKS.setdefault(model, {})
    key = (images.shape, images.device, identity)
    if key not in known:
        _check_weights(model)
        sample = next((tensor for tensor in weights.values() if tensor.is_floating_point()), images)
        copied = images.detach().to(sample.device, sample.dtype, copy=True)  # the model may write into it
        known[key] = read_network(trace(model, copied, Watch))
    return known[key], weights


def _inventory(model: nn.Module) -> tuple[tuple[Any, ...], dict[str, Tensor]]:
    """What tells a model from the one that was traced (modules, shapes, settings, hooks), and its tensors by name."""
    weights = dict(named_tensors(model))
    identity: list[Any] = [(name, tensor.shape) for name, tensor in weights.items()]
    for module in model.modules():
        identity += (ref(module), *module._forward_hooks, *module._forward_pre_hooks)
        identity += [item for item in vars(module).items() if type(item[1]) in _SETTINGS and item[0] != "training"]
    return tuple(identity), weights


_SETTINGS = frozenset([bool, int, float, str])
_PLAIN = frozenset([bool, int, float, type(None)])


def _forward(network: Network, values: dict[Value, Tensor], dtype: torch.dtype) -> dict[Value, Tensor]:
    """Run the nodes that the logits need, dropping every value after its last use unless a rule will ask for it."""
    relu_, overwritable, dropped = torch.ops.aten.relu_.default, network.overwritable, network.dropped
    others = FORWARDS if values[network.graph.input].device.type == "cpu" else {}

    def actual(leaf: Any) -> Any:
        return values[leaf] if type(leaf) is Value else _promoted(leaf, dtype)

    for node in network.nodes:
        args = [
            values[arg] if type(arg) is Value else arg if type(arg) in _PLAIN else filled(arg, actual)
            for arg in node.args
        ]
        kwargs = {name: filled(arg, actual) for name, arg in node.kwargs.items()}
        out = others[node.op](*args, **kwargs) if node.op in others else None
        if out is None:
            out = (relu_ if node.index in overwritable else node.op)(*args, **kwargs)
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        for value, tensor in zip(node.outputs, outputs, strict=True):
            if value is not None:
                values[value] = tensor
        for value in dropped[node.index]:
            values.pop(value, None)
    return {value: values[value] for value in network.needed if value in values}


def _promoted(leaf: Any, dtype: torch.dtype) -> Any:
    """Half-precision types written into the graph become the type we compute in."""
    return dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf
