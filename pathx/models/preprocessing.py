"""From an image to the network's input, and back to the part of the image that the network saw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from pathx.errors import PathxError

if TYPE_CHECKING:
    from torch import Tensor

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
# An image that would become larger than this on its way to the network is cropped before it is resized: a strip of
# 1 x 5000 pixels resized to a shorter side of 256 would be an image of 256 x 1 280 000.
_MOST_PIXELS = 2**24
_LARGEST_INPUT = 2**30
"""Bytes of one input at most. The maps inside a network are many times as large as its input."""
_LONGEST_SIDE = 2**24


@dataclass(frozen=True)
class Preprocessing:
    """Resize, centre crop, scale to 0..1 and normalise, bit for bit as torchvision's classification presets do.

    Args:
        input_size: (channels, height, width) of the network's input; 1 channel is grey, 3 RGB, 4 RGBA.
        mean: one value per channel, of pixels scaled to 0..1.
        resize: the shorter side of the image before the crop; None for the smallest size that covers the input.
        interpolation: `bilinear`, `bicubic`, `nearest`, `box`, `hamming` or `lanczos`.
        squash: both sides are resized to `resize`, or to the input's, whatever the image's proportions.
        floor_crop: a crop starts at the whole pixel above the middle, as transformers does it, not at the nearest.
    """

    input_size: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resize: int | None = None
    interpolation: str = "bilinear"
    squash: bool = False
    floor_crop: bool = False

    def __post_init__(self) -> None:
        size = self.input_size
        if len(size) != 3 or not all(_is_count(side) for side in size):
            raise _wrong("input_size", "three whole numbers above 0 (channels, height, width)", size)
        if size[0] not in _MODES:
            raise _wrong("input_size", "1 (grey), 3 (RGB) or 4 (RGBA) channels", size)
        if max(size) > _LONGEST_SIDE or 4 * size[0] * size[1] * size[2] > _LARGEST_INPUT:
            needed = f"{float(4 * size[0] * size[1] * size[2]) / 2**30:.3g} GiB" if max(size) < 10**9 else "too much"
            shown = f"{clipped(list(size))} would need {needed} for the input alone"
            raise PathxError(f"input_size {shown}: give one that needs {_LARGEST_INPUT >> 30} GiB at most", usage=True)
        if len(self.mean) != size[0] or not all(map(is_number, self.mean)):
            raise _wrong("mean", f"{size[0]} numbers, one per channel", self.mean)
        if len(self.std) != size[0] or not all(is_number(value) and value > 0 for value in self.std):
            raise _wrong("std", f"{size[0]} numbers above 0, one per channel", self.std)
        if self.resize is not None and not (_is_count(self.resize) and self.resize <= _LONGEST_SIDE):
            raise _wrong("resize", "a whole number above 0 (the shorter side before the crop)", self.resize)
        if str(self.interpolation).upper() not in Image.Resampling.__members__:
            raise _wrong(
                "interpolation", "one of " + ", ".join(Image.Resampling.__members__).lower(), self.interpolation
            )

    @classmethod
    def of_preset(cls, preset: Any) -> Preprocessing:
        """The preprocessing of a torchvision `ImageClassification` preset, as `weights.transforms()` gives it."""
        (crop,), (resize,) = preset.crop_size, preset.resize_size
        mean, std = tuple(preset.mean), tuple(preset.std)
        return cls((len(mean), crop, crop), mean, std, resize, preset.interpolation.value)

    def __call__(self, image: Image.Image) -> Tensor:
        """The network's input (channels, height, width), float32, for an upright image of any mode."""
        channels, height, width = self.input_size
        image = self._crop(_in_mode(image, _MODES[channels]))
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(height, width, channels)
        values = pixels.permute(2, 0, 1).contiguous().to(torch.float32).div_(255)
        return values.sub_(torch.tensor(self.mean).view(-1, 1, 1)).div_(torch.tensor(self.std).view(-1, 1, 1))

    def region(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The part (left, top, right, bottom) of an upright image of that size that the network sees, in its pixels.

        It reaches beyond the image where the network sees padding.
        """
        new_width, new_height = self._resized_size(width, height)
        left, top, right, bottom = self._box(new_width, new_height)
        across, down = width / new_width, height / new_height
        return left * across, top * down, right * across, bottom * down

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the resized image, before the crop."""
        _, rows, columns = self.input_size
        if self.squash and self.resize is None:
            return columns, rows
        if self.squash and self.resize is not None:
            return self.resize, self.resize
        wide, high = (columns, rows) if self.resize is None else (self.resize, self.resize)
        if wide * height >= high * width:
            return wide, int(wide * height / width)
        return int(high * width / height), high

    def _box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The crop (left, top, right, bottom) from a resized image of that size; negative where it is padded."""
        _, rows, columns = self.input_size
        left, top = self._start(width, columns), self._start(height, rows)
        return left, top, left + columns, top + rows

    def _start(self, length: int, crop: int) -> int:
        """Where the crop starts along one side, with the rounding of torchvision's center_crop or of transformers'."""
        if crop > length:
            return -((crop - length) // 2)
        return (length - crop) // 2 if self.floor_crop else round((length - crop) / 2)

    def _crop(self, image: Image.Image) -> Image.Image:
        resampling = Image.Resampling[self.interpolation.upper()]
        size = self._resized_size(*image.size)
        left, top, right, bottom = self._box(*size)
        if size[0] * size[1] <= _MOST_PIXELS:
            resized = image if size == image.size else image.resize(size, resampling)
            return resized.crop((left, top, right, bottom))  # fills with 0 beyond the image
        shown = max(left, 0), max(top, 0), min(right, size[0]), min(bottom, size[1])
        across, down = image.width / size[0], image.height / size[1]
        source = (
            shown[0] * across,
            shown[1] * down,
            min(shown[2] * across, image.width),
            min(shown[3] * down, image.height),
        )
        seen = image.resize((shown[2] - shown[0], shown[3] - shown[1]), resampling, box=source)
        return seen.crop((left - shown[0], top - shown[1], right - shown[0], bottom - shown[1]))


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16"):  # 16 bits per pixel, which Pillow would clip to 255 rather than scale
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image if image.mode == mode else image.convert(mode)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def is_number(value: object) -> bool:
    """Whether a value is a number that a float can hold: JSON's may be of any length, or infinite as 1e400 is."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer that no float holds
        return False


def _wrong(name: str, wanted: str, given: object) -> PathxError:
    given = list(given) if isinstance(given, tuple) else given
    return PathxError(f"{name} must be {wanted}, not {clipped(given)}", usage=True)


def clipped(given: object) -> str:
    """A value as it may stand in a message, cut where it is long."""
    try:
        text = repr(given) if isinstance(given, str) else str(given)
    except ValueError:  # an integer of more digits than Python writes
        return "such a long number"
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:80]}…"
