"""The names of attribution methods, protocols and ways to break ties, with their descriptions.

The command line shows these before it loads PyTorch. The functions of these names are in `methods` and `protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, TypeVar

from pathx.defaults import DEPTH, IMPORTANCE, SKIPS, WIDTH
from pathx.errors import PathxError

T = TypeVar("T")


@dataclass(frozen=True)
class Method:
    """A way to attribute a class to pixels.

    Args:
        name: of its function in `methods`.
        title: its name in tables and plots.
        settings: the function's other arguments, with the defaults.
        captum: whether it needs Captum.
        facts: fixed choices, for result files.
    """

    name: str
    title: str
    captum: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compute(self) -> Callable[..., Any]:
        """(subject, **settings) -> signed attributions, (B, C, H, W)."""
        function: Callable[..., Any] = getattr(import_module("pathx.evaluation.methods"), self.name)
        return function


PATH = {"depth": DEPTH, "width": WIDTH, "alpha": None, "skips": SKIPS, "importance": IMPORTANCE}
"""The settings of a path, with the defaults."""

METHODS = {
    method.name: method
    for method in (
        Method("path_map", "path map", settings=PATH),
        Method("pathx", "pathx", settings=PATH),
        Method("frozen", "Input x frozen weight"),
        Method("layer_map", "map of all layers", False, {"layers": "upper half"}),
        Method("grad_cam", "GradCAM", True, {"layer": "last ReLU that makes a map", "upsampling": "bilinear"}),
        Method("saliency", "Saliency", True, settings={"absolute": True}),
        Method("input_x_gradient", "Input x Gradient", True),
        Method(
            "integrated_gradients", "Integrated Gradients", True, {"steps": 50, "baseline": "zero in normalised space"}
        ),
        Method("guided_backprop", "Guided Backprop", True),
        Method("guided_gradcam", "Guided GradCAM", True, {"layer": "last convolution", "upsampling": "nearest"}),
        Method("blur_ig", "BlurIG", False, {"max_sigma": 50.0, "steps": 100, "gradient": "of the softmax"}),
        Method("random", "random"),
        Method("edges", "edge detector"),
        Method("constant", "constant"),
    )
}
"""Every method by the name that users choose it by."""

DEFAULT_METHODS = ("path_map", "grad_cam", "integrated_gradients", "random")
ALL = "all"
"""Stands for every method."""

PATHS = ("path_map", "pathx")
"""The methods with the settings of a path; the first that runs is compared with all others."""


@dataclass(frozen=True)
class Ranking:
    """A protocol.

    Args:
        text: its description in result files.
        settings: of methods that it runs with other settings than usual.
    """

    text: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PROTOCOLS = {
    "rise": Ranking("sum over channels"),
    "paper": Ranking("each channel on its own; a step takes what is next in any", {"saliency": {"absolute": False}}),
    "grid": Ranking("share of the positive heat that lies in the class's own quarter of a mosaic"),
}
"""Every protocol by the name that users choose it by."""

DRAWS = 3

TIES = {
    "random": f"in random order, drawn from the picture's name; mean of {DRAWS} draws",
    "rows": "row by row, as the published code has it: a map that is flat over large parts gains by it",
}
"""The order of pixels with equal values."""


def method_names(asked: Sequence[str]) -> list[str]:
    """Methods by name, each once: four by default, `all` for every one."""
    names = [name for one in asked or DEFAULT_METHODS for name in (METHODS if one == ALL else (one,))]
    return list(dict.fromkeys(names))


def choose(what: str, name: str, among: Mapping[str, T]) -> T:
    """Look up a name. Raises PathxError if it is unknown."""
    if name not in among:
        raise PathxError(f"there is no {what} {name!r}: choose {' or '.join(among)}", usage=True)
    return among[name]
