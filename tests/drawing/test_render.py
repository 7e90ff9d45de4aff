"""Colours say sign and size truly, and the overlay shows heat just where the network looked."""

from __future__ import annotations

import io
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageChops, ImageStat

from pathx.drawing.colours import COLOURS, ZERO, glow_table, heat_table
from pathx.drawing.render import (
    Drawing,
    colour_bar,
    colour_scale,
    draw_overlay,
    enlarged_map,
    half_level,
    pixel_map,
    png,
    shared_scale,
)
from pathx.errors import PathxError
from pathx.maps import smooth

WHITE = (255, 255, 255)
PLAIN, SQUARES = Drawing(heat="pixels"), Drawing(heat="pixels", smoothing=0)


def heatmap(values: torch.Tensor, **how: Any) -> Image.Image:
    return pixel_map(values, **how).convert("RGB")


LIGHTNESS = torch.tensor([0.2126, 0.7152, 0.0722], dtype=torch.float64)


def table_of(colours: bytes) -> torch.Tensor:
    """A table of 256 colours, (256, 3) from 0 to 1."""
    return torch.tensor(list(colours), dtype=torch.float64).reshape(256, 3) / 255


def overlay(
    photo: Image.Image, values: torch.Tensor, region: tuple[float, float, float, float], **how: Any
) -> Image.Image:
    """What `draw_overlay` makes; plain heat without a line unless the drawing is another."""
    return draw_overlay(photo, values, region, how.pop("drawing", PLAIN), **how).full


def random_map(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def rgb(image: Image.Image, x: int, y: int) -> tuple[int, int, int]:
    pixel = image.getpixel((x, y))
    assert isinstance(pixel, tuple)
    return pixel[0], pixel[1], pixel[2]


def strength(image: Image.Image, x: int, y: int) -> int:
    return 255 - min(rgb(image, x, y))


def changed(first: Image.Image, second: Image.Image) -> tuple[int, int, int, int] | None:
    return ImageChops.difference(first, second).getbbox()


def test_an_enlarged_map_mixes_values_and_has_no_colour_that_is_not_in_the_table() -> None:
    values = torch.tensor([[1.0, -1.0], [1.0, -1.0]])
    drawn = pixel_map(values)
    assert drawn.mode == "P" and drawn.convert("RGB").tobytes() == heatmap(values).tobytes()
    large = enlarged_map(drawn, (101, 2))
    table = {tuple(heat_table("red-blue")[at : at + 3]) for at in range(0, 768, 3)}
    assert {colour for _, colour in large.getcolors() or []} <= table
    assert min(rgb(large, 50, 0)) > 240  # halfway between the two there is nothing
    assert large.getpixel((0, 0)) == heatmap(values).getpixel((0, 0))


def test_red_for_blue_against_white_for_nothing_one_pixel_each() -> None:
    values = torch.tensor([[1.0, -1.0, 0.0], [0.3, -0.3, 0.0]])
    image = heatmap(values)
    assert (image.mode, image.size) == ("RGB", (3, 2))
    for y in range(2):
        red, _, blue = rgb(image, 0, y)
        assert red > blue + 50
        red, _, blue = rgb(image, 1, y)
        assert blue > red + 50
        assert rgb(image, 2, y) == WHITE
    assert strength(image, 0, 0) > strength(image, 0, 1) and strength(image, 1, 0) > strength(image, 1, 1)


@pytest.mark.parametrize("colours", COLOURS)
def test_every_map_is_white_at_zero_and_tells_the_signs_apart_for_any_colour_vision(colours: str) -> None:
    table = table_of(heat_table(colours))
    assert torch.equal(table[ZERO], torch.ones(3, dtype=torch.float64))
    assert len(table[1:].unique(dim=0)) == 255  # a heatmap can be read back
    light = table @ LIGHTNESS
    assert (light[1 : ZERO + 1].diff() > 0).all() and (light[ZERO:].diff() < 0).all()
    # Red and green are alike to the commonest colour blindness; blue against yellow is not.
    yellowness = table[:, :2].mean(1) - table[:, 2]
    assert yellowness[ZERO - 64] < -0.1 < 0.1 < yellowness[ZERO + 64]


@pytest.mark.parametrize("colours", COLOURS)
def test_on_a_photo_what_is_stronger_is_brighter_and_the_signs_differ_for_any_colour_vision(colours: str) -> None:
    table = table_of(glow_table(colours))
    light = table @ LIGHTNESS
    assert (light[1:ZERO].diff() <= 1e-9).all() and (light[ZERO:].diff() >= -1e-9).all()
    assert light[255] > light[ZERO] + 0.2 and light[1] > light[ZERO - 1] + 0.2
    yellowness = table[:, :2].mean(1) - table[:, 2]
    assert (yellowness[1:ZERO] < -0.1).all() and (yellowness[ZERO:] > 0.1).all()


def test_a_few_outliers_do_not_bleach_the_rest() -> None:
    values = random_map(1, 100, 100)
    spiked = values.clone()
    spiked[0, :3] = 1e6
    assert abs(colour_scale(spiked) / colour_scale(values) - 1) < 0.05
    assert colour_scale(values) == pytest.approx(2.576, rel=0.05)  # 99 % of a normal distribution


def test_one_lone_value_among_zeros_is_seen() -> None:
    values = torch.zeros(200, 200)
    values[3, 5] = -1e-6
    image = heatmap(values)
    assert strength(image, 5, 3) > 200
    values[3, 5] = 0
    assert changed(heatmap(values), Image.new("RGB", (200, 200), "white")) is None


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_values_that_are_no_numbers_are_white_and_leave_the_others_alone(bad: float) -> None:
    values = random_map(2, 8, 8)
    values[0, 0] = 0
    good = heatmap(values)
    values[0, 0] = bad
    assert heatmap(values).tobytes() == good.tobytes()


@given(st.integers(1, 40), st.integers(1, 40), st.floats(0, 0.5), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_smoothing_keeps_the_sum_and_a_flat_map_flat(height: int, width: int, sigma: float, seed: int) -> None:
    values = random_map(seed, 3, height, width).double()
    torch.testing.assert_close(smooth(values, sigma).sum(), values.sum(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(smooth(torch.ones(height, width), sigma), torch.ones(height, width).double())


def test_smoothing_is_a_gaussian_of_that_width() -> None:
    values = torch.zeros(101, 101)
    values[50, 50] = 1
    blurred = smooth(values, 0.04)
    distance = torch.arange(101).double() - 50
    assert float((blurred.sum(0) * distance**2).sum()) ** 0.5 == pytest.approx(0.04 * 101, rel=0.01)
    assert torch.equal(smooth(values, 0), values.double())


def photo(width: int, height: int) -> Image.Image:
    return Image.radial_gradient("L").resize((width, height)).convert("RGB")


@pytest.mark.parametrize(
    ("size", "shown"),
    [
        ((600, 400), (600, 400)),
        ((300, 900), (300, 900)),
        ((32, 32), (512, 512)),
        ((28, 20), (532, 380)),
        ((8000, 4000), (900, 450)),
        ((1, 5000), (1, 900)),
        ((1, 1), (512, 512)),
    ],
)
def test_the_photo_keeps_its_shape_and_gets_a_size_to_look_at(size: tuple[int, int], shown: tuple[int, int]) -> None:
    assert overlay(photo(*size), random_map(3, 16, 16), (0, 0, *size)).size == shown


def test_heat_falls_where_the_attribution_says_and_nowhere_else() -> None:
    region = (150.0, 50.0, 450.0, 350.0)
    values = torch.zeros(30, 30)
    nothing = overlay(photo(600, 400), values, region, drawing=SQUARES)
    values[6, 21] = 1
    heat = overlay(photo(600, 400), values, region, drawing=SQUARES)
    assert changed(nothing, heat) == (360, 110, 370, 120)
    red, _, blue = rgb(heat, 365, 115)
    assert red > blue + 50
    smoothed = changed(nothing, overlay(photo(600, 400), smooth(values, 0.03), region))
    assert smoothed is not None
    left, top, right, bottom = smoothed
    assert left < 360 and top < 110 and right > 370 and bottom > 120
    assert left >= 150 and top >= 50 and right <= 450 and bottom <= 350
    assert left + right == pytest.approx(730, abs=2) and top + bottom == pytest.approx(230, abs=2)


def test_what_the_network_did_not_see_is_dimmed_and_bounded_by_a_line() -> None:
    image = Image.new("RGB", (600, 400), (180, 180, 180))
    shown = overlay(image, torch.zeros(8, 8), (100, 0, 500, 400))
    inside, outside = rgb(shown, 300, 200), rgb(shown, 50, 200)
    assert min(inside) > 80 > 60 > max(outside)
    assert rgb(shown, 100, 200) == WHITE and rgb(shown, 499, 200) == WHITE
    assert max(rgb(shown, 99, 200)) == 0 and max(rgb(shown, 500, 200)) == 0
    whole = overlay(image, torch.zeros(8, 8), (0, 0, 600, 400))
    assert whole.getcolors() == [(600 * 400, inside)]  # all was seen: no line, nothing dimmed


@pytest.mark.parametrize("shade", [(12, 9, 8), (40, 160, 60), (120, 120, 120), (245, 245, 250), (230, 120, 20)])
def test_the_photo_is_visible_and_heat_stands_out_on_any_photo(shade: tuple[int, int, int]) -> None:
    image = Image.new("RGB", (400, 400), shade)
    image.paste(tuple(round(0.6 * band) for band in shade), (200, 0, 400, 400))  # a darker half
    region, values = (0, 0, 400, 400), torch.zeros(20, 20)
    plain = overlay(image, values, region, scale=1.0)
    light = [ImageStat.Stat(plain.convert("L").crop((x, 0, x + 200, 400))).mean[0] for x in (0, 200)]
    assert light[0] - light[1] > 8 and light[1] > 30 and light[0] < 220
    values[8:12, 8:12] = 1
    for x in (190, 210):
        red, green, blue = rgb(overlay(image, values, region), x, 200)
        assert red > blue + 60 and red > green  # gold, whatever is below it
        before = rgb(plain, x, 200)
        assert sum(abs(one - other) for one, other in zip((red, green, blue), before, strict=True)) > 60


def test_small_spots_have_no_line() -> None:
    across = torch.linspace(-1, 1, 224, dtype=torch.float64)

    def spot(x: float, y: float, spread: float) -> torch.Tensor:
        return torch.exp(-((across[:, None] - y) ** 2 + (across - x) ** 2) / spread)

    image, region = Image.new("RGB", (448, 448), "black"), (0, 0, 448, 448)
    large, small = spot(-0.4, 0.0, 0.05), 1.2 * spot(0.7, 0.6, 0.0009)
    plain = overlay(image, large + small, region)
    lined = changed(plain, overlay(image, large + small, region, drawing=Drawing()))
    alone = changed(overlay(image, large, region), overlay(image, large, region, drawing=Drawing()))
    assert lined is not None and alone is not None
    assert all(abs(one - other) <= 6 for one, other in zip(lined, alone, strict=True))
    hill = large + 0.44 * spot(0.6, 0.5, 0.02)  # its top is barely above the level, and its slopes barely below
    on_hill = changed(overlay(image, hill, region), overlay(image, hill, region, drawing=Drawing()))
    assert 0.44 > half_level(hill) > 0.4 and on_hill is not None and on_hill[2] < 260
    two = large + spot(0.6, 0.5, 0.03)
    both = changed(overlay(image, two, region), overlay(image, two, region, drawing=Drawing()))
    assert both is not None and both[2] > 300


@given(st.integers(0, 99), st.floats(0.1, 0.9))
@settings(max_examples=25)
def test_the_line_holds_that_share_of_the_support_and_no_place_more(seed: int, share: float) -> None:
    values = random_map(seed, 9, 7).double()
    level = half_level(values, share)
    support = values.clamp(min=0)
    inside = support[values >= level]
    assert inside.sum() >= share * support.sum() > inside.sum() - inside.min()
    assert half_level(-values.abs()) == 0.0


def test_the_line_runs_around_the_heat_and_only_where_it_is_asked_for() -> None:
    image = Image.new("RGB", (400, 400), "black")
    across = torch.linspace(-1, 1, 40, dtype=torch.float64)
    values = torch.exp(-4 * (across[:, None] ** 2 + across**2))
    plain = overlay(image, values, (0, 0, 400, 400))
    lined = overlay(image, values, (0, 0, 400, 400), drawing=Drawing())
    where = changed(plain, lined)
    assert where is not None
    radius = 200 * (torch.log(torch.tensor(2.0)) / 4).sqrt().item()  # half of this bell lies above half its height
    for side, expected in zip(where, (200 - radius, 200 - radius, 200 + radius, 200 + radius), strict=True):
        assert side == pytest.approx(expected, abs=8)
    assert rgb(lined, 200, 200) == rgb(plain, 200, 200)
    against = overlay(image, -values, (0, 0, 400, 400), drawing=Drawing())
    assert changed(against, overlay(image, -values, (0, 0, 400, 400))) is None


# Pictures that are compared


@given(st.lists(st.floats(1e-6, 1e6), max_size=4), st.integers(1, 100))
@settings(max_examples=25)
def test_a_shared_scale_is_the_largest_of_their_own(factors: list[float], percentile: int) -> None:
    several = [random_map(seed, 6, 6).double() * factor for seed, factor in enumerate(factors)]
    own = [colour_scale(one, percentile) for one in several]
    assert shared_scale([*several, torch.zeros(6, 6)], percentile) == max(own, default=1.0)


@pytest.mark.parametrize("colours", COLOURS)
def test_a_colour_bar_runs_from_against_to_for(colours: str) -> None:
    bar = colour_bar(200, 10, colours)
    against, nothing, towards = (rgb(bar, x, 5) for x in (0, 100, 199))
    assert max(nothing) - min(nothing) < 12
    assert towards[0] > towards[2] + 50 and against[2] > (against[0] + against[1]) / 2 + 30
    assert rgb(colour_bar(201, 10, colours, exact=True), 100, 5) == WHITE
    half = colour_bar(200, 10, colours, ends=(0.0, 1.0))
    assert max(abs(one - other) for one, other in zip(rgb(half, 0, 5), nothing, strict=True)) <= 3
    assert rgb(half, 199, 5) == towards


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"smoothing": -0.1}, "smoothing -0.1 is out of range; use 0 for none, up to 1, such as 0.025"),
        ({"smoothing": float("nan")}, "smoothing nan is out of range; use 0 for none, up to 1, such as 0.025"),
        ({"percentile": 101}, "percentile 101 is out of range; use above 0, up to 100, such as 99"),
        ({"colours": "green"}, "colours are red-blue or orange-purple, not 'green'"),
        ({"heat": "units"}, "heat is path or pixels or layers, not 'units'"),
    ],
)
def test_drawings_that_cannot_be(options: dict[str, float], message: str) -> None:
    with pytest.raises(PathxError) as caught:
        Drawing(**options)  # type: ignore[arg-type]
    assert str(caught.value) == message
    assert caught.value.usage


def read(data: bytes) -> Image.Image:
    image = Image.open(io.BytesIO(data), formats=["PNG"])
    image.verify()  # the checksums
    image = Image.open(io.BytesIO(data))
    image.load()
    return image


@pytest.mark.parametrize("size", [(1, 1), (1, 7), (7, 1), (2, 3), (223, 5), (64, 300)])
def test_pixels_come_back_as_they_were(size: tuple[int, int]) -> None:
    image = Image.merge("RGB", [Image.effect_noise(size, 90) for _ in range(3)])
    again = read(png(image))
    assert (again.mode, again.size) == ("RGB", size) and again.tobytes() == image.tobytes()
