"""A traced network run again, as a module: logits of any batch, differentiable, with every ReLU a module of its own.

What hooks on modules get wrong (functional, in-place and re-used ReLUs) or cannot reach (TorchScript) is a plain list of
calls in the traced graph. Replayed, each gate is an `nn.ReLU` that is used once, which is what Captum's hooks ask for.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from pathx.engine import class_logits
from pathx.errors import PathxError
from pathx.frozen import network_of
from pathx.network import Network
from pathx.trace import Node, Value, filled, named_tensors, unwrapped

CHUNK = 4_000_000
"""How many numbers of input the network is given at once, at most: 26 pictures of 3 x 224 x 224."""

Run = Callable[[Tensor], Any]


class Operation(nn.Module):
    """One call of the graph, as a function of the value that varies."""

    def forward(self, value: Tensor, *, run: Run) -> Any:
        return run(value)


class Gate(nn.ReLU):
    """A call of any member of the ReLU family. It is an `nn.ReLU` so that it is found as one."""

    def forward(self, value: Tensor, *, run: Run = torch.relu) -> Any:
        return run(value)


class Replay(nn.Module):
    """A network at one shape of input, with the weights that its model had when this was made.

    Args:
        model: the module that the network was traced from.
        images: a batch as it will be given, (B, …).
    """

    def __init__(self, model: nn.Module, images: Tensor) -> None:
        super().__init__()
        network = network_of(model, images)
        self.network: Network = network
        weights = dict(named_tensors(unwrapped(model)))
        tensors = {value: weights[name] for name, value in network.graph.parameters.items()}
        tensors |= network.graph.constants
        self._dtype = images.dtype
        self._fixed = {value: self._like(tensor.detach(), images) for value, tensor in tensors.items()}
        last = {v: node.index for node in network.nodes for v in (*node.outputs, *node.inputs) if v is not None}
        self._dropped: dict[int, list[Value]] = {node.index: [] for node in network.nodes}
        for value, index in last.items():
            if value != network.logits:
                self._dropped[index].append(value)
        self._operations: dict[int, nn.Module] = {index: Gate() for index in network.gates}
        self.gates = nn.ModuleList(self._operations.values())
        last_map = next((node for node in reversed(network.nodes) if self._makes_map(node)), None)
        self.last_convolution = None if last_map is None else Operation()
        if last_map is not None and self.last_convolution is not None:
            self._operations[last_map.index] = self.last_convolution

    def _makes_map(self, node: Node) -> bool:
        """Whether a node is a convolution over the picture whose output still has places."""
        shape = self.network.graph.shapes[node.outputs[0].index] if node.outputs[0] is not None else ()
        return node.kind == "convolution" and prod(shape[2:]) > 1

    def _like(self, tensor: Tensor, images: Tensor) -> Tensor:
        return tensor.to(images.device, images.dtype if tensor.is_floating_point() else tensor.dtype)

    def forward(self, images: Tensor) -> Tensor:
        """(B, classes) logits."""
        network = self.network
        values: dict[Value, Tensor] = {**self._fixed, network.graph.input: images}
        hooked = torch.is_grad_enabled()  # without gradients there is nothing to change, and time to save
        for node in network.nodes:
            operation = self._operations.get(node.index) if hooked else None
            if operation is not None:
                source = network.gates[node.index].source if node.index in network.gates else node.inputs[0]
                # A view of its own: hooks on it see the gradient of this call, not that of others who read the value.
                value = values[source].view_as(values[source])
                out = operation(value, run=lambda v, n=node, s=source: self._run(n, {**values, s: v}))
            elif not hooked and node.index in network.overwritable:
                out = values[node.inputs[0]].relu_()
            else:
                out = self._run(node, values)
            outputs = out if isinstance(out, (tuple, list)) else (out,)
            for made, tensor in zip(node.outputs, outputs, strict=True):
                if made is not None:
                    values[made] = tensor
            for done in self._dropped[node.index]:
                values.pop(done, None)
        return class_logits(values[network.logits].reshape(len(images), -1))

    def _run(self, node: Node, values: dict[Value, Tensor]) -> Any:
        def actual(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return values[leaf]
            return self._dtype if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

        return node.op(
            *(filled(arg, actual) for arg in node.args), **{k: filled(a, actual) for k, a in node.kwargs.items()}
        )


class Classifier:
    """The logits of a model for any number of pictures, whatever batch it was made for.

    Args:
        module: any module that can be explained.
        image: one picture as the network takes it, on the device and in the precision to compute in.
    """

    def __init__(self, module: nn.Module, image: Tensor) -> None:
        self.module = module
        self._replays: dict[torch.Size, Replay] = {}
        self.replay(image[None])  # refuses what cannot be explained at all
        try:
            self.replay(image[None].repeat(2, *[1] * image.dim()))
            self.chunk = max(1, CHUNK // image.numel())
        except PathxError:  # traced or exported for one picture at a time
            self.chunk = 1

    def replay(self, images: Tensor) -> Replay:
        """The network for batches of this shape, as a module."""
        if images.shape not in self._replays:
            self._replays[images.shape] = Replay(self.module, images)
        return self._replays[images.shape]

    def __call__(self, images: Tensor) -> Tensor:
        """(B, classes) logits, differentiable where gradients are enabled."""
        return torch.cat([self.replay(part)(part) for part in images.split(self.chunk)])

    def probabilities(self, images: Tensor) -> Tensor:
        """(B, classes) softmax of the logits."""
        return self(images).softmax(1)
