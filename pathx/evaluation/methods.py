"""Attribution methods: pathx, other methods, and controls that ignore the network.

Each function is chosen by its name in `choices.METHODS`, which also has its settings, the keyword arguments. Captum computes
its methods on the replayed network, where its hooks work however the model is written.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from pathx.engine.device import is_out_of_memory
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.linear import frozen_gradients
from pathx.engine.replay import Classifier
from pathx.errors import PathxError
from pathx.evaluation.choices import METHODS
from pathx.evaluation.statistics import generator_of
from pathx.explanation import Explanation
from pathx.layers import layer_maps

IG_STEPS = METHODS["integrated_gradients"].facts["steps"]
BLUR_SIGMA, BLUR_STEPS = METHODS["blur_ig"].facts["max_sigma"], METHODS["blur_ig"].facts["steps"]
BLUR_GRADIENT = 0.01


@dataclass(frozen=True, eq=False)
class Subject:
    """A batch of images, and the class of each that is to be attributed.

    Args:
        images: (B, C, H, W) as the network takes them.
        names: one per image, which seed whatever is random.
    """

    classifier: Classifier
    images: Tensor
    targets: list[int]
    names: list[str]

    @cached_property
    def frozen(self) -> Frozen:
        """One forward pass for any number of paths."""
        return freeze(self.classifier.module, self.images)


def captum_is_missing() -> bool:
    return find_spec("captum") is None


def pathx(subject: Subject, **path: Any) -> Tensor:
    """The pixel map: the attribution of the path's linear model."""
    return torch.stack(_draw_each(subject, path, lambda explanation: explanation.attribution))


def path_map(subject: Subject, **path: Any) -> Tensor:
    """Where the path's units look. It has no channels, so each of them gets an equal part."""
    height, width = subject.images.shape[2:]
    maps = _draw_each(subject, path, lambda explanation: explanation.path_map().reshape(1, height, width))
    return _planes(torch.cat([one[:1] for one in maps]), subject.images)


def explain_subject(subject: Subject, path: dict[str, Any]) -> list[Explanation]:
    return explain_frozen(subject.frozen, list(enumerate(subject.targets)), **path)


def _draw_each(subject: Subject, path: dict[str, Any], draw: Callable[[Explanation], Tensor]) -> list[Tensor]:
    """A map (C, H, W) of every image; NaN for an image that cannot be explained."""

    def explain(pairs: list[tuple[int, int]]) -> list[Tensor]:
        try:
            return list(map(draw, explain_frozen(subject.frozen, pairs, **path)))
        except PathxError as error:
            if error.usage or is_out_of_memory(error):
                raise
        alone = (
            [explain([pair]) for pair in pairs] if len(pairs) > 1 else [[torch.full_like(subject.images[0], torch.nan)]]
        )
        return [one for maps in alone for one in maps]

    return explain(list(enumerate(subject.targets)))


def _planes(maps: Tensor, images: Tensor) -> Tensor:
    """Maps (B, H, W) as attributions that add up to them."""
    return (maps / images.shape[1]).to(images)[:, None].expand_as(images)


def frozen(subject: Subject) -> Tensor:
    """The input times the weight of the frozen network with every unit kept: complete, at the cost of a gradient."""
    return frozen_gradients(subject.frozen, subject.targets) * subject.images


def layer_map(subject: Subject) -> Tensor:
    """Every unit in the upper half of the layers of maps, on the path or not."""
    return _planes(torch.stack(layer_maps(subject.frozen, list(enumerate(subject.targets)))), subject.images)


def _captum(name: str, model: Any, subject: Subject, *arguments: Any, **options: Any) -> Tensor:
    kind = getattr(import_module("captum.attr"), name)
    targets = torch.tensor(subject.targets, device=subject.images.device)
    with warnings.catch_warnings(), torch.enable_grad():
        # Captum warns of hooks, which only the replay gets, and of gradients, which are needed.
        warnings.filterwarnings("ignore", module=r"captum\.")
        found: Tensor = kind(model, *arguments).attribute(
            subject.images.clone().requires_grad_(), target=targets, **options
        )
    return found.detach()


def saliency(subject: Subject, *, absolute: bool = True) -> Tensor:
    return _captum("Saliency", subject.classifier, subject, abs=absolute)


def input_x_gradient(subject: Subject) -> Tensor:
    return _captum("InputXGradient", subject.classifier, subject)


def integrated_gradients(subject: Subject) -> Tensor:
    rows = max(subject.classifier.chunk, len(subject.images))
    return _captum("IntegratedGradients", subject.classifier, subject, n_steps=IG_STEPS, internal_batch_size=rows)


def grad_cam(subject: Subject) -> Tensor:
    cells = grad_cam_cells(subject)[:, None].float()
    maps = torch.nn.functional.interpolate(cells, subject.images.shape[-2:], mode="bilinear")
    return _planes(maps[:, 0], subject.images)


def grad_cam_cells(subject: Subject) -> Tensor:
    """(B, h, w) GradCAM at the size of its layer."""
    replay = subject.classifier.replay(subject.images)
    if replay.last_map is None:
        raise PathxError("the model has no ReLU that makes a map, which GradCAM needs")
    return _captum("LayerGradCam", replay, subject, replay.last_map, relu_attributions=True)[:, 0]


def guided_backprop(subject: Subject) -> Tensor:
    return _captum("GuidedBackprop", subject.classifier.replay(subject.images), subject)


def guided_gradcam(subject: Subject) -> Tensor:
    replay = subject.classifier.replay(subject.images)
    if replay.last_convolution is None:
        raise PathxError("the model has no convolution that makes a map, which Guided GradCAM needs")
    return _captum("GuidedGradCam", replay, subject, replay.last_convolution)


def blur_ig(subject: Subject) -> Tensor:
    """Integrated gradients along the blur of the image, as in PAIR's `saliency`."""
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
    """An image blurred by each sigma, zeros around it, (S, C, H, W)."""
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


def random(subject: Subject) -> Tensor:
    """Noise, the same for every image of one name."""
    shape = subject.images.shape[1:]
    maps = [torch.rand(shape, generator=generator_of(name)) for name in subject.names]
    return torch.stack(maps).to(subject.images)


def edges(subject: Subject) -> Tensor:
    """The magnitude of Sobel's gradient in each channel."""
    images = subject.images
    sobel = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]]).to(images)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1), mode="replicate").flatten(0, 1)[:, None]
    slopes = torch.nn.functional.conv2d(padded, torch.stack([sobel, sobel.mT])[:, None])
    return slopes.square().sum(1).sqrt().reshape(images.shape)


def constant(subject: Subject) -> Tensor:
    """The same everywhere: whatever this gains is due to the protocol."""
    return torch.ones_like(subject.images)
