"""Photos and signed maps as they stand in a page: data addresses, small."""

from __future__ import annotations

import base64
import io
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from pathx.drawing.colours import COLOURS
from pathx.drawing.render import heatmap

PHOTO_SIDE = 900
"""Photos are scaled down to this on their longer side."""

_ZERO = 128
_STEPS = 127


def embedded(image: Image.Image, side: int = PHOTO_SIDE) -> tuple[str, float]:
    """A photo as a data address, and by how much it was scaled."""
    scale = min(1.0, side / max(image.size))
    small = image.convert("RGB")
    if scale < 1:
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        small = small.resize(size, Image.Resampling.LANCZOS)
    if max(image.size) <= 128:  # a few pixels: each of them counts
        return _address(small, "PNG"), scale
    return _address(small, "JPEG", quality=82), scale


def jpeg(image: Image.Image, side: int, quality: int = 80) -> bytes:
    """A small copy of a photo as the bytes of a file."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return _encoded(small, "JPEG", quality=quality)


def small(image: Image.Image, side: int) -> str:
    """A small copy of a photo as a data address."""
    return _data_address(jpeg(image, side), "JPEG")


def signed_map(values: Tensor, *, scale: float | None = None) -> dict[str, Any]:
    """A map (H, W) of signed numbers as a grey picture: 128 is zero, and 1 and 255 stand for -scale and scale."""
    values = values.detach().cpu().double()
    scale = scale or float(values.abs().max()) or 1.0
    steps = (values / scale * _STEPS).clamp(-_STEPS, _STEPS).round().to(torch.int64) + _ZERO
    image = Image.frombytes("L", (values.shape[1], values.shape[0]), bytes(steps.flatten().tolist()))
    return {"src": _address(image, "PNG", optimize=True), "width": image.width, "height": image.height, "scale": scale}


def read_heatmap(image: Image.Image) -> Tensor | None:
    """The map behind a heatmap.png, in steps of its strongest colour; None where its colours are not ours."""
    image = image.convert("RGB")
    known = image.getcolors(1 << 16)
    if known is None:
        return None
    for name in COLOURS:
        steps = _steps_by_colour(name)
        if all(colour in steps for _, colour in known):
            data = image.tobytes()
            colours = zip(data[::3], data[1::3], data[2::3], strict=True)
            values = torch.tensor([steps[colour] for colour in colours], dtype=torch.float64)
            return values.reshape(image.height, image.width) / _STEPS
    return None


def _steps_by_colour(name: str) -> dict[Any, int]:
    every = torch.arange(-_STEPS, _STEPS + 1, dtype=torch.float64)[None]
    drawn = heatmap(every, colours=name, percentile=100).tobytes()
    triples = zip(drawn[::3], drawn[1::3], drawn[2::3], strict=True)
    return {colour: step for step, colour in enumerate(triples, start=-_STEPS)}


def _address(image: Image.Image, kind: str, **how: Any) -> str:
    return _data_address(_encoded(image, kind, **how), kind)


def _data_address(data: bytes, kind: str) -> str:
    return f"data:image/{kind.lower()};base64,{base64.b64encode(data).decode()}"


def _encoded(image: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()
