"""What is measured: networks, a real photo, and the calls that are compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

import pathx
from benchmarks.measure import ROOT
from pathx.models.torchvision import torchvision

PHOTO = ROOT / "examples" / "cat.png"
NAMES = ("vgg16", "resnet18", "resnet50", "squeezenet1_1")


@dataclass(frozen=True, eq=False)
class Subject:
    """A network, an image for it, and the class it predicts there.

    Args:
        images: (1, 3, 224, 224).
    """

    name: str
    module: nn.Module
    images: Tensor
    target: int

    def path(self, images: Tensor | None = None, **settings: Any) -> Callable[[], object]:
        """The call that explains the image, or others with the same target."""
        images = self.images if images is None else images
        return lambda: pathx.explain(self.module, images, target=self.target, **settings)

    def layers(self) -> int:
        """N, the number of hidden layers."""
        return pathx.explain(self.module, self.images, target=self.target, depth=1, width=1)[0].hidden_layers

    def saliency(self) -> Callable[[], object]:
        """Captum's Saliency of the image: one forward and one backward pass."""
        from captum.attr import Saliency

        method = Saliency(self.module)
        return lambda: method.attribute(self.images.clone().requires_grad_(), target=self.target)


def subject(name: str, classes: int = 1000, *, settled: bool = False) -> Subject:
    """A network ready to be timed. Weights are the bundled ones, or random (He).

    Args:
        settled: with batch statistics of photos, without which the values in deep untrained networks explode.
    """
    module, images = network(name, classes), photo()
    norms = [part for part in module.modules() if settled and isinstance(part, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None
        norm.train()
    if norms:
        with torch.no_grad():
            module(photos(8))
        module.eval()
    with torch.no_grad():
        target = int(module(images).argmax())
    return Subject(name, module, images, target)


def network(name: str, classes: int = 1000) -> nn.Module:
    if name == "squeezenet1_1" and classes == 1000:
        return pathx.load_model(name).module
    # Heads for training alone are left out, and so is an initialisation that takes minutes.
    heads = {"aux_logits": False, "init_weights": False} if name in ("googlenet", "inception_v3") else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=classes, **heads)
        for part in module.modules():
            if isinstance(part, nn.Linear) and not part.weight.any():  # a head of zeros, as ViTs have, explains nothing
                nn.init.kaiming_normal_(part.weight)
    return module.eval()


def photo() -> Tensor:
    """The photo as the networks take it, (1, 3, 224, 224). All of them share torchvision's preprocessing."""
    with Image.open(PHOTO) as image:
        return pathx.load_model().preprocessing(image.convert("RGB"))[None]


def photos(count: int) -> Tensor:
    """Different images, (count, 3, 224, 224): the photo, cut closer and closer and mirrored in turn."""
    preprocessing = pathx.load_model().preprocessing
    with Image.open(PHOTO) as image:
        whole = image.convert("RGB")
    cuts = []
    for number in range(count):
        edge = 4 * number
        cut = whole.crop((edge, edge // 2, whole.width - edge, whole.height - edge // 2))
        cuts.append(preprocessing(cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if number % 2 else cut))
    return torch.stack(cuts)
