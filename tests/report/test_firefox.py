"""The pages in Firefox: they draw, answer to pointer and keys, and say what path.json says; no error, no request."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.browser import OVERFLOWING
from support.firefox import Firefox
from support.reports import data_of, only_document, results

from pathx.report.build import report

ENTER, LEFT, RIGHT = "\ue007", "\ue012", "\ue014"
OPEN_ALL = "while (find('.node.channel').length) find('.node.channel')[0].dispatchEvent(new Event('dblclick'))"
TYPE = """const [field] = find(arguments[0]);
field.value = arguments[1];
field.dispatchEvent(new Event('input', { bubbles: true }));"""


def test_the_flow_says_what_path_json_says(fox: Firefox, saved: Path) -> None:
    _, document = only_document(saved.parent)
    with fox.opened(saved):
        assert fox.run("return find('h1')[0].innerText") == document["target"]["label"]
        fox.run(OPEN_ALL)
        for layer in document["layers"]:
            shown = fox.run("return Number(find(arguments[0])[0].dataset.sum)", f'[data-layer="{layer["layer"]}"]')
            assert shown == pytest.approx(sum(unit["contribution"] for unit in layer["units"]), rel=1e-6)
            fox.point(f'.node[data-id="{layer["layer"]}:0"] .box')
            unit = layer["units"][0]
            fox.wait("find('.field.pointed').length")
            field = fox.run("return find('.field.pointed')[0].dataset.field")
            assert field == ",".join(map(str, unit["receptive_field"]))
            assert f"{unit['tensor']} [{','.join(map(str, unit['index']))}]" in fox.run(
                "return find('.details')[0].innerText"
            )
            sent = fox.run(
                "return find('.ribbon.lit').filter(one => one.dataset.from == arguments[0])"
                ".map(one => Number(one.dataset.value))",
                f"{layer['layer']}:0",
            )
            assert sum(sent) == pytest.approx(unit["contribution"], rel=1e-4, abs=1e-7)


def test_keys_hold(fox: Firefox, saved: Path) -> None:
    with fox.opened(saved):
        fox.run(OPEN_ALL)
        fox.run("find('.node[tabindex=\"0\"]')[0].focus()")
        first = fox.run("return document.activeElement.dataset.id")
        fox.press(ENTER)
        assert fox.run("return find('.node.held').map(one => one.dataset.id)") == [first]
        fox.press(LEFT)
        fox.press(ENTER)
        second = fox.run("return document.activeElement.dataset.id")
        assert second != first and fox.run("return find('.node.held').map(one => one.dataset.id)") == [second]


def test_maps_and_search(fox: Firefox, live: Path) -> None:
    data = data_of(live)
    own = data["path"]
    with fox.opened(live):
        fox.wait("find('canvas.map')[0].width > 1")
        coloured = """const [map] = find('canvas.map');
            return map.getContext('2d').getImageData(0, 0, map.width, map.height).data.some(value => value > 0)"""
        assert fox.run(coloured)
        parts = fox.run("return find('[data-part]').map(one => Number(one.dataset.value))")
        assert sum(parts) == pytest.approx(own["model"]["score"], rel=1e-4, abs=1e-6)
        layer = own["layers"][-1]
        unit = layer["units"][0]
        name = f"{layer['tensors'][unit['tensor']]['name']} [{','.join(map(str, unit['index']))}]"
        fox.run(TYPE, '[aria-label="Search units"]', name)
        fox.run("find('.results button')[0].click()")
        assert fox.run("return document.activeElement.dataset.id") == f"{layer['layer']}:0"
        fox.run(OPEN_ALL)
        fox.run(
            "find(arguments[0])[0].dispatchEvent(new Event('pointerenter'))", f'.node[data-id="{layer["layer"]}:0"]'
        )
        fox.wait("find('.stage')[0].getAttribute('aria-label').includes('saw')")


def test_a_gallery_filters_and_leads_from_page_to_page(fox: Firefox, tmp_path: Path) -> None:
    index = report([results(tmp_path, [f"{name}.png" for name in "abc"])])
    rows = data_of(index)["rows"]
    with fox.opened(index):
        assert fox.run("return find('.tile').length") == 3
        fox.wait("[...document.images].every(one => one.complete && one.naturalWidth > 0)")
        fox.run(TYPE, 'input[type="search"]', Path(rows[1]["file"]).name)
        assert fox.run("return find('main .told')[0].innerText").startswith("1 image ")
        fox.run(TYPE, 'input[type="search"]', "")
        fox.run("document.activeElement.blur()")
        fox.press(RIGHT)
        fox.press(RIGHT)
        fox.press(ENTER)
        fox.wait(f"location.href.endsWith({Path(rows[1]['page']).name!r}) && document.readyState == 'complete'")
        fox.press(RIGHT)
        fox.wait(f"location.href.endsWith({Path(rows[2]['page']).name!r}) && document.readyState == 'complete'")


@pytest.mark.parametrize("width", [500, 1280])  # Firefox has no narrower windows
def test_no_text_overflows(fox: Firefox, saved: Path, live: Path, measures: list[Path], width: int) -> None:
    for file in (saved, live, *measures):
        with fox.opened(file, width=width):
            assert fox.run(f"return ({OVERFLOWING})()") == [], f"{file} at {width}"
