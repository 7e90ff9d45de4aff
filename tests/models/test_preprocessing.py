from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from pathx.errors import PathxError
from pathx.models.preprocessing import Preprocessing
from pathx.models.torchvision import torchvision

GREY = Preprocessing((1, 28, 28), (0.0,), (1.0,))
RGB = Preprocessing((3, 32, 32), (0.5, 0.4, 0.3), (0.1, 0.2, 0.3))
SIDES = "three whole numbers above 0 (channels, height, width)"
PLAIN: dict[str, Any] = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}


def noise(width: int, height: int, mode: str = "RGB") -> Image.Image:
    generator = torch.Generator().manual_seed(width * 10007 + height)
    pixels = torch.randint(256, (height, width, 3), generator=generator, dtype=torch.uint8)
    return Image.frombytes("RGB", (width, height), bytes(pixels.flatten().tolist())).convert(mode)


def preset(**changes: Any) -> Any:
    return torchvision.transforms._presets.ImageClassification(**changes)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["BILINEAR", "BICUBIC"]),
)
def test_every_preset_is_followed_bit_for_bit(width: int, height: int, crop: int, resize: int, mode: str) -> None:
    interpolation = torchvision.transforms.InterpolationMode[mode]
    theirs = preset(crop_size=crop, resize_size=resize, interpolation=interpolation)
    picture = noise(width, height)
    assert torch.equal(Preprocessing.of_preset(theirs)(picture), theirs(picture))


def test_a_picture_of_the_right_size_is_untouched() -> None:
    picture = noise(32, 32)
    pixels = torch.tensor(list(picture.tobytes())).view(32, 32, 3).permute(2, 0, 1) / 255
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (RGB.mean, RGB.std))
    values = RGB(picture)
    assert torch.equal(values, (pixels - mean) / std)
    assert values.dtype == torch.float32
    assert values.is_contiguous()
    assert RGB.region(32, 32) == (0, 0, 32, 32)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGBA", "CMYK", "YCbCr", "I;16"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_pictures_of_any_mode_get_the_channels_of_the_network(mode: str, channels: int) -> None:
    ours = Preprocessing((channels, 20, 30), (0.0,) * channels, (1.0,) * channels)
    picture = Image.new("L", (60, 40), 255).convert(mode) if mode != "I;16" else Image.new("I;16", (60, 40), 65535)
    values = ours(picture)
    assert values.shape == (channels, 20, 30)
    assert values.min() >= 0.99  # white stays white


def test_pictures_of_16_bits_are_scaled_and_not_clipped() -> None:
    values = GREY(Image.new("I;16", (28, 28), 0x4000))
    assert torch.allclose(values, torch.tensor(64 / 255))
    picture = noise(28, 28)  # one channel is grey
    assert torch.equal(GREY(picture)[0] * 255, torch.tensor(list(picture.convert("L").tobytes())).view(28, 28).float())


@pytest.mark.parametrize(
    ("resize", "size", "region"),
    [
        (256, (500, 333), (80 * 500 / 384, 20.8125, 304 * 500 / 384, 312.1875)),
        (None, (400, 200), (100, 0, 300, 200)),
        (None, (200, 400), (0, 100, 200, 300)),
        (112, (100, 100), (-50, -50, 150, 150)),
    ],
)
def test_the_region_that_the_network_sees(
    resize: int | None, size: tuple[int, int], region: tuple[float, float, float, float]
) -> None:
    assert Preprocessing((3, 224, 224), resize=resize, **PLAIN).region(*size) == pytest.approx(region)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 80), st.integers(1, 80), st.integers(1, 40), st.integers(1, 40))
def test_without_resize_the_picture_covers_the_input(width: int, height: int, rows: int, columns: int) -> None:
    ours = Preprocessing((3, rows, columns), **PLAIN)
    left, top, right, bottom = ours.region(width, height)
    assert 0 <= left < right <= width + 1e-9
    assert 0 <= top < bottom <= height + 1e-9
    assert left < 1e-9 + width / columns or top < 1e-9 + height / rows  # along one side nothing is lost
    assert torch.equal(ours(Image.new("RGB", (width, height), "white")), torch.ones(3, rows, columns))


@pytest.mark.parametrize(("resize", "shape"), [(60, (40, 40)), (30, (40, 50)), (None, (24, 48))])
def test_the_region_is_where_the_pixels_come_from(resize: int | None, shape: tuple[int, int]) -> None:
    """A picture whose pixels say where they are: what arrives must be the region, padding aside."""
    width, height = 160, 120
    across = Image.linear_gradient("L").rotate(90).resize((width, height), box=(0, 0, 256, 256))
    ours = Preprocessing((1, *shape), (0.0,), (1.0,), resize)
    left, _, right, _ = ours.region(width, height)
    where = left + (torch.arange(shape[1]) + 0.5) * (right - left) / shape[1]
    row = ours(across)[0, shape[0] // 2] * 255
    inside = (where > 4) & (where < width - 4)
    assert inside.sum() > 20
    assert torch.allclose(row[inside], where[inside] / width * 256 - 0.5, atol=2.5)
    assert row[(where < 0) | (where > width)].eq(0).all()


@pytest.mark.parametrize("size", [(1, 5000), (60000, 2)])
def test_a_strip_is_refused_before_it_takes_gigabytes(size: tuple[int, int]) -> None:
    with pytest.raises(PathxError, match=f"^an image of {size[0]} x {size[1]} pixels would become one of .*: crop"):
        Preprocessing((3, 224, 224), resize=256, **PLAIN)(noise(*size))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"input_size": (3, 0, 4)}, f"input_size must be {SIDES}, not [3, 0, 4]"),
        ({"input_size": (32, 32)}, f"input_size must be {SIDES}, not [32, 32]"),
        ({"input_size": (2, 4, 4)}, "input_size must be 1 (grey), 3 (RGB) or 4 (RGBA) channels, not [2, 4, 4]"),
        ({"mean": (0.5, 0.5)}, "mean must be 3 numbers, one per channel, not [0.5, 0.5]"),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean must be 3 numbers, one per channel, not [0.5, 0.5, nan]"),
        ({"std": (1.0, 1.0, 0.0)}, "std must be 3 numbers above 0, one per channel, not [1.0, 1.0, 0.0]"),
        ({"resize": 0}, "resize must be a whole number above 0 (the shorter side before the crop), not 0"),
        ({"interpolation": "cubic"}, "interpolation must be one of nearest, "),
    ],
)
def test_values_that_make_no_sense(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(PathxError, match=f"^{re.escape(message)}") as caught:
        Preprocessing(**{"input_size": (3, 32, 32), **PLAIN, **changes})
    assert caught.value.usage
