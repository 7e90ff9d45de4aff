"""The pages in Firefox: they draw, answer to keys, and say what path.json says; no error, no request."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import OVERFLOWING
from support.firefox import Firefox
from support.reports import only_document

ENTER, LEFT = "\ue007", "\ue012"


def test_the_flow_says_what_path_json_says_and_keys_hold(fox: Firefox, saved: Path) -> None:
    _, document = only_document(saved.parent)
    with fox.opened(saved):
        assert fox.run("return find('h1')[0].innerText") == document["target"]["label"]
        fox.wait("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        for layer in document["layers"]:
            shown = fox.run("return Number(find(arguments[0])[0].dataset.sum)", f'[data-layer="{layer["layer"]}"]')
            assert shown == pytest.approx(sum(unit["contribution"] for unit in layer["units"]), rel=1e-6)
        fox.run("find('.node[tabindex=\"0\"]')[0].focus()")
        first = fox.run("return document.activeElement.dataset.id")
        fox.press(LEFT)
        fox.press(ENTER)
        second = fox.run("return document.activeElement.dataset.id")
        assert second != first and fox.run("return find('.node.held').map(one => one.dataset.id)") == [second]
        assert fox.run("return find('.field.pointed').length") == 1


@pytest.mark.parametrize("width", [500, 1280])  # Firefox has no narrower windows
def test_no_text_overflows(fox: Firefox, saved: Path, live: Path, measures: list[Path], width: int) -> None:
    for file in (saved, live, *measures):
        with fox.opened(file, width=width):
            assert fox.run(f"return ({OVERFLOWING})()") == [], f"{file} at {width}"
