"""From an image to the network's input, and back to the part of the image that the network saw.

A sidecar, a JSON file beside a model, says what the model itself does not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeGuard

import torch
from PIL import Image
from torch import Tensor

from pathx.errors import PathxError, parse_json, reason_of
from pathx.models.labels import parse_labels
from pathx.regular import read_regular

_MODES = {1: "L", 3: "RGB", 4: "RGBA"}
_MOST_PIXELS = 2**26
"""A strip of 1 x 5000 pixels resized to a shorter side of 256 would be an image of 256 x 1 280 000."""
LARGEST_INPUT = 2**30
"""Largest input, in bytes. The maps inside a network are many times as large as its input."""
_LONGEST_SIDE = 2**24


@dataclass(frozen=True)
class Preprocessing:
    """Resize, centre crop, scale to 0..1 and normalise, with the same bits as torchvision's classification presets.

    Args:
        input_size: (channels, height, width) of the network's input; 1 channel is grey, 3 RGB, 4 RGBA.
        mean: of pixels scaled to 0..1, one value per channel or one for all; `std` likewise.
        resize: the shorter side of the image before the crop; None for the smallest size that covers the input.
        interpolation: `bilinear`, `bicubic`, `nearest`, `box`, `hamming` or `lanczos`.
        squash: resize both sides to `resize`, or to the input's sides, whatever the image's proportions.
        floor_crop: round the start of the crop down, as transformers does, not to the nearest pixel.
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
        if max(size) > _LONGEST_SIDE or 4 * size[0] * size[1] * size[2] > LARGEST_INPUT:
            needed = f"would need more than {LARGEST_INPUT >> 30} GiB for the input alone"
            raise PathxError(f"input_size {_clip_text(list(size))} {needed}: give a smaller one", usage=True)
        for key in ("mean", "std"):
            if len(values := getattr(self, key)) == 1:
                object.__setattr__(self, key, tuple(values) * size[0])
        if len(self.mean) != size[0] or not all(map(_is_number, self.mean)):
            raise _wrong("mean", f"{size[0]} numbers, one per channel", self.mean)
        if len(self.std) != size[0] or not all(_is_number(value) and value > 0 for value in self.std):
            raise _wrong("std", f"{size[0]} numbers above 0, one per channel", self.std)
        if self.resize is not None and not (_is_count(self.resize) and self.resize <= _LONGEST_SIDE):
            raise _wrong("resize", "a whole number above 0 (the shorter side before the crop)", self.resize)
        if str(self.interpolation).upper() not in Image.Resampling.__members__:
            known = ", ".join(Image.Resampling.__members__).lower()
            raise _wrong("interpolation", f"one of {known}", self.interpolation)

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
        """The part (left, top, right, bottom) that the network sees of an upright image of that size, in the image's pixels.

        It extends beyond the image if the network sees padding.
        """
        new_width, new_height = self._resized_size(width, height)
        left, top, right, bottom = self._box(new_width, new_height)
        across, down = width / new_width, height / new_height
        return left * across, top * down, right * across, bottom * down

    def _resized_size(self, width: int, height: int) -> tuple[int, int]:
        """(width, height) of the resized image, before the crop."""
        _, rows, columns = self.input_size
        wide, high = (columns, rows) if self.resize is None else (self.resize, self.resize)
        if self.squash:
            return wide, high
        if wide * height >= high * width:
            return wide, int(wide * height / width)
        return int(high * width / height), high

    def _box(self, width: int, height: int) -> tuple[int, int, int, int]:
        """The crop (left, top, right, bottom) from a resized image of that size; negative in the padding."""
        _, rows, columns = self.input_size
        left, top = self._start(width, columns), self._start(height, rows)
        return left, top, left + columns, top + rows

    def _start(self, length: int, crop: int) -> int:
        """Where the crop starts along one side, with the rounding of torchvision's center_crop or of transformers'."""
        if crop > length:
            return -((crop - length) // 2)
        return (length - crop) // 2 if self.floor_crop else round((length - crop) / 2)

    def _crop(self, image: Image.Image) -> Image.Image:
        size = self._resized_size(*image.size)
        if size[0] * size[1] > max(_MOST_PIXELS, image.width * image.height):
            sides = f"an image of {image.width} x {image.height} pixels would become one of {size[0]} x {size[1]}"
            raise PathxError(f"{sides} for this network: crop it to the part that matters")
        resized = image if size == image.size else image.resize(size, Image.Resampling[self.interpolation.upper()])
        return resized.crop(self._box(*size))  # fills with 0 beyond the image


def _in_mode(image: Image.Image, mode: str) -> Image.Image:
    if image.mode.startswith("I;16"):  # 16 bits per pixel, which Pillow would clip to 255
        image = image.convert("I").point(lambda value: value * (1 / 256)).convert("L")
    return image if image.mode == mode else image.convert(mode)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a number that a float can hold; those of JSON may be larger, such as 1e400."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _wrong(name: str, wanted: str, given: object) -> PathxError:
    given = list(given) if isinstance(given, tuple) else given
    return PathxError(f"{name} must be {wanted}, not {_clip_text(given)}", usage=True)


def _clip_text(given: object) -> str:
    """A value as text for a message, cut if it is long."""
    try:
        text = repr(given) if isinstance(given, str) else str(given)
    except ValueError:  # an integer with more digits than Python converts
        return "such a long number"
    text = " ".join(text.split())
    return text if len(text) <= 80 else f"{text[:80]}…"


# Sidecars

EXAMPLE = '{"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "labels": ["cat", "dog"]}'
_EXAMPLES = {"input_size": [3, 32, 32], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
_KEYS = ("input_size", "mean", "std", "labels", "resize", "interpolation")
_LARGEST = 1 << 26
"""Largest sidecar, in bytes; labels of a million classes are smaller."""


def sidecar_beside(path: Path, *others: Path) -> dict[str, Any]:
    """The checked content of the sidecar of model.pt: the first of model.pt.json, model.json and the others that exists."""
    for sidecar in (path.with_name(path.name + ".json"), path.with_suffix(".json"), *others):
        if os.path.isfile(sidecar) and sidecar != path:
            try:
                text = read_regular(sidecar, _LARGEST).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                problem = f"{sidecar} cannot be read ({reason_of(error)})"
                raise PathxError(f"{problem}: write it as {EXAMPLE}", usage=True) from error
            return read_sidecar(text, str(sidecar))
    return {}


def read_sidecar(text: str, source: str) -> dict[str, Any]:
    """The checked content of a sidecar's text; errors name the source."""
    if not text:
        return {}
    try:
        content = parse_json(text)
    except ValueError as error:
        raise PathxError(f"{source} is not valid JSON ({error}): write it as {EXAMPLE}", usage=True) from error
    if not isinstance(content, dict):
        raise PathxError(f"{source} must hold an object such as {EXAMPLE}", usage=True)
    for key in content:
        if key not in _KEYS and (near := get_close_matches(key[:40], _KEYS, n=1, cutoff=0.8)):
            raise PathxError(f"{source} has the unknown key {key!r}: did you mean {near[0]!r}?", usage=True)
    return check_values({key: content[key] for key in _KEYS if key in content}, source)


def check_values(values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The values of a sidecar or of the call, with lists as tuples, after a check of their types."""
    found = dict(values)
    for key, example in _EXAMPLES.items():
        value = found.get(key)
        if key != "input_size" and _is_number(value):
            found[key] = (float(value),)
        elif isinstance(value, Sequence) and value and all(map(_is_number, value)):
            found[key] = tuple(value if key == "input_size" else map(float, value))
        elif key in found:
            wanted = f"a list of numbers such as {example}"
            raise PathxError(f"{key} in {source} must be {wanted}, not {_clip_text(value)}", usage=True)
    if "labels" in found:
        found["labels"] = parse_labels(found["labels"], source)
    return found


def complete(description: Mapping[str, Any], source: str, remedy: str) -> Preprocessing:
    """The preprocessing in a description. Raises PathxError for what it lacks."""
    if lacking := [key for key in ("input_size", "mean", "std") if key not in description]:
        raise PathxError(f"{source} does not say its {', '.join(lacking)}: {remedy}", usage=True)
    try:
        return Preprocessing(**_without_labels(description))
    except PathxError as error:
        raise PathxError(f"{source}: {error}", usage=True) from error


def adapt(preprocessing: Preprocessing, options: Mapping[str, Any]) -> Preprocessing:
    """A model's own preprocessing with the changes of the call."""
    changes = _without_labels(options)
    if changes.get("input_size", preprocessing.input_size) != preprocessing.input_size:
        changes["resize"] = None  # the model's belongs to its own input size
    return replace(preprocessing, **changes)


def _without_labels(description: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in description.items() if key != "labels"}
