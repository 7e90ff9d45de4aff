"""The network that comes with pathx: SqueezeNet 1.1 for the 1000 classes of ImageNet.

Its architecture is written out here, with torchvision's names for all modules, because importing torchvision takes as
long as importing torch.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

from pathx.models.preprocessing import Preprocessing

DEFAULT_MODEL = "squeezenet1_1"
_DATA = Path(__file__).parent / "data"
WEIGHTS = _DATA / f"{DEFAULT_MODEL}.safetensors"
PREPROCESSING = Preprocessing((3, 224, 224), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), 256, "bilinear")


class Fire(nn.Module):
    """Squeeze to a few channels, then expand them by two convolutions side by side."""

    def __init__(self, channels: int, squeezed: int, expanded: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(channels, squeezed, 1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeezed, expanded, 1)
        self.expand1x1_activation = nn.ReLU(inplace=True)
        self.expand3x3 = nn.Conv2d(squeezed, expanded, 3, padding=1)
        self.expand3x3_activation = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        sides = self.expand1x1_activation(self.expand1x1(x)), self.expand3x3_activation(self.expand3x3(x))
        return torch.cat(sides, 1)


class SqueezeNet(nn.Module):
    """SqueezeNet 1.1 (Iandola et al.), as torchvision builds it."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(3, 64, 3, stride=2), nn.ReLU(inplace=True), _halve()),
            *(Fire(64, 16, 64), Fire(128, 16, 64), _halve()),
            *(Fire(128, 32, 128), Fire(256, 32, 128), _halve()),
            *(Fire(256, 48, 192), Fire(384, 48, 192), Fire(384, 64, 256), Fire(512, 64, 256)),
        )
        head = nn.Dropout(0.5), nn.Conv2d(512, 1000, 1), nn.ReLU(inplace=True), nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(*head)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


def _halve() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, stride=2, ceil_mode=True)


def bundled_labels() -> tuple[str, ...]:
    """The labels of ImageNet's 1000 classes, as torchvision words them."""
    return tuple((_DATA / "imagenet.txt").read_text(encoding="utf-8").splitlines())
