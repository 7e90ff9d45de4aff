"""A traced network run again, as a module: logits of any batch, differentiable, with every ReLU a module of its own.

What hooks on modules get wrong (functional, in-place and re-used ReLUs) or cannot reach (TorchScript) is a plain list of
calls in the traced graph. Replayed, each gate is an `nn.ReLU` that is used once, which is what Captum's hooks ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pathx.engine.freeze import network_and_tensors
from pathx.engine.network import Network
from pathx.engine.record.operations import Node, Value, by_value, run_by_value, run_node
from pathx.engine.rules.table import has
from pathx.engine.settings import class_logits
from pathx.errors import PathxError

CHUNK = 4_000_000
"""How many numbers of input the network is given at once, at most: 26 images of 3 x 224 x 224."""

CPU_CHUNK = 1_250_000
"""The same for a CPU, whose caches and allocator suffer from more: 8 images."""


class ReplayedOperation(nn.Module):
    """One call of the graph, as a function of the value that varies."""

    def forward(self, value: Tensor, *, run: Callable[[Tensor], Any] = torch.relu) -> Any:
        return run(value)


class ReplayedGate(ReplayedOperation, nn.ReLU):
    """A call of any member of the ReLU family. It is an `nn.ReLU` so that it is found as one."""


class Replay(nn.Module):
    """A network at one shape of input, with the weights that its model had when this was made.

    Args:
        model: the module that the network was traced from.
        images: a batch as it will be given, (B, …).
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        network, tensors = network_and_tensors(model, images)
        self.network: Network = network
        self._fixed = {value: tensors[value] for value in network.graph.constants}
        self._gates = network.gates | network.class_gates
        self._operations: dict[int, nn.Module] = {index: ReplayedGate() for index in self._gates}
        self.gates = nn.ModuleList(self._operations.values())
        convolutions = [node.index for node in network.nodes if self._makes_map(node)]
        self.last_convolution = ReplayedOperation() if convolutions else None
        if self.last_convolution is not None:
            self._operations[convolutions[-1]] = self.last_convolution

    @property
    def last_map(self) -> nn.Module | None:
        """The last ReLU whose output still has places; that of a class layer, where the network has one."""
        maps = [index for index, gate in self._gates.items() if len(gate.shape) == 3 and prod(gate.shape[1:]) > 1]
        return self._operations[max(maps)] if maps else None

    def _makes_map(self, node: Node) -> bool:
        """Whether a node is a convolution over the image whose output still has places."""
        shape = self.network.graph.shapes[node.outputs[0].index] if node.outputs[0] is not None else ()
        return has(node, "convolution") and prod(shape[2:]) > 1

    def forward(self, images: Tensor) -> Tensor:
        """(B, classes) logits."""
        network = self.network
        step = self._step if torch.is_grad_enabled() else run_by_value  # without gradients no hook changes anything
        values = network.run([network.logits], {**self._fixed, network.graph.input: images}, step)
        return class_logits(values[network.logits].reshape(len(images), -1))

    def _step(self, node: Node, values: dict[Value, Tensor]) -> dict[Value, Tensor]:
        operation = self._operations.get(node.index)
        if operation is None:
            return run_by_value(node, values)
        source = self._gates[node.index].source if node.index in self._gates else node.inputs[0]
        # A view of its own: hooks on it see the gradient of this call, not that of others who read the value.
        value = values[source].view_as(values[source])
        return by_value(node, operation(value, run=lambda v: run_node(node, {**values, source: v})))


class Classifier:
    """The logits of a model for any number of images, whatever batch it was made for.

    Args:
        module: any module that can be explained.
        image: one image as the network takes it, on the device and in the precision to compute in.
    """

    def __init__(self, module: nn.Module, image: Tensor) -> None:
        self.module = module
        self._replays: dict[torch.Size, Replay] = {}
        self.replay(image[None])  # refuses what cannot be explained at all
        try:
            self.replay(image[None].repeat(2, *[1] * image.dim()))
            self.chunk = max(1, (CPU_CHUNK if image.device.type == "cpu" else CHUNK) // image.numel())
        except PathxError:  # traced or exported for one image at a time
            self.chunk = 1
        self._layout = self._quickest_layout(image[None])

    def _quickest_layout(self, images: Tensor) -> torch.memory_format:
        """Channels last where the network takes it: on a CPU that is up to twice as quick."""
        if images.dim() == 4 and images.device.type == "cpu":
            with suppress(RuntimeError), torch.no_grad():  # such as a view that asks for the usual layout
                self.replay(images)(images.contiguous(memory_format=torch.channels_last))
                return torch.channels_last
        return torch.contiguous_format

    def replay(self, images: Tensor) -> Replay:
        """The network for batches of this shape, as a module."""
        if images.shape not in self._replays:
            self._replays[images.shape] = Replay(self.module, images)
        return self._replays[images.shape]

    def __call__(self, images: Tensor) -> Tensor:
        """(B, classes) logits, differentiable where gradients are enabled."""
        layout = torch.contiguous_format if torch.is_grad_enabled() else self._layout
        parts = (part.contiguous(memory_format=layout) for part in images.split(self.chunk))
        return torch.cat([self.replay(part)(part) for part in parts])

    def probabilities(self, images: Tensor) -> Tensor:
        """(B, classes) softmax of the logits."""
        return self(images).softmax(1)
