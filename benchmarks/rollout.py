"""Attention rollout (Abnar and Zuidema, 2020) on the ViT of `benchmarks.cifar`, by insertion minus deletion.

    python -m benchmarks.rollout IMAGES NETS [STEPS]

IMAGES are images of CIFAR-10; NETS holds vit.safetensors. Prints its mean, and its lead over other methods image by image.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import Tensor, nn

import pathx
from pathx.evaluation.choices import METHODS
from pathx.evaluation.measure import subject_of
from pathx.evaluation.protocols import area, make_protocol
from pathx.evaluation.statistics import bootstrap, compare
from pathx.images.find import images_in
from pathx.pipeline import prepare

COMPARED = ("path_map", "frozen", "input_x_gradient", "integrated_gradients", "random")


def rollout(model: nn.Module, images: Tensor) -> Tensor:
    """(B, 1, H, W) how much of each patch reaches the class token: products of half attention, half identity."""
    tokens = model.places.shape[1]
    flow = torch.eye(tokens).expand(len(images), -1, -1)
    seen: list[Tensor] = []
    hooks = [block.attention.qkv.register_forward_hook(lambda *call: seen.append(call[2])) for block in model.blocks]
    with torch.no_grad():
        model(images)
    for block, hook, qkv in zip(model.blocks, hooks, seen, strict=True):
        hook.remove()
        q, k, _ = qkv.reshape(len(images), tokens, 3, block.attention.heads, -1).permute(2, 0, 3, 1, 4)
        attention = torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -1).mean(1)
        flow = (attention + torch.eye(tokens)) / 2 @ flow
    side = int((tokens - 1) ** 0.5)
    patches = flow[:, 0, 1:].reshape(-1, 1, side, side)
    return nn.functional.interpolate(patches, images.shape[-2:], mode="bilinear")


def main(folder: str, nets: Path, steps: int = 16) -> None:
    code = Path(__file__).with_name("cifar.py")
    prepared = prepare(pathx.load_model(f"{code}:vit", weights=nets / "vit.safetensors"), device="cpu")
    protocol = make_protocol("rise", 32, 32, steps=steps)
    found: dict[str, list[float]] = {name: [] for name in ("rollout", *COMPARED)}
    for batch in prepared.see(images_in([folder]), 8, lambda source, error: print(source, error)):
        subject = subject_of(prepared, batch)
        for name, values in found.items():
            if name == "rollout":
                maps = rollout(prepared.module, subject.images).expand_as(subject.images)
            else:
                maps = METHODS[name].compute(subject)
            with torch.no_grad():
                every = protocol.curves(prepared.classifier, subject.images, subject.targets, maps, subject.names)
            values += [area(one.insertion) - area(one.deletion) for one in every]
    rows = {
        name: {**bootstrap(found[name]), "rollout ahead by": compare(found["rollout"], found[name])} for name in found
    }
    print(json.dumps({"images": len(found["rollout"]), "steps": steps, "methods": rows}, indent=1))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), *map(int, sys.argv[3:]))
