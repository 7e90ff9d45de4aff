"""Maps that stand in a page say what they were made of."""

from __future__ import annotations

import base64
import io

import pytest
import torch
from PIL import Image

from pathx.drawing.colours import COLOURS
from pathx.drawing.render import heatmap
from pathx.report.encoding import embedded, read_heatmap, signed_map


def opened(address: str) -> Image.Image:
    head, data = address.split(",", 1)
    assert head.startswith("data:image/")
    return Image.open(io.BytesIO(base64.b64decode(data)))


def test_a_signed_map_is_exact_to_half_a_step() -> None:
    values = torch.randn(7, 5, dtype=torch.float64)
    made = signed_map(values)
    grey = torch.tensor(list(opened(made["src"]).tobytes()), dtype=torch.float64).reshape(7, 5)
    assert (made["width"], made["height"], made["scale"]) == (5, 7, float(values.abs().max()))
    assert ((grey - 128) / 127 * made["scale"] - values).abs().max() <= made["scale"] / 254 + 1e-12
    assert signed_map(torch.zeros(2, 2))["scale"] == 1.0


@pytest.mark.parametrize("colours", COLOURS)
def test_a_heatmap_is_read_back(colours: str) -> None:
    steps = torch.randint(-127, 128, (6, 9)).double()
    steps[0, 0] = 127
    assert torch.equal(read_heatmap(heatmap(steps[None], colours=colours, percentile=100)) * 127, steps)  # type: ignore[operator]
    assert read_heatmap(Image.new("RGB", (3, 3), (1, 2, 3))) is None


@pytest.mark.parametrize(
    ("size", "kind", "scale"), [((1800, 600), "JPEG", 0.5), ((60, 40), "PNG", 1.0), ((900, 1), "JPEG", 1.0)]
)
def test_photos_are_scaled_down_and_few_pixels_are_kept(size: tuple[int, int], kind: str, scale: float) -> None:
    address, by = embedded(Image.new("RGB", size, "teal"))
    image = opened(address)
    assert (image.format, by) == (kind, scale)
    assert image.size == tuple(max(1, round(side * scale)) for side in size)
