"""Pages of pictures with captions: nothing is cut off, and rows are even."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from support.pages import paper_around

from pathx.drawing import page
from pathx.drawing.page import Bar, Panel, legible, sheet, width, wrap

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
    made = sheet(panels, title=title, notes=[title], words=[title, title], bar=bar)
    assert paper_around(made)
    black = sum(count for count, colour in made.getcolors(1 << 24) or [] if colour == (0, 0, 0))
    assert black >= sum(w * h for w, h, _ in tiles)  # every picture is there, whole
    assert made.width <= 1700


def test_rows_are_even_and_columns_can_be_given() -> None:
    panels = [Panel(Image.new("RGB", (340, 340)), str(number)) for number in range(6)]
    assert sheet(panels, title="").width == sheet(panels[:3], title="").width
    assert sheet(panels, title="", columns=2).width < sheet(panels, title="").width


words = st.text("abcXYZ019,-[]", min_size=1, max_size=30)


@given(st.lists(words, max_size=8), st.integers(40, 300))
def test_lines_fit_and_say_everything(texts: list[str], room: int) -> None:
    lines = wrap(" ".join(texts), 15, room, most=99)
    assert all(width(line, 15) <= room for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(texts)


@given(st.text(max_size=20))
def test_any_text_can_be_written(text: str) -> None:
    written, font = legible(text, 14)
    assert font.getlength(written) >= 0
    assert written.isprintable()
    assert wrap(text, 14, 100)


def test_a_font_elsewhere_is_taken_for_what_pillows_own_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    own = legible("plain", 14)[1]
    assert legible("plain, 12 [3]", 14) == ("plain, 12 [3]", own)
    monkeypatch.setattr(page, "_others", lambda size: ())
    assert legible("café ж", 14) == ("cafe ?", own)
    assert legible("tab\tand\nline", 14)[0] == "tab and line"
