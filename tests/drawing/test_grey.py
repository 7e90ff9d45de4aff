"""Signed maps as grey pictures say what they were made of."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st
from support.reports import decode_map

from pathx.drawing.grey import encode_map, encode_pixels, shrink


def drawn(seed: int, size: float, shape: tuple[int, int]) -> torch.Tensor:
    return size * torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_a_map_comes_back_to_half_a_step(seed: int, size: float) -> None:
    values = drawn(seed, size, (5, 7))
    made = encode_map(values)
    assert (made["width"], made["height"], made["scale"]) == (7, 5, float(values.abs().max()))
    assert (decode_map(made) - values).abs().max() <= made["scale"] / 127 * 0.5001
    assert encode_map(torch.zeros(2, 2))["scale"] == 1.0


def test_of_a_pixel_map_the_few_strongest_values_are_clipped() -> None:
    values = drawn(0, 1.0, (40, 40))
    values[3, 4] = 1000.0
    made = encode_pixels(values)
    assert made["scale"] < 10 and decode_map(made)[3, 4] == made["scale"]
    others = values.abs() < made["scale"]
    assert (decode_map(made) - values)[others].abs().max() <= made["scale"] / 127 * 0.5001


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40), st.integers(1, 50))
def test_a_smaller_map_has_the_same_sum(seed: int, height: int, width: int, side: int) -> None:
    values = drawn(seed, 1.0, (height, width)).abs()
    small = shrink(values, side)
    assert max(small.shape) == min(side, max(height, width))
    if height % small.shape[0] == width % small.shape[1] == 0:
        assert torch.allclose(small.sum(), values.sum())
