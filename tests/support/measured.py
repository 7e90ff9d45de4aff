"""A tiny network, and folders of tiny images to measure explanations on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import nn

SIDECAR = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25], "labels": ["cat", "red fox", "dog"]}
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


def save(module: nn.Module, file: str = "model.pt", sidecar: dict[str, Any] = SIDECAR) -> str:
    torch.jit.save(torch.jit.script(module), file)
    Path(file).with_suffix(".json").write_text(json.dumps(sidecar))
    return file


def picture(file: str, seed: int) -> str:
    pixels = torch.randint(0, 256, (8, 8, 3), generator=torch.Generator().manual_seed(seed))
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    Image.frombytes("RGB", (8, 8), bytes(pixels.flatten().tolist())).save(file)
    return file


def document(file: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(file).read_text())
    return content
