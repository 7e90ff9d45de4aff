"""A tiny network to measure explanations of; `measured` in conftest.py is a folder with it and images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import nn

FAST = "pathx,saliency,guided_gradcam,random"


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        body = nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()
        module = nn.Sequential(*body, nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3)).eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.mul_(2).sub_(parameter.mean() if parameter.dim() == 1 else 0)
        return module


def document(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(file).read_text())
    return content
