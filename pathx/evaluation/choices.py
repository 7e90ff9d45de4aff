"""What can be chosen by name: attribution methods, protocols and how ties are broken.

The command line shows these before PyTorch is loaded, so here are the names and what is said of them. What a name does is
the function of that name, in `methods` or `protocols`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from inspect import signature
from typing import Any, TypeVar

from pathx.errors import PathxError

T = TypeVar("T")


@dataclass(frozen=True)
class Method:
    """A way to attribute a class to pixels.

    Args:
        name: of its function in `methods`.
        title: how tables and plots call it.
        captum: Captum is needed.
        facts: fixed choices, for result files to name.
    """

    name: str
    title: str
    captum: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def compute(self) -> Callable[..., Any]:
        """(subject, **settings) -> signed attributions, (B, C, H, W)."""
        function: Callable[..., Any] = getattr(import_module("pathx.evaluation.methods"), self.name)
        return function

    @property
    def settings(self) -> dict[str, Any]:
        """What `compute` takes beside the subject, with the defaults."""
        parameters = list(signature(self.compute).parameters.items())[1:]
        return {key: item.default for key, item in parameters if item.kind is item.KEYWORD_ONLY}


METHODS = {
    method.name: method
    for method in (
        Method("path_map", "path map"),
        Method("pathx", "pathx"),
        Method("grad_cam", "GradCAM", True, {"layer": "last ReLU that makes a map", "upsampling": "bilinear"}),
        Method("saliency", "Saliency", True),
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

PATHS = ("path_map", "pathx")
"""The methods that take a path's depth, width, alpha and skips; the first of them that runs is compared with all others."""


@dataclass(frozen=True)
class Ranking:
    """What tells protocols apart.

    Args:
        text: how result files describe it.
        settings: of methods that the protocol takes otherwise than they are usually taken.
    """

    text: str
    settings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


PROTOCOLS = {
    "rise": Ranking("sum over channels"),
    "paper": Ranking("each channel on its own; a step takes what is next in any", {"saliency": {"absolute": False}}),
}
"""Every protocol by the name that users choose it by."""

DRAWS = 3

TIES = {
    "random": f"in random order, drawn from the picture's name; mean of {DRAWS} draws",
    "rows": "row by row, as the published code has it: a map that is flat over large parts gains by it",
}
"""In what order pixels of equal value are taken."""


def chosen(what: str, name: str, among: Mapping[str, T]) -> T:
    """What a name stands for."""
    if name not in among:
        raise PathxError(f"there is no {what} {name!r}: choose {' or '.join(among)}", usage=True)
    return among[name]
