"""Pages of pictures with captions: nothing is cut off, and rows are even."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.pages import paper_around

from pathx.drawing.page import Bar, Panel, sheet

captions = st.text("abc XYZ019,-", max_size=150)


@settings(max_examples=10)
@given(
    st.lists(st.tuples(st.integers(1, 620), st.integers(1, 400), captions), min_size=1, max_size=7),
    captions,
    st.one_of(st.none(), captions),
)
def test_nothing_is_cut_off(tiles: list[tuple[int, int, str]], title: str, end: str | None) -> None:
    small = Bar("red-blue", "against", "for")
    panels = [Panel(Image.new("RGB", (w, h), "black"), text, (text, "details"), small) for w, h, text in tiles]
    bar = None if end is None else Bar("red-blue", end, end, 0.5)
    page = sheet(panels, title=title, notes=[title], words=[title, title], bar=bar)
    assert paper_around(page)
    black = sum(count for count, colour in page.getcolors(1 << 24) or [] if colour == (0, 0, 0))
    assert black >= sum(w * h for w, h, _ in tiles)  # every picture is there, whole
    assert page.width <= 1700


def test_rows_are_even_and_columns_can_be_given() -> None:
    panels = [Panel(Image.new("RGB", (340, 340)), str(number)) for number in range(6)]
    assert sheet(panels, title="").width == sheet(panels[:3], title="").width
    assert sheet(panels, title="", columns=2).width < sheet(panels, title="").width
