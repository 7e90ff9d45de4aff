"""What an explanation is: plain, frozen data, free of files and terminals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import accumulate
from math import prod
from os import PathLike
from typing import TYPE_CHECKING, Any

from pathx.defaults import IMPORTANCE
from pathx.errors import PathxError

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor, nn

    from pathx.decomposition import Decomposition
    from pathx.drawing.render import Drawing
    from pathx.report.page import Report

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
            exclusive. Empty for inputs that are not images.
    """

    tensor: str
    index: tuple[int, ...]
    activation: float
    weight: float
    contribution: float
    importance: float
    receptive_field: tuple[int, ...]

    @staticmethod
    def read(entry: dict[str, Any]) -> Unit:
        """From a document."""
        fields = {name: entry[name] for name in ("tensor", "activation", "weight", "contribution", "importance")}
        return Unit(**fields, index=tuple(entry["index"]), receptive_field=tuple(entry["receptive_field"]))


Places = tuple[tuple[float, float], tuple[float, float]]
"""Down and across, (centre, step): what row 0 of a grid looks at, and how far it is to row 1."""


@dataclass(frozen=True)
class Grid:
    """Where the units of a tensor are on a grid, where they are no map (channels, height, width): tokens, channels last.

    The flat index of a unit, divided by `inner`, counts the entries of `cells`, from the start again after the last one.

    Args:
        cells: row * width + column of each entry; -1 for what has no place, such as a class token. None for
            0, 1, …, height * width - 1.
    """

    height: int
    width: int
    inner: int
    cells: tuple[int, ...] | None = None


@dataclass(frozen=True)
class LayerTensor:
    """One activation of a hidden layer, with the shape of its output for one image.

    Args:
        places: the field of a unit in row y has its centre at `centre + step * y`, in pixels of the model's input; columns
            likewise. None for vectors, and wherever units look at the whole image alike.
        grid: the row and column of every unit; None where these are the last two dimensions of a map (channels, height, width).
    """

    name: str
    shape: tuple[int, ...]
    places: Places | None = None
    grid: Grid | None = None

    @property
    def channel_dim(self) -> int:
        """Which number of a unit's index is its channel: the first of (channel, y, x), the last of (token, i)."""
        return 0 if self.grid is None or self.grid.inner == 1 else len(self.shape) - 1

    @staticmethod
    def read(entry: dict[str, Any]) -> LayerTensor:
        """From a document."""
        places, grid = entry.get("places"), entry.get("grid")
        cells = grid and grid["cells"]
        return LayerTensor(
            entry["name"],
            tuple(entry["shape"]),
            places and ((*places[0],), (*places[1],)),
            grid and Grid(grid["height"], grid["width"], grid["inner"], None if cells is None else (*cells,)),
        )

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        known = {"name": self.name, "shape": [*self.shape], "places": self.places and [*map(list, self.places)]}
        return known if self.grid is None else {**known, "grid": asdict(self.grid)}

    def cells(self, units: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """The cells, row * width + column, of units by their flat indices, -1 for those without a place; and the grid's size."""
        if self.grid is None:
            height, width = self.shape[-2:]
            return units % (height * width), (height, width)
        size = (self.grid.height, self.grid.width)
        number = units // self.grid.inner
        if self.grid.cells is None:
            return number % (size[0] * size[1]), size
        return number.new_tensor(self.grid.cells)[number % len(self.grid.cells)], size

    def position(self, index: Sequence[int]) -> tuple[int, int] | None:
        """The row and the column of a unit on its grid; None for a unit of a vector, and for a token without a place."""
        import torch

        if self.grid is None and len(self.shape) < 3:
            return None
        cells, (_, width) = self.cells(torch.tensor([self.number(index)]))
        return divmod(int(cells[0]), width) if int(cells[0]) >= 0 else None

    def number(self, index: Sequence[int]) -> int:
        """The flat index of a unit."""
        number = 0
        for place, size in zip(index, self.shape, strict=True):
            number = number * size + place
        return number


@dataclass(frozen=True, eq=False, repr=False)
class Edges:
    """What the units of one layer of a path send to the target through the units of a layer above, unit by unit.

    Args:
        layer: the layer above, or None for the class itself, where routes reach it without another path layer between.
        value: (units of this layer, units of the layer above), both in the order of `PathLayer.units`; (units, 1) for
            the class. Signed.
    """

    layer: int | None
    value: Tensor

    def __repr__(self) -> str:
        to = "the class" if self.layer is None else f"layer {self.layer}"
        return f"<Edges to {to}: {self.value.shape[0]} x {self.value.shape[1]}>"


@dataclass(frozen=True, repr=False)
class PathLayer:
    """The units kept in one hidden layer, by falling importance.

    Args:
        layer: 1 next to the input, N next to the output.
        below_alpha: no unit was above alpha, so the single most important one was kept.
        edges: where the units send what they contribute: one entry for every layer above that they reach directly (only
            the next one, unless routes may jump). A unit's values over all entries sum to its contribution. Empty where
            a layer has more than 16 million pairs of units or the path more than 67 million, and for explanations that were
            read from files.
    """

    layer: int
    below_alpha: bool
    tensors: tuple[LayerTensor, ...]
    units: tuple[Unit, ...]
    edges: tuple[Edges, ...] = field(default_factory=tuple, compare=False)

    @staticmethod
    def read(entry: dict[str, Any]) -> PathLayer:
        """From a document, without its edges."""
        tensors, units = map(LayerTensor.read, entry["tensors"]), map(Unit.read, entry["units"])
        return PathLayer(entry["layer"], entry["below_alpha"], tuple(tensors), tuple(units))

    def __repr__(self) -> str:
        return f"<PathLayer {self.layer}: {len(self.units)} units of {', '.join(one.name for one in self.tensors)}>"

    @classmethod
    def later(
        cls, layer: int, below_alpha: bool, tensors: tuple[LayerTensor, ...], **make: Callable[[], Any]
    ) -> PathLayer:
        """A layer whose units and edges are written out when first looked at: a wide path has tens of thousands.

        Args:
            make: `units` and `edges`, and what `contributions` returns without writing them out.
        """
        made = cls.__new__(cls)
        made.__dict__.update(layer=layer, below_alpha=below_alpha, tensors=tensors, _later=make)
        return made

    def __getattr__(self, name: str) -> Any:
        """Units and edges that nobody has looked at yet."""
        later = self.__dict__.get("_later", {})
        make = later.get(name) if name in ("units", "edges") else None
        if make is not None:
            self.__dict__[name] = make()  # first, as another thread may be looking
            later.pop(name, None)
        if name not in self.__dict__:
            raise AttributeError(f"a PathLayer has no attribute {name!r}")
        return self.__dict__[name]

    def contributions(self) -> tuple[Tensor, Tensor]:
        """(units,) numbers in the layer, counted through its tensors in order, and (units,) what each contributes."""
        if "_later" in self.__dict__:
            numbers, values = self._later["contributions"]()
            return numbers, values
        import torch

        firsts = accumulate((prod(tensor.shape) for tensor in self.tensors), initial=0)
        known = {tensor.name: (tensor, first) for tensor, first in zip(self.tensors, firsts, strict=False)}
        numbers = [known[unit.tensor][0].number(unit.index) + known[unit.tensor][1] for unit in self.units]
        values = [unit.contribution for unit in self.units]
        return torch.tensor(numbers, dtype=torch.long), torch.tensor(values, dtype=torch.float64)

    def __getstate__(self) -> dict[str, Any]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True)
class Effect:
    """The probability of a class in the network as it is, without some units, and without as many others.

    Args:
        before: in the network as it is.
        after: with the units set to zero.
        at_random: the mean over random draws of other units; None where there was nothing to draw from.
    """

    before: float
    after: float
    at_random: float | None


@dataclass(frozen=True)
class Removal(Effect):
    """What becomes of the explained class when the path's units are set to zero in the real network.

    `before`, `after` and `at_random` are probabilities of the explained class.

    Args:
        units: how many units the path has.
        of_active: how many units are active in the layers of the path; theirs are among them.
        draws: how many random draws `at_random` is the mean of.
        random_units: how many units each draw removes: as many active ones of each layer as the path has there, none of
            them on the path. Fewer than `units` where a layer has fewer others.
        against: the same probabilities of the class that the target is explained against.
    """

    units: int
    of_active: int
    draws: int
    random_units: int
    against: Effect | None = None


@dataclass(frozen=True, eq=False)
class Origin:
    """What an explanation was made from, to look into it further: references, not copies.

    Args:
        image: one input, as the model took it.
        labels: of the classes, where the model came with any.
        photo: what the input was made of, where that was given,
        region: and the part of it that the network saw.
    """

    model: nn.Module
    image: Tensor
    labels: tuple[str, ...] = ()
    photo: Image.Image | None = None
    region: Region | None = None


@dataclass(frozen=True, eq=False, repr=False)
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
        exact: "region" where the numbers hold in a whole region around the image (ReLU networks), "image" where they hold at it
            alone: gates, norms and attention are held as they are there.
        importance: what units were ranked by: "paper", the softmax over the classes of what they send to each, or "effect", their
            first-order effect on the log-odds of the target.
        against: the class that the target is explained against, or None. Where there is one, everything here is about the
            difference of the two: target minus against.
        branch: of the path through one unit of a decomposition, the layer of that unit. The layers above belong to the whole
            path and are not on its map.
        removal: what becomes of the class without the path's units, where that was asked for.
        layer_map: (H, W) where every unit of the upper half of the layers looks, where that is to be drawn.
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
    exact: str = "region"
    importance: str = IMPORTANCE
    against: int | None = None
    branch: int | None = None
    removal: Removal | None = None
    layer_map: Tensor | None = field(default=None, repr=False)
    origin: Origin | None = field(default=None, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "origin": None}  # a pickle leaves the model behind

    def __repr__(self) -> str:
        units = sum(len(layer.units) for layer in self.path)
        against = "" if self.against is None else f" against {self.other_label!r}"
        return (
            f"<Explanation of {self.label!r}{against}: {units} units in {self.depth} of {self.hidden_layers} layers, "
            f"score {self.score:.4g}>"
        )

    @property
    def label(self) -> str:
        """The explained class by its label, where the model came with labels; else by its number."""
        return self._label(self.target)

    @property
    def other_label(self) -> str:
        """The class that it is explained against; empty where there is none."""
        return "" if self.against is None else self._label(self.against)

    def _label(self, index: int) -> str:
        known = () if self.origin is None else self.origin.labels
        return known[index] if index < len(known) else f"class {index}"

    @property
    def settings(self) -> dict[str, Any]:
        """What the path was asked for, but for alpha, which may follow from the number of classes."""
        return {name: getattr(self, name) for name in ("depth", "width", "skips", "importance")}

    @property
    def complete(self) -> bool:
        """Whether the path reaches from the output to the first hidden layer."""
        return self.depth == self.hidden_layers

    @property
    def probability(self) -> float:
        """The softmax of the logits at the explained class."""
        return float(self.logits.detach().cpu().double().flatten().softmax(0)[self.target])

    @property
    def share_of_logit(self) -> float | None:
        """What the path carries of the class's logit, or of the difference of two; None where that is not above 0.

        It may be more than 1: a path holds what supports the class, and leaves out much of what counts against it.
        """
        logits = self.logits.detach().cpu().double().flatten()
        logit = float(logits[self.target] - (0 if self.against is None else logits[self.against]))
        return self.score / logit if logit > 0 else None

    @property
    def mapped(self) -> tuple[int, ...]:
        """The layers of the path whose units have a place in the image, from the output down."""
        known = self._own_layers() if self.attribution.dim() == 3 else ()
        return tuple(layer.layer for layer in known if any(tensor.places for tensor in layer.tensors))

    def _own_layers(self) -> tuple[PathLayer, ...]:
        return tuple(layer for layer in self.path if self.branch is None or layer.layer <= self.branch)

    @property
    def map_note(self) -> str | None:
        """What `path_map` leaves out, in words, or what stands in for it; None where it holds every layer."""
        without = [str(layer.layer) for layer in self._own_layers() if layer.layer not in self.mapped]
        if not without:
            return None
        if not self.mapped:
            return "no unit of the path has a place in the image: the pixel map stands in for the path map"
        return f"layer{'s' * (len(without) > 1)} {', '.join(without)} left out of the path map: no place in the image"

    def path_map(self, layer: int | None = None, *, smoothing: float = 0.0) -> Tensor:
        """Where the path's units look, (H, W) in float64: each unit's contribution, laid at the centre of its field.

        The part of a layer adds up to the contributions of those of its units that have a place. Where no layer has
        any, the attribution summed over channels stands in; `map_note` says so.

        Args:
            layer: the part of this layer alone; zero where its units have no place.
            smoothing: blurred for display by a Gaussian of this width, as a share of the shorter side.
        """
        from pathx.maps import contribution_grids, enlarge, smooth

        layers = self.mapped if layer is None else (layer,)
        if not layers:
            return smooth(self.attribution, smoothing)
        size = (self.attribution.shape[-2], self.attribution.shape[-1])
        parts = [part for kept in self.path if kept.layer in layers for part in contribution_grids(kept)]
        return enlarge(parts, size, smoothing)

    def decompose(self, *, from_layer: int | None = None, features: int | None = None) -> Decomposition:
        """This decision split into features, with the arguments of `pathx.decompose`; runs the model once more on the image."""
        from pathx.decomposition import decompose

        if self.against is not None:
            raise PathxError("decompose does not compare classes: explain one class")
        if self.origin is None:
            raise PathxError(
                "this explanation was not made by pathx.explain, and keeps no model and no input: call pathx.decompose",
                usage=True,
            )
        model, image = self.origin.model, self.origin.image[None]
        (made,) = decompose(
            model,
            image,
            target=self.target,
            from_layer=from_layer,
            features=features,
            alpha=self.alpha,
            **self.settings,
        )
        return replace(made, whole=replace(made.whole, origin=self.origin))

    def overlay(
        self, photo: Image.Image | None = None, region: Region | None = None, *, drawing: Drawing | None = None
    ) -> Image.Image:
        """The path map on the photo, or the attribution (`Drawing(heat="pixels")`).

        Args:
            photo: by default the image that was explained, or else the network's input, as far as it can be shown.
            region: the part of the photo that the network saw, as `preprocessing.region(width, height)` gives it; all of
                it by default.
        """
        from pathx.drawing.figure import View
        from pathx.drawing.render import Drawing

        return View.of(self, photo, region).overlay(self, drawing or Drawing())

    def figure(
        self,
        photo: Image.Image | None = None,
        region: Region | None = None,
        *,
        label: str | None = None,
        drawing: Drawing | None = None,
    ) -> Image.Image:
        """The photo, the path map on it and the pixel map, with what to know in words. Notebooks show it by themselves.

        Args:
            photo: as for `overlay`.
            region: as for `overlay`.
            label: of the explained class; by default as the model's labels call it, or its number.
        """
        from pathx.drawing.figure import View, explanation_figure
        from pathx.drawing.render import Drawing

        return explanation_figure(self, View.of(self, photo, region, label), drawing or Drawing())

    def report(
        self,
        file: str | PathLike[str] | None = None,
        photo: Image.Image | None = None,
        region: Region | None = None,
        *,
        label: str | None = None,
        name: str = "the image",
    ) -> Report:
        """An interactive page: the photo, the path as a flow, what its units saw. Notebooks show it by themselves.

        Where the explanation was made by `pathx.explain`, the model is run once more, for paths of other depths and widths.

        Args:
            file: where to write the page, such as `report.html`.
            photo: as for `figure`.
            region: as for `figure`.
            label: as for `figure`.
            name: what the page calls the image.
        """
        from pathx.report.explanation import explanation_report

        made = explanation_report(self, photo, region, label=label, name=name)
        if file is not None:
            made.save(file)
        return made

    def _repr_png_(self) -> bytes | None:
        from pathx.drawing.figure import notebook_png

        return notebook_png(self, self.figure)


class Explanations(list[Explanation]):
    """What `pathx.explain` returns: a list that a notebook shows as figures."""

    MOST_SHOWN = 10

    def _repr_html_(self) -> str | None:
        from base64 import b64encode

        shown = [made._repr_png_() for made in self[: self.MOST_SHOWN]]
        if not shown or any(picture is None for picture in shown):
            return None
        pages = [f'<img src="data:image/png;base64,{b64encode(picture or b"").decode()}">' for picture in shown]
        more = len(self) - len(shown)
        return "<br>".join([*pages, *([f"and {more} more"] if more else [])])
