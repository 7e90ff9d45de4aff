"""Freezing: one forward pass that fixes the gates and routes of a network at its input."""

from __future__ import annotations

import os
from collections import Counter, OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pathx.engine.dependence import Dependence, Watch
from pathx.engine.device import exactly, full_precision
from pathx.engine.network import Gate, Network, read_network
from pathx.engine.record.follow import Course, ModelRun, follow
from pathx.engine.record.listen import Departed
from pathx.engine.record.trace import (
    Graph,
    Node,
    Value,
    evaluation_view,
    filled,
    in_place,
    named_tensors,
    trace,
    trace_call,
    unwrapped,
)
from pathx.engine.rules.table import Call, Cotangents, Slopes, known
from pathx.engine.window import Window
from pathx.errors import PathxError, kind_in_words


@dataclass(eq=False)
class Frozen:
    """A network frozen at a batch of images.

    Args:
        images: (B, …) the images.
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

    @cached_property
    def _batch(self) -> int:
        return len(self.images)

    def call(self, node: Node) -> Call:
        """A node with the tensors that its rules need."""
        if node.index not in self._calls:
            form = self.network.form(node)
            self._calls[node.index] = Call(
                node,
                tuple(filled(arg, self._fixed) if values else arg for arg, values in form.args),
                {name: filled(arg, self._fixed) for name, arg in node.kwargs.items()},
                form.shapes,
                {v: self.kept[v] for v in form.frozen if v in self.kept},
                self._batch,
                self.compact,
                inputs={v: self.kept[v] for v in form.read if v in self.kept},
            )
        return self._calls[node.index]

    def _fixed(self, leaf: Any) -> Any:
        """The tensor behind a value that does not depend on the image; anything else as it is."""
        known = isinstance(leaf, Value) and self.network.states[leaf] is Dependence.FIXED
        return self.kept[leaf] if known else leaf

    def slopes(self, gate: Gate) -> Slopes:
        """A gate's slope and gain at these images."""
        if gate.node.index not in self._slopes:
            operation = known(gate.node)
            assert operation.gate is not None
            value = gate.output if operation.saves == "output" else gate.source
            self._slopes[gate.node.index] = operation.gate(self.call(gate.node), self.kept[value])
        return self._slopes[gate.node.index]

    def activation(self, gate: Gate) -> Tensor:
        """A gate's output, (B, *shape)."""
        slopes = self.slopes(gate)
        return slopes.gain if slopes.offset is None else slopes.gain + slopes.offset

    def pull(self, node: Node, output: int, cotangent: Window) -> Cotangents:
        """Cotangents of a linear node's inputs from those of one of its outputs."""
        if node.index in self.network.class_gates:
            gate = self.network.class_gates[node.index]
            return [(gate.source, self.slopes(gate).passed(cotangent))]
        rule = known(node).transpose
        assert rule is not None  # the network was read
        call = self.call(node)
        return [(value, window) for value, window in rule(call, output, cotangent) if window.data.numel()]

    def constant(self, node: Node, cotangent: Window) -> Tensor | None:
        """(P,) what the constant part of a linear node adds under these cotangents; None where it has none."""
        rule = known(node).constant
        return None if rule is None else rule(self.call(node), cotangent)


def freeze(model: nn.Module, images: Tensor) -> Frozen:
    """Run `model` on `images` once and fix its gates and routes there. The model is left as it was."""
    check_call(model, images)
    images = precise_images(images)
    dtype = images.dtype
    traced, run = _follow(unwrapped(model), images)
    network = traced.network
    if traced.is_whole(images):
        kept = {**run.kept, network.graph.input: images}
    else:
        values = {value: _as(tensor, dtype, images.device) for value, tensor in run.external.items()}
        with exactly(images.device):
            kept = _forward(network, {**values, network.graph.input: images}, dtype)
    logits = kept[network.logits].reshape(len(images), -1)
    return Frozen(network, images, logits, kept, compact=_as_on_the_cpu(images.device))


def precise_images(images: Tensor) -> Tensor:
    """The images themselves, whatever a class of tensors makes of them, in a precision that is computed in."""
    try:
        plain = images.detach().as_subclass(Tensor)
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
    if isinstance(images, Tensor) and (images.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(images)):
        raise PathxError("images must be a plain tensor: not nested, nor inside of vmap or grad", usage=True)
    if not isinstance(images, Tensor) or images.dim() < 2 or not len(images):
        raise PathxError("images must be a tensor with the images along its first dimension, (B, …)", usage=True)
    if images.is_meta or not images.is_floating_point() or images.layout is not torch.strided or images.is_quantized:
        kind = str(images.dtype).removeprefix("torch.")
        found = (
            f"images must be a dense tensor of real numbers, not {kind if images.layout is torch.strided else 'sparse'}"
        )
        raise PathxError(f"{found}: convert them, or cut off what looks its input up (an embedding)", usage=True)


def _check_kind(model: nn.Module) -> None:
    """Refuse models that are made for something else than classes."""
    for kind in type(model).__mro__:
        home = kind.__module__
        if home.startswith(("torchvision.models.detection", "ultralytics.")) or kind.__name__.endswith(
            "ForObjectDetection"
        ):
            raise PathxError(
                f"the model is a detector ({type(model).__name__}): it finds boxes, and pathx explains one row of class "
                "logits per image",
                usage=True,
            )


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
        if tensor.layout is not torch.strided:
            raise PathxError(f"{name} of the model is sparse: make it dense (.to_dense())", usage=True)
        if tensor.is_quantized:
            raise PathxError(f"{name} of the model is quantised: explain the network it was made from", usage=True)


def _as(tensor: Tensor, dtype: torch.dtype, device: torch.device) -> Tensor:
    return tensor.to(device, dtype if tensor.is_floating_point() else tensor.dtype)


@dataclass(eq=False)
class _Traced:
    """What is remembered of a model for one shape of input: no numbers, only what it does with them.

    Args:
        checked: what it takes for constants was seen to be the same for another image.
    """

    network: Network
    course: Course
    dtypes: frozenset[torch.dtype]
    checked: bool = False

    @classmethod
    def of(cls, graph: Graph) -> _Traced:
        network = read_network(graph)
        uses = Counter(value for node in graph.nodes for value in node.inputs)
        once = {index for index in network.overwritable if uses[graph.nodes[index].inputs[0]] == 1}
        quicker = {node.index: way for node in graph.nodes if (way := known(node).forward) is not None}
        course = Course(graph, network.needed, frozenset(once), frozenset(network.gates), quicker)
        floating = frozenset(dtype for dtype in graph.dtypes if dtype.is_floating_point)
        return cls(network, course, floating)

    def is_whole(self, images: Tensor) -> bool:
        """Whether following the model gives all that is needed, as precise as the images are."""
        return self.dtypes == {images.dtype} and self._is_as_recorded

    @cached_property
    def _is_as_recorded(self) -> bool:
        made = {value for node in self.network.nodes for value in node.outputs} & self.network.needed
        return made <= self.course.makers.keys()


MOST_TRACES = 8
"""How many shapes of input a model is remembered for."""

_TRACES: WeakKeyDictionary[nn.Module, OrderedDict[Any, _Traced]] = WeakKeyDictionary()


def network_of(model: nn.Module, images: Tensor) -> Network:
    """The network that a model is for inputs of this shape."""
    return network_and_tensors(model, images)[0]


def network_and_tensors(model: nn.Module, images: Tensor) -> tuple[Network, dict[Value, Tensor]]:
    """The network that a model is for inputs of this shape, and the tensors that the model brings along."""
    traced, run = _follow(unwrapped(model), images)
    return traced.network, run.external


def _follow(model: nn.Module, images: Tensor) -> tuple[_Traced, ModelRun]:
    """Run the model and compare it with what is remembered of it; where it does something else, it is traced again.

    Some code does something else the first times that it runs (TorchScript learns), but not for ever.
    """
    view = evaluation_view(model)
    sample = next((tensor for _, tensor in named_tensors(model) if tensor.is_floating_point()), images)
    given = images.detach().to(sample.device, sample.dtype, copy=True)
    remembered = _TRACES.setdefault(model, OrderedDict())
    key = (given.shape, given.stride(), given.device, given.dtype)
    if key not in remembered:
        _check_kind(model)
        _check_weights(model)
    with full_precision(given.device):
        for attempt in range(4):
            if key not in remembered:
                tracer = trace if attempt < 2 else trace_call
                remembered[key] = _Traced.of(tracer(view, given.clone(), Watch))  # the model may write into its input
                if len(remembered) > MOST_TRACES:
                    remembered.popitem(last=False)
            remembered.move_to_end(key)
            traced = remembered[key]
            quick = _as_on_the_cpu(given.device) and traced.is_whole(images)
            try:
                run = follow(view, given.clone(), traced.course, quick=quick)
                if not traced.checked:
                    _check_constants(traced, run, view, given)
                return traced, run
            except Departed:
                del remembered[key]
            except PathxError:
                remembered.pop(key, None)
                raise
    raise PathxError(
        "the model does something else each time it runs, so there is no one network to explain; make its forward "
        "depend on its input alone",
        usage=True,
    )


def _check_constants(traced: _Traced, run: ModelRun, view: nn.Module, given: Tensor) -> None:
    """Refuse tensors that the model did not hold and that are others for another image.

    They are values that went out of torch and came back as something new, or were drawn at random: the graph has nothing
    to say of where they come from, and would take them for constants.
    """
    traced.checked = True
    constants = traced.course.graph.constants
    readers = {value: node for node in traced.network.nodes for value in node.inputs if value in constants}
    if not readers:
        return
    with suppress(Departed):  # decided by other values, but not by these
        other = follow(view, given * 0.5 + 0.1, traced.course, quick=False)
        for value, node in readers.items():
            first, second = run.external[value], other.external[value]
            if not ((first == second) | ((first != first) & (second != second))).all():
                raise PathxError(
                    f"the model computes with numbers that come from outside of torch and change ({node.place}): keep what "
                    "it computes from its input in torch, and draw no random numbers",
                    usage=True,
                )


_PLAIN = frozenset([bool, int, float, type(None)])


def _forward(network: Network, values: dict[Value, Tensor], dtype: torch.dtype) -> dict[Value, Tensor]:
    """Run the nodes that the logits need, dropping every value after its last use unless a rule will ask for it."""
    overwritable, dropped = network.overwritable, network.dropped
    cpu = _as_on_the_cpu(values[network.graph.input].device)

    def actual(leaf: Any) -> Any:
        return values[leaf] if type(leaf) is Value else promoted(leaf, dtype)

    for node in network.nodes:
        args = [
            values[arg] if type(arg) is Value else arg if type(arg) in _PLAIN else filled(arg, actual)
            for arg in node.args
        ]
        kwargs = {name: filled(arg, actual) for name, arg in node.kwargs.items()}
        quicker = known(node).forward if cpu else None
        out = None if quicker is None else quicker(*args, **kwargs)
        if out is None:
            out = (in_place(node.op) if node.index in overwritable else node.op)(*args, **kwargs)
        outputs = out if isinstance(out, (tuple, list)) else (out,)
        for value, tensor in zip(node.outputs, outputs, strict=True):
            if value is not None:
                values[value] = tensor
        for value in dropped[node.index]:
            values.pop(value, None)
    return {value: values[value] for value in network.needed if value in values}


def promoted(leaf: Any, dtype: torch.dtype) -> Any:
    """Types written into the graph become the type we compute in, or that of its complex numbers."""
    if not isinstance(leaf, torch.dtype):
        return leaf
    return dtype if leaf.is_floating_point else dtype.to_complex() if leaf.is_complex else leaf
