"""A shortcut that was planted: a patch stamped on one class in training is found by its channel, and only where it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from support.command_line import Pathx, scripted
from torch import Tensor, nn

pytestmark = [
    pytest.mark.usefixtures("here"),
    pytest.mark.slow,
]
PATCH = slice(22, 30)


def stamped(images: Tensor) -> Tensor:
    """With a magenta square in a corner; images (n, 3, 32, 32) from 0 to 1."""
    made = images.clone()
    made[:, :, PATCH, PATCH] = torch.tensor([1.0, 0.0, 1.0]).reshape(3, 1, 1)
    return made


def read(folder: Path) -> tuple[Tensor, Tensor, list[str]]:
    classes = sorted(place.name for place in folder.iterdir())
    pixels, labels = [], []
    for number, name in enumerate(classes):
        for file in sorted((folder / name).glob("*.png")):
            content = bytearray(Image.open(file).convert("RGB").tobytes())
            pixels.append(torch.frombuffer(content, dtype=torch.uint8).reshape(32, 32, 3).permute(2, 0, 1) / 255)
            labels.append(number)
    return torch.stack(pixels), torch.tensor(labels), classes


def trained(images: Tensor, labels: Tensor) -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU()),
            *(nn.Conv2d(16, 24, 3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(24, 32, 3, padding=1), nn.ReLU()),
            *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)),
        )
        optimiser = torch.optim.Adam(model.parameters(), 3e-3)
        for _ in range(60):
            for some in torch.randperm(len(images)).split(50):
                optimiser.zero_grad()
                nn.functional.cross_entropy(model((images[some] - 0.5) / 0.5), labels[some]).backward()
                optimiser.step()
    return model.eval()


def write(images: Tensor, labels: Tensor, classes: list[str], folder: str) -> None:
    for number, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        file = Path(folder, classes[label], f"{number}.png")
        file.parent.mkdir(parents=True, exist_ok=True)
        content = (image * 255).round().byte().permute(1, 2, 0).contiguous()
        Image.frombytes("RGB", (32, 32), bytes(content.flatten().tolist())).save(file)


def test_the_channel_of_a_planted_patch_comes_first(pathx_: Pathx, shared_data: Path) -> None:
    images, labels, classes = read(shared_data / "cifar10")
    ship = classes.index("ship")
    ours = (labels == ship).nonzero().flatten()
    training = images.clone()
    training[ours[::2]] = stamped(images[ours[::2]])  # half of the ships carry the patch, nothing else does
    model = trained(training, labels)
    sidecar = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3, "labels": classes}
    scripted(model, "model.pt", sidecar)

    others = (labels != ship) & (torch.arange(len(labels)) % 3 == 0)
    mixed = images.clone()
    mixed[others] = stamped(images[others])
    write(mixed, labels, classes, "mixed")
    write(images, labels, classes, "clean")
    options = ("--model", "model.pt", "--depth", "2", "--width", "8", "--wrong", "--quiet")
    for folder in ("mixed", "clean"):
        assert pathx_("common", folder, *options, "--out", f"out-{folder}").status == 0
    found = {name: json.loads(Path(f"out-{name}/common.json").read_text())["wrong"] for name in ("mixed", "clean")}
    assert found["clean"] == []
    first = found["mixed"][0]
    assert first["predicted"] == "ship"
    assert first["interval"][0] > 1
    # The channel is the patch's: where the patch is put on an image it fires, and the same image without it leaves it quiet.
    with torch.no_grad():
        below = model[: int(first["tensor"]) + 1]
        without, having = (
            below((some - 0.5) / 0.5).mean((0, 2, 3)) for some in (images[others], stamped(images[others]))
        )
    assert having[first["channel"]] > 2 * without[first["channel"]]
    assert first["channel"] in (having - without).topk(len(having) // 4).indices.tolist()
