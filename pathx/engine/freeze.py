"""Freezing: one forward pass that fixes the gates and routes of a network at its input."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from pathx.engine.dependence import Dependence, ImagesTogether, Watch
from pathx.engine.device import full_precision
from pathx.engine.network import Gate, Network, find_logits, read_network
from pathx.engine.record.model import unwrap
from pathx.engine.record.operations import Node, Value, by_value, map_leaves, run_node
from pathx.engine.record.recorder import Recording, record
from pathx.engine.rules.pooling import FORMS
from pathx.engine.rules.pushing import push
from pathx.engine.rules.shared import constant_of_one, reshape_window, vjp_of_one
from pathx.engine.rules.table import Call, Cotangents, Slopes, record_of
from pathx.engine.window import Window
from pathx.errors import PathxError, kind_in_words


@dataclass(eq=False)
class Frozen:
    """A network frozen at a batch of images.

    Args:
        images: (B, …) the images.
        logits: (B, outputs).
        kept: the values of the forward pass that rules need: gates, routes, weights.
        brought: the model's own tensors, and constants of its code.
        compact: rows that are known to be empty may be dropped, so shapes depend on data; off where that costs a
            synchronisation.
        parts: the network at each of the images, where it takes the images of a batch together.
    """

    network: Network
    images: Tensor
    logits: Tensor
    kept: dict[Value, Tensor]
    compact: bool
    parts: tuple[Frozen, ...] = ()
    brought: dict[Value, Tensor] = field(default_factory=dict)
    _calls: dict[int, Call] = field(default_factory=dict)
    _slopes: dict[int, Slopes] = field(default_factory=dict)

    @cached_property
    def _batch(self) -> int:
        return len(self.images)

    def call(self, node: Node) -> Call:
        """A node with the tensors that its rules need."""
        if node.index not in self._calls:
            shapes, frozen, lifted = self.network.form(node)
            read = node.inputs if record_of(node).saves == "inputs" else ()
            self._calls[node.index] = Call(
                node,
                tuple(map_leaves(arg, self._fixed_tensor) for arg in lifted or node.args),
                {name: map_leaves(arg, self._fixed_tensor) for name, arg in node.kwargs.items()},
                shapes,
                {v: self.kept[v] if lifted is None else self.kept[v][None] for v in frozen if v in self.kept},
                self._batch,
                inputs={v: self.kept[v] for v in read if v in self.kept},
                whole=lifted is None and node.index in self.network.whole,
            )
        return self._calls[node.index]

    def _fixed_tensor(self, leaf: Any) -> Any:
        """The tensor behind a value that does not depend on the image; anything else as it is."""
        known = isinstance(leaf, Value) and self.network.reading.states[leaf] is Dependence.FIXED
        return self.kept[leaf] if known else leaf

    def slopes(self, gate: Gate) -> Slopes:
        """A gate's slope and gain at these images."""
        if gate.node.index not in self._slopes:
            operation = record_of(gate.node)
            assert operation.gate is not None
            value = gate.output if operation.saves == "output" else gate.source
            saved = self.kept[value].reshape(-1, *gate.shape)
            self._slopes[gate.node.index] = operation.gate(self.call(gate.node), saved)
        return self._slopes[gate.node.index]

    def activation(self, gate: Gate) -> Tensor:
        """A gate's output, (B, *shape)."""
        if self.parts:
            return torch.cat([part.activation(gate) for part in self.parts])
        slopes = self.slopes(gate)
        return slopes.gain if slopes.offset is None else slopes.gain + slopes.offset

    def pull(self, node: Node, output: int, cotangent: Window) -> Cotangents:
        """Cotangents of a linear node's inputs from those of one of its outputs."""
        if node.index in self.network.class_gates:
            gate = self.network.class_gates[node.index]
            return [(gate.source, self.slopes(gate).pull_back(cotangent))]
        call = self.call(node)
        rule = vjp_of_one if call.whole else record_of(node).transpose
        assert rule is not None  # the network was read
        if node.index in self.network.whole:
            below = rule(call, output, reshape_window(cotangent, call.shapes[cast(Value, node.outputs[output])]))
            return [(value, reshape_window(window, self.network.shape(value))) for value, window in below]
        return [(value, window) for value, window in rule(call, output, cotangent) if window.data.numel()]

    def push(self, node: Node, output: int, value: Value, tangent: Window) -> Window:
        """What a linear node makes of tangents of one of its inputs."""
        if node.index in self.network.class_gates:
            return self.slopes(self.network.class_gates[node.index]).pull_back(tangent)  # its own transpose
        call = self.call(node)
        made = push(call, output, value, reshape_window(tangent, call.shapes[value]))
        return reshape_window(made, self.network.shape(cast(Value, node.outputs[output])))

    def constant(self, node: Node, cotangent: Window) -> Tensor | None:
        """(P,) what the constant part of a linear node adds under these cotangents; None where it has none."""
        rule = record_of(node).constant
        if rule is None:
            return None
        call = self.call(node)
        rule = constant_of_one if call.whole else rule
        return rule(call, reshape_window(cotangent, call.shapes[cast(Value, node.outputs[0])]))


def freeze(model: nn.Module, images: Tensor) -> Frozen:
    """Run `model` on `images` once and fix its gates and routes there. The model is left as it was."""
    check_call(model, images)
    images = precise_images(images)
    try:
        return _freeze(model, images)
    except ImagesTogether as error:
        refusal = PathxError(str(error), usage=True)
        try:
            parts = tuple(_freeze(model, image[None]) for image in images)
        except PathxError:
            raise refusal from None
        logits = torch.cat([part.logits for part in parts])
        if error.logits is None or not _are_close(error.logits, logits) or _is_mixing(model, images, logits):
            raise refusal from None
        return Frozen(parts[0].network, images, logits, {}, parts[0].compact, parts)


def _is_mixing(model: nn.Module, images: Tensor, logits: Tensor) -> bool:
    """Whether the logits of an image change with the other images of its batch: every second one is exchanged, in turn.

    That a model's logits for one batch are those of its images alone does not tell: they may agree by chance, or because
    the images are alike.
    """
    others = images.flip(0) * -0.5 + images.std(unbiased=False)
    for first in (0, 1) if len(images) > 1 else ():
        batch = others.clone()
        batch[first::2] = images[first::2]
        with full_precision(images.device):
            recording = _record(unwrap(model), batch)
        found = recording.tensors[find_logits(recording.graph)].reshape(len(images), -1)
        if not _are_close(found[first::2], logits[first::2]):
            return True
    return False


def _are_close(one: Tensor, other: Tensor) -> bool:
    """Whether logits are the same up to what the order of sums in a batch may change."""
    return one.shape == other.shape and torch.allclose(one, other, rtol=1e-3, atol=1e-3 * float(other.abs().max()))


def _freeze(model: nn.Module, images: Tensor) -> Frozen:
    network, tensors = network_and_tensors(model, images)
    tensors[network.graph.input] = images
    kept = {value: _tensor_of(value, network, tensors) for value in network.needed}
    brought = {value: tensors[value] for value in network.graph.constants}
    logits = kept[network.logits].reshape(len(images), -1)
    return Frozen(network, images, logits, kept, compact=_as_on_the_cpu(images.device), brought=brought)


def _tensor_of(value: Value, network: Network, tensors: dict[Value, Tensor]) -> Tensor:
    """A value's tensor. What a folded operation reads that the model's own did not is read off a view of it, or computed."""
    if value in tensors:
        return tensors[value]
    shape = network.graph.shapes[value.index]
    stack = [value]
    while stack:  # the same numbers in another shape
        for view in network.same_numbers.get(stack.pop(), ()):
            if view in tensors:
                tensors[value] = tensors[view].reshape(shape)
                return tensors[value]
            stack.append(view)
    node = network.producers[value]
    inputs = {one: _tensor_of(one, network, tensors) for one in node.inputs}
    with full_precision(next(iter(tensors.values())).device):
        tensors[value] = by_value(node, run_node(node, inputs))[value]
    return tensors[value]


def precise_images(images: Tensor) -> Tensor:
    """The images themselves, whatever a class of tensors makes of them, in a precision that is computed in."""
    try:
        plain = images.detach()
        plain = plain if type(plain) is Tensor else plain.as_subclass(Tensor)
        return plain if plain.dtype in (torch.float32, torch.float64) else plain.to(torch.float32)
    except Exception as error:  # of a class that cannot be taken off
        raise PathxError(f"images must be a plain tensor, not {kind_in_words(images)}", usage=True) from error


def _as_on_the_cpu(device: torch.device) -> bool:
    """Whether to compute in the ways that only a CPU gains by; PATHX_DEVICE_FORM=1 has it do what any other device does."""
    return device.type == "cpu" and os.environ.get("PATHX_DEVICE_FORM") != "1"


def check_call(model: nn.Module, images: Tensor) -> None:
    """Refuse what is no model or no batch of images."""
    if not isinstance(model, nn.Module):
        raise PathxError(f"the model must be a torch.nn.Module, not {kind_in_words(model)}", usage=True)
    if isinstance(images, Tensor) and (images.is_nested or not _has_memory(images)):
        raise PathxError("images must be a plain tensor: not nested, nor inside of vmap or grad", usage=True)
    if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
        raise PathxError("images must be a tensor with the images along its first dimension, (B, …)", usage=True)
    if images.is_meta or not images.is_floating_point() or images.layout is not torch.strided or images.is_quantized:
        kind = str(images.dtype).removeprefix("torch.")
        found = (
            f"images must be a dense tensor of real numbers, not {kind if images.layout is torch.strided else 'sparse'}"
        )
        raise PathxError(f"{found}: convert them, or give the network after its embedding", usage=True)


def _has_memory(images: Tensor) -> bool:
    """Whether a tensor holds its numbers itself; those inside of vmap and grad do not."""
    if images.layout is not torch.strided:
        return True
    try:
        images.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return False
    return True


_PURPOSES = (
    (
        r"torchvision\.models\.detection|ultralytics\.(?!.*Classif)|transformers\..*ForObjectDetection$",
        ("a detector", "it finds boxes; wrap it so that it returns the class logits of one box, (batch, classes)"),
    ),
    (
        r"torchvision\.models\.segmentation|transformers\..*Segmentation$",
        ("a segmenter", "it classifies pixels; wrap it so that it returns the logits of one pixel, or their mean"),
    ),
    (
        r"transformers\..*(LM|LMHeadModel|ForSequenceClassification|ForTokenClassification|ForConditionalGeneration)$",
        ("a language model", "it reads tokens; give a classifier of images"),
    ),
)
_ENCODER = (
    "an encoder without a classifier",
    "its outputs are features; give it with its head (…ForImageClassification), or wrap it with one",
)
_IMAGES_AND_TEXTS = (
    "an encoder of images and texts",
    "wrap its image encoder, with the embeddings of your labels as the last layer",
)


def _check_kind(model: nn.Module) -> None:
    """Refuse models of well-known libraries that are made for something else than classes of images."""
    names = [f"{kind.__module__}.{kind.__name__}" for kind in type(model).__mro__]
    found = next((words for pattern, words in _PURPOSES for name in names if re.match(pattern, name)), None)
    if found is None and re.match(r"transformers\.models\..*(Model|ModelWithProjection|Backbone)$", names[0]):
        found = _IMAGES_AND_TEXTS if hasattr(model, "text_model") else _ENCODER
    if found is not None:
        what, remedy = found
        raise PathxError(f"the model is {what} ({type(model).__name__}): {remedy}", usage=True)


_CHECKED: WeakKeyDictionary[nn.Module, WeakSet[Network]] = WeakKeyDictionary()


def network_of(model: nn.Module, images: Tensor) -> Network:
    """The network that a model is for inputs of this shape."""
    return network_and_tensors(model, images)[0]


def network_and_tensors(model: nn.Module, images: Tensor) -> tuple[Network, dict[Value, Tensor]]:
    """The network that a model is for these images, with the tensors that it needs and those of the model."""
    model = unwrap(model)
    _check_kind(model)
    with full_precision(images.device):
        recording = _record(model, images)
        try:
            network = _network(recording)
        except ImagesTogether as error:
            error.logits = recording.tensors[find_logits(recording.graph)].reshape(len(images), -1)
            raise
        checked = _CHECKED.setdefault(model, WeakSet())
        if network not in checked:
            _check_constants(network, recording, model, images)
            checked.add(network)
    return network, recording.tensors


def _record(model: nn.Module, images: Tensor) -> Recording:
    return record(model, images, Watch, FORMS if _as_on_the_cpu(images.device) else {})


def _network(recording: Recording) -> Network:
    """A recording read as a network. Equal recordings are read once."""
    if recording.end.analysis is None:
        recording.end.analysis = read_network(recording.graph)
    network: Network = recording.end.analysis
    return network


def _check_constants(network: Network, recording: Recording, model: nn.Module, images: Tensor) -> None:
    """Refuse tensors that the model did not hold and that are others for another image.

    They are values that went out of torch and came back as something new, or were drawn at random: the graph has nothing
    to say of where they come from, and would take them for constants.
    """
    constants = {value for value, names in network.graph.constants.items() if names is None}
    readers = {value: node for node in network.nodes for value in node.inputs if value in constants}
    if not readers:
        return
    other = _record(model, images * 0.5 + 0.1)
    if other.graph.constants != network.graph.constants:
        return
    for value, node in readers.items():
        first, second = recording.tensors[value], other.tensors[value]
        if first.shape != second.shape or not ((first == second) | ((first != first) & (second != second))).all():
            raise PathxError(
                f"the model computes with numbers that come from outside of torch and change ({node.place}): keep what "
                "it computes from its input in torch, and draw no random numbers",
                usage=True,
            )
