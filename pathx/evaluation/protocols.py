"""Insertion and deletion: the probability of a class as pixels are inserted or deleted in the order of an attribution.

Insertion starts from the blurred image and restores its pixels, the highest first; deletion starts from the image and sets
them to zero. A good attribution has a large area under the first curve and a small one under the second. A protocol says what
is ranked; the rest is the same for all. Tied pixels come in random order: row by row, even a constant map would gain much by
restoring whole parts of the image at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from pathx.engine.replay import Classifier
from pathx.errors import PathxError
from pathx.evaluation.choices import DRAWS, PROTOCOLS, TIES, choose
from pathx.evaluation.statistics import generator_of

BLUR_SIZE, BLUR_SIGMA = 11, 5.0


def rise(attribution: Tensor) -> Tensor:
    """(1, H, W) the sum over channels is ranked; each step changes the same number of pixels."""
    return attribution.sum(0, keepdim=True)


def paper(attribution: Tensor) -> Tensor:
    """(C, H, W) each channel is ranked alone; a step changes, in all channels, every pixel whose turn it is in any channel."""
    return attribution


RANKED: dict[str, Callable[[Tensor], Tensor]] = {"rise": rise, "paper": paper}


def ranks(values: Tensor, first: Tensor) -> Tensor:
    """The rank of each value in falling order, from 0; equal values are ordered by `first` (H * W,)."""
    order = first[values.flatten()[first].argsort(descending=True, stable=True)]
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    return places.reshape(values.shape)


def tied_share(values: Tensor) -> float:
    """The share of values that are not unique."""
    _, counts = values.unique(return_counts=True)
    return float(counts[counts > 1].sum()) / values.numel()


@dataclass(frozen=True)
class Curves:
    """The curves of one attribution of one image.

    Args:
        insertion, deletion: the probability before any step and after each.
        tied: the share of pixels that the attribution does not order, because others have their value.
    """

    insertion: tuple[float, ...]
    deletion: tuple[float, ...]
    tied: float


@dataclass(frozen=True)
class Protocol:
    """A protocol for images of one size.

    Args:
        name: a key of PROTOCOLS.
        height, width: of the network's input.
        step_pixels: pixels of a ranking per step.
        ties: a key of TIES.
    """

    name: str
    height: int
    width: int
    step_pixels: int
    ties: str

    @property
    def steps(self) -> int:
        return math.ceil(self.height * self.width / self.step_pixels)

    @property
    def parameters(self) -> dict[str, Any]:
        """Everything that the figures depend on, for result files."""
        return {
            "step_pixels": self.step_pixels,
            "steps": self.steps,
            "ranking": PROTOCOLS[self.name].text,
            "score": "softmax probability of the class predicted on the clean picture",
            "insertion_from": f"blur, {BLUR_SIZE}x{BLUR_SIZE}, sigma {BLUR_SIGMA:g} reflected, zero padding",
            "deletion_to": "zero in normalised space",
            "ties": TIES[self.ties],
            "area": "trapezoid rule, both ends included",
        }

    def curves(
        self, classifier: Classifier, images: Tensor, targets: list[int], attribution: Tensor, names: Sequence[str]
    ) -> list[Curves]:
        """The curves of a batch of images (B, C, H, W) and their attributions.

        Args:
            names: one per image, which seed the order of ties.
        """
        if not len(images):
            return []
        ranked = [RANKED[self.name](one) for one in attribution]
        tied = [sum(map(tied_share, maps)) / len(maps) for maps in ranked]
        draws = [DRAWS if share and self.ties == "random" else 1 for share in tied]  # without ties, one is enough
        when = torch.stack([order for one in zip(ranked, names, draws, strict=True) for order in self._orders(*one)])
        of = torch.tensor([place for place, count in enumerate(draws) for _ in range(count)], device=images.device)
        same = self._same(when, of)
        parts = _parts(torch.unique(same), min(classifier.chunk, self.steps + 1))
        wanted = torch.tensor(targets, device=images.device)[of]
        found = []
        for start, finish in ((blur(images), images), (images, torch.zeros_like(images))):
            probabilities = torch.zeros(same.numel(), device=images.device, dtype=images.dtype)
            for part in parts:
                states, goal = self._states(start, finish, when, of, part), wanted[part // (self.steps + 1)]
                probabilities[part] = classifier.probabilities(states).gather(1, goal[:, None])[:, 0]
            drawn = probabilities[same].split(draws)
            found.append([tuple(curves.double().mean(0).tolist()) for curves in drawn])
        return [Curves(*fields) for fields in zip(*found, tied, strict=True)]

    def _same(self, when: Tensor, of: Tensor) -> Tensor:
        """(orders, steps + 1) for every state the number of the first equal one, since draws differ at few steps.

        Args:
            when, of: as for `_states`.
        """
        count = self.steps + 1
        numbers = torch.arange(len(when) * count, device=when.device).reshape(-1, count)
        first = torch.searchsorted(of, of)  # the first order of the same image
        early, late = (pick(when, when[first]).flatten(1) for pick in (torch.minimum, torch.maximum))
        differ = [
            torch.bincount(low, minlength=count) - torch.bincount(high, minlength=count)
            for low, high in zip(early, late, strict=True)
        ]  # its cumulative sum counts the pixels that have changed in only one of the two
        alike = torch.stack(differ).cumsum(1).roll(1, 1) == 0
        return torch.where(alike, numbers[first], numbers)

    def _orders(self, maps: Tensor, name: str, draws: int) -> Iterator[Tensor]:
        """The step at which each pixel changes, (H, W), for each draw of an order for ties."""
        pixels = self.height * self.width
        for draw in range(draws):
            first = torch.arange(pixels)
            if self.ties == "random":
                first = torch.randperm(pixels, generator=generator_of(name, str(draw)))
            order = first.to(maps.device)
            yield torch.stack([ranks(one, order) for one in maps]).amin(0) // self.step_pixels

    def _states(self, start: Tensor, finish: Tensor, when: Tensor, of: Tensor, rows: Tensor) -> Tensor:
        """Some states by their numbers, which count `steps + 1` states of one order after the other.

        Args:
            when: (orders, H, W) the step at which each pixel changes.
            of: (orders,) the image of each order.
        """
        order, step = rows // (self.steps + 1), rows % (self.steps + 1)
        changed = when[order] < step[:, None, None]  # (rows, H, W)
        return torch.where(changed[:, None], finish[of[order]], start[of[order]])


def _parts(rows: Tensor, size: int) -> list[Tensor]:
    """Rows in parts of one size, the last one padded, since a network is recorded again for every batch size."""
    lacking = -len(rows) % size
    return list(torch.cat([rows, rows[-1:].expand(lacking)]).split(size))


def make_protocol(
    name: str,
    height: int,
    width: int,
    *,
    steps: int | None = None,
    step_pixels: int | None = None,
    ties: str = "random",
) -> Protocol:
    """A protocol by name. A step has as many pixels as a row of the image, unless its pixels or the number of steps are given."""
    choose("protocol", name, RANKED)
    choose("order of ties", ties, TIES)
    if steps is not None and step_pixels is not None:
        raise PathxError("`steps` and `step_pixels` say the same thing: give one of them", usage=True)
    pixels = height * width
    if steps is not None:
        if not 1 <= steps <= pixels:
            raise PathxError(f"{steps} steps are out of range; use 1 to {pixels}", usage=True)
        step_pixels = math.ceil(pixels / steps)
    if step_pixels is not None and not 1 <= step_pixels <= pixels:
        raise PathxError(f"{step_pixels} pixels per step are out of range; use 1 to {pixels}", usage=True)
    return Protocol(name, height, width, width if step_pixels is None else step_pixels, ties)


def area(curve: Sequence[float]) -> float:
    """The area under a curve over 0 to 1, by the trapezoid rule."""
    return (sum(curve) - (curve[0] + curve[-1]) / 2) / (len(curve) - 1)


@cache
def blur_taps() -> Tensor:
    """One dimension of the blur: a Gaussian of sigma 5 on 11 places, reflected at its ends."""
    reach = int(4 * BLUR_SIGMA + 0.5)  # where the Gaussian is cut off, as scipy does
    offsets = torch.arange(-reach, reach + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / BLUR_SIGMA) ** 2)
    place = (offsets.long() + BLUR_SIZE // 2) % (2 * BLUR_SIZE)  # d c b a | a b c d | d c b a
    place = torch.where(place < BLUR_SIZE, place, 2 * BLUR_SIZE - 1 - place)
    return torch.zeros(BLUR_SIZE, dtype=torch.float64).index_add_(0, place, weights / weights.sum())


def blur(images: Tensor) -> Tensor:
    """Images (B, C, H, W) blurred in normalised space, with zeros around them."""
    taps, channels, pad = blur_taps().to(images), images.shape[1], BLUR_SIZE // 2
    kernel = (taps[:, None] * taps).expand(channels, 1, -1, -1)
    return torch.nn.functional.conv2d(images, kernel, padding=pad, groups=channels)
