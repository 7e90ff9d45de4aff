"""What an explanation is: plain, frozen data, free of files and terminals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Unit:
    """One hidden unit on the path.

    Args:
        tensor: name of the ReLU it belongs to, such as `features.28` or `layer4.1.relu_1`.
        index: (channel, y, x) in a feature map, (i,) in a vector.
        activation: the ReLU's output.
        weight: what one unit of activation sends to the target class through the path above.
        contribution: weight x activation.
        importance: softmax over the classes of the contributions, at the target.
        receptive_field: (left, top, right, bottom) in pixels of the model's input, clipped to it, right and bottom
            exclusive. Empty for inputs that are not pictures.
    """

    tensor: str
    index: tuple[int, ...]
    activation: float
    weight: float
    contribution: float
    importance: float
    receptive_field: tuple[int, ...]


@dataclass(frozen=True)
class LayerTensor:
    """One ReLU of a hidden layer, with the shape of its output for one image."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class PathLayer:
    """The units kept in one hidden layer, by falling importance.

    Args:
        layer: 1 next to the input, N next to the output.
        below_alpha: no unit was above alpha, so the single most important one was kept.
    """

    layer: int
    below_alpha: bool
    tensors: tuple[LayerTensor, ...]
    units: tuple[Unit, ...]

    @classmethod
    def later(
        cls, layer: int, below_alpha: bool, tensors: tuple[LayerTensor, ...], units: Callable[[], tuple[Unit, ...]]
    ) -> PathLayer:
        """A layer whose units are written out when they are first looked at: a wide path has tens of thousands."""
        made = cls.__new__(cls)
        made.__dict__.update(layer=layer, below_alpha=below_alpha, tensors=tensors, _units=units)
        return made

    def __getattr__(self, name: str) -> Any:
        if name != "units" or "_units" not in self.__dict__:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        units = self.__dict__["units"] = self.__dict__.pop("_units")()
        return units

    def __getstate__(self) -> dict[str, Any]:
        return {"units": self.units, **self.__dict__}


@dataclass(frozen=True, eq=False)
class Explanation:
    """The path behind one class of one image, and the exact linear model of the input that it is.

    Args:
        target: index of the explained class.
        path: layers from the output (n = N) towards the input.
        attribution: weight * input, signed, one value per input element.
        weight: the linear model's weight for the target, shaped as one input.
        bias: the linear model's constant. attribution.sum() + bias equals score up to rounding.
        score: what the path sends to the target class.
        logits: the network's outputs for this image, one per class.
        hidden_layers: N, the number of hidden layers of the network.
    """

    target: int
    path: tuple[PathLayer, ...]
    attribution: Tensor
    weight: Tensor
    bias: float
    score: float
    logits: Tensor
    depth: int
    width: int | str
    alpha: float
    skips: str
    hidden_layers: int

    @property
    def complete(self) -> bool:
        """Whether the path reaches from the output to the first hidden layer."""
        return self.depth == self.hidden_layers
