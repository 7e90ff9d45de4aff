"""Attribution methods by name: pathx, those it is compared with, and two baselines that know nothing of the network.

Captum computes the methods it has, on the replayed network, where its hooks are right whatever the model's spelling.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from typing import Any

import torch
from torch import Tensor

from pathx.engine import explain_frozen
from pathx.errors import PathxError
from pathx.frozen import Frozen, freeze
from pathx.replay import Classifier

IG_STEPS = 50
BLUR_SIGMA, BLUR_STEPS, BLUR_GRADIENT = 50.0, 100, 0.01


@dataclass(frozen=True, eq=False)
class Subject:
    """A batch of pictures, and the class of each that is to be attributed.

    Args:
        images: (B, C, H, W) as the network takes them.
        names: one per picture; whatever is random is drawn from them.
    """

    classifier: Classifier
    images: Tensor
    targets: list[int]
    names: list[str]

    @cached_property
    def frozen(self) -> Frozen:
        """One forward pass, which serves any number of paths."""
        return freeze(self.classifier.module, self.images)


Compute = Callable[..., Tensor]
"""(subject, **settings) -> signed attributions, (B, C, H, W)."""


@dataclass(frozen=True)
class Method:
    """A way to attribute a class to pixels.

    Args:
        title: how tables and plots call it.
        settings: what `compute` takes beside the subject, with the defaults.
        facts: fixed choices, for result files to name.
        captum: Captum is needed.
    """

    title: str
    compute: Compute
    settings: dict[str, Any]
    facts: dict[str, Any]
    captum: bool


METHODS: dict[str, Method] = {}
"""Every method by name; filled by @method."""


def method(name: str, title: str, *, captum: bool = False, **facts: Any) -> Callable[[Compute], Compute]:
    """Register a method under the name that users choose it by. Its keyword arguments are its settings."""

    def register(compute: Compute) -> Compute:
        defaults = {key: item.default for key, item in list(signature(compute).parameters.items())[1:]}
        METHODS[name] = Method(title, compute, defaults, facts, captum)
        return compute

    return register


def captum_is_missing() -> bool:
    return find_spec("captum") is None


@method("pathx", "pathx")
def path(
    subject: Subject,
    *,
    depth: int | str = 3,
    width: int | str = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
) -> Tensor:
    wanted = list(enumerate(subject.targets))
    explanations = explain_frozen(subject.frozen, wanted, depth=depth, width=width, alpha=alpha, skips=skips)
    return torch.stack([explanation.attribution for explanation in explanations])


@contextmanager
def _quiet() -> Iterator[None]:
    """Without Captum's warnings about hooks, which it sets on the replay alone, and gradients, which it needs."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"captum\.")
        yield


def _captum(name: str, model: Any, subject: Subject, *arguments: Any, **options: Any) -> Tensor:
    kind = getattr(import_module("captum.attr"), name)
    targets = torch.tensor(subject.targets, device=subject.images.device)
    with _quiet(), torch.enable_grad():
        found: Tensor = kind(model, *arguments).attribute(
            subject.images.clone().requires_grad_(), target=targets, **options
        )
    return found.detach()


@method("saliency", "Saliency", captum=True)
def saliency(subject: Subject, *, absolute: bool = True) -> Tensor:
    return _captum("Saliency", subject.classifier, subject, abs=absolute)


@method("input_x_gradient", "Input x Gradient", captum=True)
def input_x_gradient(subject: Subject) -> Tensor:
    return _captum("InputXGradient", subject.classifier, subject)


@method(
    "integrated_gradients", "Integrated Gradients", captum=True, steps=IG_STEPS, baseline="zero in normalised space"
)
def integrated_gradients(subject: Subject) -> Tensor:
    rows = max(subject.classifier.chunk, len(subject.images))
    return _captum("IntegratedGradients", subject.classifier, subject, n_steps=IG_STEPS, internal_batch_size=rows)


@method("guided_backprop", "Guided Backprop", captum=True)
def guided_backprop(subject: Subject) -> Tensor:
    return _captum("GuidedBackprop", subject.classifier.replay(subject.images), subject)


@method("guided_gradcam", "Guided GradCAM", captum=True, layer="last convolution", upsampling="nearest")
def guided_gradcam(subject: Subject) -> Tensor:
    replay = subject.classifier.replay(subject.images)
    if replay.last_convolution is None:
        raise PathxError("the model has no convolution that makes a map, which Guided GradCAM needs")
    return _captum("GuidedGradCam", replay, subject, replay.last_convolution)


@method("blur_ig", "BlurIG", max_sigma=BLUR_SIGMA, steps=BLUR_STEPS, gradient="of the softmax")
def blur_ig(subject: Subject) -> Tensor:
    """Integrated gradients along the blur of the picture, as in PAIR's `saliency`."""
    maps = []
    for image, target in zip(subject.images, subject.targets, strict=True):
        total = torch.zeros_like(image)
        for steps in torch.arange(BLUR_STEPS).split(min(subject.classifier.chunk, BLUR_STEPS)):
            sigmas = [step * BLUR_SIGMA / BLUR_STEPS for step in steps.tolist()]
            blurred = _gaussian(image, sigmas)
            change = (_gaussian(image, [sigma + BLUR_GRADIENT for sigma in sigmas]) - blurred) / BLUR_GRADIENT
            with torch.enable_grad():
                states = blurred.to(image.dtype).requires_grad_()
                score = subject.classifier.probabilities(states)[:, target].sum()
                (gradient,) = torch.autograd.grad(score, states)
            total -= (gradient * change).sum(0).to(image.dtype) * (BLUR_SIGMA / BLUR_STEPS)
        maps.append(total)
    return torch.stack(maps)


def _gaussian(image: Tensor, sigmas: list[float]) -> Tensor:
    """A picture blurred by each sigma, zeros around it, (S, C, H, W)."""
    rows, columns = (
        torch.stack([_gaussian_matrix(size, sigma) for sigma in sigmas]).to(image.device) for size in image.shape[1:]
    )
    return rows[:, None] @ image.to(rows.dtype) @ columns[:, None].mT


@cache
def _gaussian_matrix(size: int, sigma: float) -> Tensor:
    """The blur of a line as scipy's gaussian_filter does it (cut off at 4 sigma, zeros outside), (size, size)."""
    reach = int(4 * sigma + 0.5)
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / sigma) ** 2) if sigma else torch.ones(1, dtype=torch.float64)
    weights = weights / weights.sum()
    place = torch.arange(size)
    apart = place - place[:, None] + reach
    inside = (apart >= 0) & (apart < len(weights))
    return torch.where(inside, weights[apart.clamp(0, len(weights) - 1)], 0.0)


@method("random", "random")
def random(subject: Subject) -> Tensor:
    """Noise, the same whenever a picture of that name comes."""
    maps = []
    for name, image in zip(subject.names, subject.images, strict=True):
        seed = int.from_bytes(hashlib.sha256(name.encode(errors="surrogateescape")).digest()[:8], "big") >> 1
        maps.append(torch.rand(image.shape, generator=torch.Generator().manual_seed(seed)))
    return torch.stack(maps).to(subject.images)


@method("edges", "edge detector")
def edges(subject: Subject) -> Tensor:
    """How steep each channel is: the length of Sobel's gradient."""
    images = subject.images
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).to(images)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate").flatten(0, 1)[:, None]
    slopes = torch.nn.functional.conv2d(padded, torch.stack([sobel, sobel.mT])[:, None])
    return slopes.square().sum(1).sqrt().reshape(images.shape)
