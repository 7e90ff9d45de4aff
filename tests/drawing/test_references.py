"""Crops of what channels look for: the part of the photo inside the field, bright where the unit looked."""

from __future__ import annotations

import torch
from PIL import Image

from pathx.drawing.page import CROP, crop


def halves() -> Image.Image:
    """A photo of 200 x 100: red at the left, green at the right."""
    photo = Image.new("RGB", (200, 100), "red")
    photo.paste((0, 255, 0), (100, 0, 200, 100))
    return photo


def colour(picture: Image.Image, x: float, y: float) -> tuple[int, ...]:
    return picture.getpixel((round(x * (picture.width - 1)), round(y * (picture.height - 1))))  # type: ignore[return-value]


def test_a_field_is_cut_out_of_what_the_network_saw() -> None:
    """The network saw the right square of the photo, as 10 x 10 pixels."""
    region = (100.0, 0.0, 200.0, 100.0)
    whole = crop(halves(), region, (), (10, 10), None)
    assert whole.size == (CROP, CROP) and all(colour(whole, x, 0.5)[1] > 240 for x in (0.0, 0.5, 1.0))
    tall = crop(halves(), region, (0, 0, 5, 10), (10, 10), None)  # half as wide as high: white at its sides
    assert [colour(tall, x, 0.5) for x in (0.1, 0.5, 0.9)] == [(255, 255, 255), (0, 255, 0), (255, 255, 255)]


def test_what_the_unit_did_not_look_at_is_dark() -> None:
    saw = torch.zeros(10, 10)
    saw[:, :3] = -1.0  # what counts is how much, not for what
    found = crop(Image.new("RGB", (100, 100), "white"), (0, 0, 100, 100), (), (10, 10), saw)
    left, right = (colour(found, x, 0.5)[0] for x in (0.05, 0.95))
    assert left > 240 and 40 < right < 70


def test_beyond_the_photo_it_is_black() -> None:
    found = crop(Image.new("RGB", (100, 100), "white"), (-100.0, 0.0, 100.0, 200.0), (), (10, 10), None)
    assert [colour(found, x, y)[0] for x, y in ((0.2, 0.2), (0.8, 0.2), (0.8, 0.8))] == [0, 255, 0]
