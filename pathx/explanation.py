"""What an explanation is: plain, frozen data, free of files and terminals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pathx.errors import PathxError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

    from pathx.decomposition import Decomposition
    from pathx.render import Drawing

    Region = tuple[float, float, float, float]


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
class Origin:
    """What an explanation was made from, to look into it further: references, not copies.

    Args:
        image: one input, as the model took it.
    """

    model: nn.Module
    image: Tensor


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
        origin: the model and the input, where `pathx.explain` made it; explanations of whole folders keep neither.
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
    origin: Origin | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "origin": None}  # a pickle leaves the model behind

    @property
    def complete(self) -> bool:
        """Whether the path reaches from the output to the first hidden layer."""
        return self.depth == self.hidden_layers

    @property
    def probability(self) -> float:
        """The softmax of the logits at the explained class."""
        return float(self.logits.detach().cpu().double().flatten().softmax(0)[self.target])

    def decompose(
        self, *, from_layer: int | None = None, features: int | None = None, group: bool = True
    ) -> Decomposition:
        """This decision taken apart into features; runs the model once more on the picture.

        Args:
            from_layer, features, group: as for `pathx.decompose`.
        """
        from pathx.decomposition import decompose

        if self.origin is None:
            raise PathxError(
                "this explanation was not made by pathx.explain, and keeps no model and no input: call pathx.decompose",
                usage=True,
            )
        (made,) = decompose(
            self.origin.model,
            self.origin.image[None],
            target=self.target,
            from_layer=from_layer,
            features=features,
            group=group,
            depth=self.depth,
            width=self.width,
            alpha=self.alpha,
            skips=self.skips,
        )
        return made

    def overlay(
        self, photo: Image.Image | None = None, region: Region | None = None, *, drawing: Drawing | None = None
    ) -> Image.Image:
        """The attribution on the photo.

        Args:
            photo: by default the network's input, as far as it can be shown.
            region: the part of the photo that the network saw, as `preprocessing.region(width, height)` gives it; all of
                it by default.
        """
        from pathx.render import Drawing
        from pathx.sheets import View

        return View.of(self, photo, region).overlay(self, drawing or Drawing())

    def figure(
        self,
        photo: Image.Image | None = None,
        region: Region | None = None,
        *,
        label: str | None = None,
        drawing: Drawing | None = None,
    ) -> Image.Image:
        """The photo, the overlay and the exact heatmap side by side, with captions. Notebooks show it by themselves.

        Args:
            photo, region: as for `overlay`.
            label: of the explained class; its number by default.
        """
        from pathx.render import Drawing
        from pathx.sheets import View, explanation_sheet

        return explanation_sheet(self, View.of(self, photo, region, label), drawing or Drawing())

    def _repr_png_(self) -> bytes | None:
        from pathx.sheets import notebook_png

        return notebook_png(self, self.figure)
