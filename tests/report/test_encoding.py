"""Photos stand in a page as small as they are shown, and a few pixels as they are."""

from __future__ import annotations

import base64
import io

import pytest
from PIL import Image

from pathx.report.encoding import encode_photo


@pytest.mark.parametrize(
    ("size", "kind", "scale"), [((1800, 600), "JPEG", 0.5), ((60, 40), "PNG", 1.0), ((900, 1), "JPEG", 1.0)]
)
def test_photos_are_scaled_down_and_few_pixels_are_kept(size: tuple[int, int], kind: str, scale: float) -> None:
    made = encode_photo(Image.new("RGB", size, "teal"))
    image = Image.open(io.BytesIO(base64.b64decode(made["src"].partition(",")[2])))
    assert image.format == kind and image.size == (made["width"], made["height"])
    assert image.size == tuple(max(1, round(side * scale)) for side in size)
