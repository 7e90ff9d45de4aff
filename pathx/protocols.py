"""Insertion and deletion: how the probability of a class moves as pixels come and go in the order an attribution gives.

Insertion starts from the blurred picture and puts the real pixels back, the highest first; deletion starts from the
picture and sets them to zero. Good attributions have a large area under the first curve and a small one under the second.
A protocol says at which step each pixel changes; everything else is the same for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pathx.errors import PathxError
from pathx.replay import Classifier

BLUR_SIZE, BLUR_SIGMA = 11, 5.0

Steps = Callable[[Tensor, int], Tensor]
"""(attribution (C, H, W), pixels per step) -> the step, from 0, at which each pixel changes, (H, W)."""


@dataclass(frozen=True)
class Ranking:
    """What tells protocols apart.

    Args:
        text: how result files describe it.
        settings: of methods that the protocol takes otherwise than they are usually taken.
    """

    text: str
    steps: Steps
    settings: dict[str, dict[str, Any]]


PROTOCOLS: dict[str, Ranking] = {}
"""Every protocol by name; filled by @protocol."""


def protocol(name: str, text: str, **settings: dict[str, Any]) -> Callable[[Steps], Steps]:
    """Register a protocol under the name that users choose it by."""

    def register(steps: Steps) -> Steps:
        PROTOCOLS[name] = Ranking(text, steps, settings)
        return steps

    return register


@protocol("rise", "sum over channels")
def one_map(attribution: Tensor, step_pixels: int) -> Tensor:
    """The sum over channels decides; each step changes the same number of pixels."""
    return _ranks(attribution.sum(0)) // step_pixels


@protocol("paper", "each channel on its own; a step takes what is next in any", saliency={"absolute": False})
def by_channel(attribution: Tensor, step_pixels: int) -> Tensor:
    """Each channel is ranked on its own; a step changes, in all channels, every pixel whose turn it is in any of them."""
    return torch.stack([_ranks(channel) for channel in attribution]).amin(0) // step_pixels


def _ranks(values: Tensor) -> Tensor:
    """The place of each value in falling order, from 0; of equal values the one with the lower index comes first."""
    order = values.flatten().argsort(descending=True, stable=True)
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device)
    return ranks.reshape(values.shape)


@dataclass(frozen=True)
class Curves:
    """What one attribution of one picture comes to.

    Args:
        insertion, deletion: the probability before any step and after each.
        tied: the attribution is the same everywhere, so that the order is that of the pixels.
    """

    insertion: tuple[float, ...]
    deletion: tuple[float, ...]
    tied: bool


@dataclass(frozen=True)
class Protocol:
    """A protocol for pictures of one size.

    Args:
        name: a key of PROTOCOLS.
        height, width: of the network's input.
        step_pixels: how many pixels of a ranking are taken at once.
    """

    name: str
    height: int
    width: int
    step_pixels: int

    @property
    def steps(self) -> int:
        return math.ceil(self.height * self.width / self.step_pixels)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the figures depend on, as result files say it."""
        return {
            "step_pixels": self.step_pixels,
            "steps": self.steps,
            "ranking": PROTOCOLS[self.name].text,
            "score": "softmax probability of the class predicted on the clean picture",
            "insertion_from": f"blur, {BLUR_SIZE}x{BLUR_SIZE}, sigma {BLUR_SIGMA:g} reflected, zero padding",
            "deletion_to": "zero in normalised space",
            "area": "trapezoid rule, both ends included",
        }

    def curves(self, classifier: Classifier, images: Tensor, targets: list[int], attribution: Tensor) -> list[Curves]:
        """The curves of a batch of pictures (B, C, H, W) and their attributions, whose steps go through as one batch."""
        if not len(images):
            return []
        count = self.steps + 1
        when = torch.stack([PROTOCOLS[self.name].steps(one, self.step_pixels) for one in attribution])  # (B, H, W)
        wanted = torch.tensor(targets, device=images.device).repeat_interleave(count)
        found = []
        for start, finish in ((blurred(images), images), (images, torch.zeros_like(images))):
            parts = [
                classifier.probabilities(part).gather(1, wanted[first : first + len(part), None])[:, 0]
                for first, part in self._states(start, finish, when, classifier.chunk)
            ]
            found.append(map(tuple, torch.cat(parts).reshape(-1, count).tolist()))
        tied = attribution.flatten(1).amax(1) == attribution.flatten(1).amin(1)
        return [Curves(*fields) for fields in zip(*found, tied.tolist(), strict=True)]

    def _states(self, start: Tensor, finish: Tensor, when: Tensor, chunk: int) -> Iterator[tuple[int, Tensor]]:
        """All states of all pictures, picture by picture, a chunk of them at a time with the number of the first."""
        count = self.steps + 1
        total = count * len(start)
        for first in range(0, total, chunk):
            row = torch.arange(first, min(first + chunk, total), device=start.device)
            image, step = row // count, row % count
            changed = when[image] < step[:, None, None]  # (rows, H, W)
            yield first, torch.where(changed[:, None], finish[image], start[image])


def make_protocol(
    name: str, height: int, width: int, *, steps: int | None = None, step_pixels: int | None = None
) -> Protocol:
    """A protocol by name; a step is one row of the picture unless its pixels, or the number of steps, are given."""
    if name not in PROTOCOLS:
        raise PathxError(f"there is no protocol {name!r}: choose {' or '.join(PROTOCOLS)}", usage=True)
    if steps is not None and step_pixels is not None:
        raise PathxError("--steps and --step-pixels say the same thing: give one of them", usage=True)
    pixels = height * width
    if steps is not None:
        if not 1 <= steps <= pixels:
            raise PathxError(f"{steps} steps are out of range; use 1 to {pixels}", usage=True)
        step_pixels = math.ceil(pixels / steps)
    if step_pixels is not None and not 1 <= step_pixels <= pixels:
        raise PathxError(f"{step_pixels} pixels per step are out of range; use 1 to {pixels}", usage=True)
    return Protocol(name, height, width, width if step_pixels is None else step_pixels)


def area(curve: Sequence[float]) -> float:
    """The area under a curve over 0 to 1, by the trapezoid rule."""
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)


@cache
def blur_taps() -> Tensor:
    """One dimension of the blur: a Gaussian of sigma 5 on 11 places, what falls outside reflected back in."""
    reach = int(4 * BLUR_SIGMA + 0.5)  # where the Gaussian is cut off, as scipy does
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / BLUR_SIGMA) ** 2)
    place = (offsets.long() + BLUR_SIZE // 2) % (2 * BLUR_SIZE)  # d c b a | a b c d | d c b a
    place = torch.where(place < BLUR_SIZE, place, 2 * BLUR_SIZE - 1 - place)
    return torch.zeros(BLUR_SIZE, dtype=torch.float64).index_add_(0, place, weights / weights.sum())


def blurred(images: Tensor) -> Tensor:
    """Pictures (B, C, H, W) blurred in normalised space, with zeros around them."""
    taps, channels, pad = blur_taps().to(images), images.shape[1], BLUR_SIZE // 2
    kernel = (taps[:, None] * taps).expand(channels, 1, -1, -1)
    return torch.nn.functional.conv2d(images, kernel, padding=pad, groups=channels)
