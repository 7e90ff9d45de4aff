"""Tables of colours: exact ones start at white and never repeat, so that a heatmap can be read back."""

from __future__ import annotations

import pytest

from pathx.drawing.colours import COLOURS, ZERO, glow_table, heat_table


def entries(table: bytes) -> list[bytes]:
    return [table[place : place + 3] for place in range(0, len(table), 3)]


@pytest.mark.parametrize("name", COLOURS)
def test_zero_is_white_and_the_ends_are_the_outer_stops(name: str) -> None:
    exact, stops = entries(heat_table(name)), COLOURS[name].stops
    assert len(exact) == 256 and exact[ZERO] == b"\xff\xff\xff"
    assert (exact[1].hex(), exact[255].hex()) == (stops[0][1:], stops[-1][1:])


@pytest.mark.parametrize("name", COLOURS)
def test_no_two_values_have_one_colour(name: str) -> None:
    exact = entries(heat_table(name))[1:]
    assert len(set(exact)) == 255


@pytest.mark.parametrize("name", COLOURS)
def test_on_a_photo_what_is_stronger_is_brighter(name: str) -> None:
    glow = entries(glow_table(name))
    for side in (glow[ZERO:], glow[ZERO:0:-1]):
        brightness = [299 * red + 587 * green + 114 * blue for red, green, blue in side[1:]]
        assert brightness == sorted(brightness)
    assert glow[255].hex() == COLOURS[name].towards[-1][1:] and glow[1].hex() == COLOURS[name].against[-1][1:]
