"""Receptive fields: by hand, and as boxes, centres and sizes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from pathx.engine.fields import boxes, extent, places
from pathx.engine.freeze import freeze
from pathx.engine.rules.geometry import Field, Span

FIELD: Field = (Span(2, -1, 4, 0, 9), Span(1, 0, 3, 0, 7))
"""Of a map whose elements see five rows in steps of two, from one above the input, and three columns."""


def units(*index: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(one) for one in zip(*index, strict=True))


def test_boxes_are_left_top_right_bottom_and_end_with_the_input() -> None:
    assert boxes(FIELD, units((0, 0, 0), (5, 1, 2), (0, 4, 6)), (3, 9, 7)).tolist() == [
        [0, 0, 3, 4],
        [2, 1, 5, 6],
        [6, 7, 7, 9],
    ]


def test_what_has_no_field_sees_everything_and_what_is_no_image_has_no_box() -> None:
    assert boxes(None, units((4,)), (3, 9, 7)).tolist() == [[0, 0, 7, 9]]
    assert boxes(FIELD, units((4,)), (3, 9, 7)).tolist() == [[0, 0, 7, 9]]  # a vector
    assert boxes(None, units((4,), (5,)), (12,)).tolist() == [[], []]


def test_places_are_centres_that_no_border_moves() -> None:
    assert places(FIELD, (4, 5, 7), (3, 9, 7)) == ((1.5, 2.0), (1.5, 1.0))
    for shape, size in (((4, 1, 1), (3, 9, 7)), ((4,), (3, 9, 7)), ((4, 5, 7), (63,))):
        assert places(FIELD, shape, size) is None
    assert places(None, (4, 5, 7), (3, 9, 7)) is None


def test_an_extent_is_never_more_than_the_input() -> None:
    assert extent(FIELD, (3, 9, 7)) == (3, 5)
    assert extent(FIELD, (3, 4, 2)) == (2, 4)
    assert extent(None, (3, 9, 7)) == (7, 9)
    assert extent(None, (63,)) == ()


def test_the_fields_of_a_network_are_multiplied_out() -> None:
    """Convolution of 3 with stride 2 and padding 1, pooling of 2, convolution of 3: 3, 5, 13 wide, in steps of 2, 4, 4."""
    layers = nn.Conv2d(1, 2, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3), nn.ReLU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * 4 * 4, 2)).eval()
    network = freeze(model, torch.zeros(1, 1, 24, 24)).network
    below, above = (network.fields[gate.source] for layer in network.layers for gate in layer)
    assert [extent(field, (1, 24, 24)) for field in (below, above)] == [(3, 3), (13, 13)]
    assert boxes(above, units((0, 0, 0), (1, 3, 2)), (1, 24, 24)).tolist() == [[0, 0, 12, 12], [7, 11, 20, 24]]
