"""A PNG holds the very pixels, and is hardly larger than Pillow's."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from PIL import Image

from pathx.drawing.render import png

EXAMPLES = Path(__file__).parents[2] / "examples"


def read(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=["PNG"])
    image.verify()  # the checksums
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 3), (223, 5), (64, 300)])
def test_pixels_come_back_as_they_were(size: tuple[int, int]) -> None:
    image = Image.merge("RGB", [Image.effect_noise(size, 90) for _ in range(3)])
    again = read(png(image))
    assert (again.mode, again.size) == ("RGB", size) and again.tobytes() == image.tobytes()


@pytest.mark.parametrize("name", ["cat", "coffee"])
def test_photos_are_packed_as_well_as_with_a_search_for_filters(name: str) -> None:
    with Image.open(EXAMPLES / f"{name}.png") as file:
        image = file.convert("RGB")
    searched = io.BytesIO()
    image.save(searched, "PNG", compress_level=1)
    packed = png(image)
    assert read(packed).tobytes() == image.tobytes()
    assert len(packed) < 1.15 * len(searched.getvalue())
