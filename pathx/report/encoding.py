"""Pictures as a page holds them: small, as data addresses."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from PIL import Image

from pathx.errors import PathxError
from pathx.images.read import open_image

PHOTO_SIDE = 900
"""Photos are scaled down to this on their longer side."""


def encode_photo(image: Image.Image) -> dict[str, Any]:
    """A photo as the page's `src`, `width` and `height`; a few pixels stay as they are."""
    if max(image.size) <= 128:
        return {"src": encode_png(image.convert("RGB")), "width": image.width, "height": image.height}
    small = shrink(image, PHOTO_SIDE)
    return {"src": encode_small(small, PHOTO_SIDE, 82), "width": small.width, "height": small.height}


def encode_small(image: Image.Image, side: int, quality: int = 80) -> str:
    """A small copy of a photo."""
    return _address(encode_jpeg(image, side, quality), "jpeg")


def encode_png(image: Image.Image) -> str:
    """A picture as it is."""
    return _address(_encode(image, "PNG", optimize=True), "png")


def read_picture(file: Path) -> Image.Image | None:
    """A picture that pathx wrote; None where there is none."""
    try:
        return open_image(file).pixels
    except PathxError:
        return None


def encode_jpeg(image: Image.Image, side: int, quality: int = 80) -> bytes:
    """A small copy of a photo as the bytes of a file."""
    return _encode(shrink(image, side), "JPEG", quality=quality)


def shrink(image: Image.Image, side: int) -> Image.Image:
    """A picture in RGB of at most so many pixels on its longer side."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def _address(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _encode(image: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()
