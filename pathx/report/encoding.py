"""Photos and drawings as a page holds them: small, as data addresses."""

from __future__ import annotations

import base64
import io
from typing import Any

from PIL import Image

PHOTO_SIDE = 900
"""Photos are scaled down to this on their longer side."""


def encode_photo(image: Image.Image, side: int = PHOTO_SIDE) -> dict[str, Any]:
    """A photo as the page's `src`, `width` and `height`."""
    data, kind = encode_jpeg(image, side, 82), "jpeg"
    if max(image.size) <= 128:  # a few pixels: each of them counts
        data, kind = _encode(image.convert("RGB"), "PNG"), "png"
    width, height = Image.open(io.BytesIO(data)).size
    return {"src": _address(data, kind), "width": width, "height": height}


def encode_small(image: Image.Image, side: int) -> str:
    """A small copy of a photo as a data address."""
    return _address(encode_jpeg(image, side), "jpeg")


def encode_jpeg(image: Image.Image, side: int, quality: int = 80) -> bytes:
    """A small copy of a photo as the bytes of a file."""
    image = image.convert("RGB")
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _encode(image, "JPEG", quality=quality)


def _address(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _encode(image: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()
