"""What elements see along an axis, tried by walking there."""

from __future__ import annotations

from itertools import product

import pytest

from pathx.engine.rules.geometry import Span, pair

LAYERS = list(product((1, 2, 3), (-2, -1, 0), (1, 3)))  # stride, offset, reach


def seen(layers: list[tuple[int, int, int, int]], place: int, size: int) -> set[int]:
    """Pixels that the element at a place sees, by definition; what lies outside of a map is not there."""
    places = {place}
    for number in reversed(range(len(layers))):
        stride, offset, reach, _ = layers[number]
        below = size if number == 0 else layers[number - 1][3]
        read = {stride * one + offset + more for one in places for more in range(reach)}
        places = {one for one in read if 0 <= one < below}
    return places


@pytest.mark.parametrize("first", LAYERS)
@pytest.mark.parametrize("second", LAYERS[::4])
def test_no_element_sees_more_than_its_span(first: tuple[int, int, int], second: tuple[int, int, int]) -> None:
    size, made, top = 14, 6, 3
    layers = [(*first, made), (*second, top)]
    span = Span.input(size).under(*first, made).under(*second, top)
    for place in range(top):
        found = seen(layers, place, size)
        low, high = max(span.step * place + span.low, span.start), min(span.step * place + span.high, span.stop)
        assert all(low <= one < high for one in found)
        inside = all(0 <= second[0] * place + second[1] + one < made for one in range(second[2]))
        if found and inside and second[2] == first[2] == 1:
            assert found == set(range(max(0, low), min(size, high)))


@pytest.mark.parametrize("stride", [1, 2, 3, -1, -2])
@pytest.mark.parametrize("offset", [-2, 0, 3])
@pytest.mark.parametrize("reach", [1, 3])
@pytest.mark.parametrize("below", [Span(1, 0, 1, 0, 9), Span(2, -1, 4, 1, 12), Span(-1, 8, 9, 0, 9)])
def test_a_span_is_put_together_from_what_it_reads(stride: int, offset: int, reach: int, below: Span) -> None:
    """And no element of the map sees pixels outside of what its elements see."""
    for size in (1, 2, 5):
        span = below.under(stride, offset, reach, size)
        for place in range(size):
            read = [stride * place + offset + more for more in range(reach)]
            assert span.step * place + span.low == min(below.step * one + below.low for one in read)
            assert span.step * place + span.high == max(below.step * one + below.high for one in read)
        assert span.start == max(below.start, min(span.step * place + span.low for place in range(size)))
        assert span.stop == min(below.stop, max(span.step * place + span.high for place in range(size)))


@pytest.mark.parametrize(("value", "both"), [(2, (2, 2)), ([3], (3, 3)), ((1, 4), (1, 4)), ([5, 6], (5, 6))])
def test_a_setting_is_for_both_axes(value: object, both: tuple[int, int]) -> None:
    assert pair(value) == both


def test_both_of_two_spans() -> None:
    assert Span(2, -1, 3, 0, 8) | Span(2, 0, 5, 1, 9) == Span(2, -1, 5, 0, 9)
