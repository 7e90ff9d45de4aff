"""The page of an explanation in a real browser: what lights up, what adds up, and what never runs."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from support.browser import OVERFLOWING, opened, serious
from support.command_line import Pathx, picture, scripted
from support.command_line import network as file_network
from support.reports import HOSTILE, data_of, only_document, results

from pathx.report.build import report

NODES = """all => all.map(node => [
  node.dataset.id, Number(node.dataset.value), node.querySelector('.cut')?.dataset.cut ?? '0'
])"""
RIBBONS = "all => all.map(one => [one.dataset.from, one.dataset.to, Number(one.dataset.value)])"
HEIGHTS = """all => all.map(node => [
  node.dataset.id.split(/[:/]/)[0],
  Math.abs(node.dataset.value),
  Number(node.querySelector('.box').getAttribute('height')),
])"""
Reached = tuple[set[str], set[tuple[str, str]]]


def open_all(page: Any) -> None:
    """Open every channel of the flow."""
    while page.locator(".node.channel").count():
        page.locator(".node.channel").first.dispatch_event("dblclick")


def reached(document: dict[str, Any], layer: int, position: int) -> Reached:
    """What a unit leads to, up and down, by the edges of path.json alone."""
    edges: list[tuple[str, str]] = [
        (f"{own['layer']}:{start}", "class" if entry["to_layer"] is None else f"{entry['to_layer']}:{end}")
        for own in document["layers"]
        for entry in own["edges"]
        for start, end, _ in entry["values"]
    ]
    nodes, ribbons = {f"{layer}:{position}"}, set()
    for here, there in ((0, 1), (1, 0)):
        waiting = [f"{layer}:{position}"]
        while waiting:
            one = waiting.pop()
            for edge in edges:
                if edge[here] == one and edge not in ribbons:
                    ribbons.add(edge)
                    nodes.add(edge[there])
                    waiting.append(edge[there])
    return nodes, ribbons


def lit(page: Any) -> Reached:
    nodes = page.eval_on_selector_all(".node.lit, .whole.lit", "all => all.map(one => one.dataset.id)")
    ribbons = page.eval_on_selector_all(".ribbon.lit", "all => all.map(one => [one.dataset.from, one.dataset.to])")
    return set(nodes), {(start, end) for start, end in ribbons}


def test_pointing_at_a_unit_lights_what_path_json_says(browser: Any, saved: Path) -> None:
    _, document = only_document(saved.parent)
    with opened(browser, saved) as page:
        open_all(page)
        for layer in document["layers"]:
            page.locator(f'.node[data-id="{layer["layer"]}:0"]').dispatch_event("pointerenter")
            assert lit(page) == reached(document, layer["layer"], 0)
            field = page.locator(".field.pointed")
            assert page.evaluate(
                "[...document.querySelectorAll('.field')].every(one => getComputedStyle(one).fill == 'none')"
            )
            assert field.get_attribute("data-field") == ",".join(map(str, layer["units"][0]["receptive_field"]))
            unit = layer["units"][0]
            name = f"{unit['tensor']} [{','.join(map(str, unit['index']))}]"
            assert name in page.locator(".details").inner_text()
            page.locator(f'.node[data-id="{layer["layer"]}:0"]').dispatch_event("pointerleave")
            assert lit(page) == (set(), set())


def test_the_flow_adds_up(browser: Any, saved: Path) -> None:
    _, document = only_document(saved.parent)
    with opened(browser, saved) as page:
        for opening in (False, True):  # channels together, and every unit alone
            if opening:
                open_all(page)
            nodes = page.eval_on_selector_all(
                ".node",
                NODES,
            )
            ribbons = page.eval_on_selector_all(".ribbon", RIBBONS)
            out, into = defaultdict(float), defaultdict(float)
            for start, end, value in ribbons:
                out[start] += value
                into[end] += value
            deepest = document["layers"][-1]["layer"]
            for name, value, cut in nodes:
                assert out[name] == pytest.approx(value, rel=1e-4, abs=1e-7)  # what it sends is what it contributes
                if not name.startswith(str(deepest)):
                    assert into[name] + float(cut) == pytest.approx(value, rel=1e-4, abs=1e-6)
            rest = float(page.locator(".whole .cut").get_attribute("data-cut") or 0)
            assert into["class"] + rest == pytest.approx(document["target"]["logit"], rel=1e-5)
            for layer in document["layers"]:
                total = sum(unit["contribution"] for unit in layer["units"])
                shown = page.locator(f'[data-layer="{layer["layer"]}"]').get_attribute("data-sum")
                assert float(shown) == pytest.approx(total, rel=1e-6)
            parts = page.eval_on_selector_all("[data-part]", "all => all.map(one => Number(one.dataset.value))")
            assert sum(parts) == pytest.approx(document["linear_model"]["score"], rel=1e-4, abs=1e-6)


def test_units_that_are_not_listed_are_one_box(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pathx.report.explanation.MOST_UNITS", 2)
    made = report([results(tmp_path)])
    _, document = only_document(made.parent)
    with opened(browser, made) as page:
        assert page.locator(".node.unlisted").count() == len(document["layers"])
        for layer in document["layers"]:
            shown = page.locator(f'[data-layer="{layer["layer"]}"]').get_attribute("data-sum")
            assert float(shown) == pytest.approx(sum(unit["contribution"] for unit in layer["units"]), rel=1e-6)
        page.locator(".node.unlisted").first.dispatch_event("click")
        page.locator(".node.unlisted").first.dispatch_event("pointerenter")
        assert "does not list" in page.locator(".details").inner_text()


def test_heights_are_shares_of_their_column(browser: Any, saved: Path) -> None:
    with opened(browser, saved) as page:
        found = page.eval_on_selector_all(
            ".node",
            HEIGHTS,
        )
    columns = defaultdict(list)
    for layer, value, height in found:
        columns[layer].append((value, height))
    for column in columns.values():
        total, tall = sum(value for value, _ in column), sum(height for _, height in column)
        for value, height in column:
            assert height / tall == pytest.approx(value / total, abs=0.03)


def test_keys_move_and_hold_and_a_held_channel_opens(browser: Any, saved: Path) -> None:
    with opened(browser, saved) as page:
        page.locator('.node[tabindex="0"]').focus()
        first = page.evaluate("document.activeElement.dataset.id")
        page.keyboard.press("Enter")
        assert page.locator(".node.held").get_attribute("data-id") == first
        page.keyboard.press("ArrowLeft")
        second = page.evaluate("document.activeElement.dataset.id")
        assert int(second.split("/")[0].split(":")[0]) == int(first.split("/")[0].split(":")[0]) - 1
        page.keyboard.press("Enter")
        assert page.locator(".node.held").get_attribute("data-id") == second
        page.get_by_role("button", name="Let go").click()
        assert page.locator(".node.held").count() == 0
        channel = page.locator(".node.channel").first
        count = page.locator(".node").count()
        channel.dispatch_event("click")
        channel.dispatch_event("pointerleave")
        page.get_by_label("Your name for").fill("whiskers")  # the panel stays while the channel is held
        page.keyboard.press("Enter")
        assert page.locator(".words", has_text="whiskers").count() == 1
        page.get_by_role("button", name="Open into").click()
        assert page.locator(".node").count() > count
        page.keyboard.press("ArrowDown")
        page.keyboard.press("ArrowUp")
        assert page.evaluate("document.activeElement.classList.contains('node')")


def test_search_finds_units_and_leads_to_them(browser: Any, saved: Path) -> None:
    _, document = only_document(saved.parent)
    layer = document["layers"][-1]
    unit = layer["units"][0]
    name = f"{unit['tensor']} [{','.join(map(str, unit['index']))}]"
    with opened(browser, saved) as page:
        page.get_by_label("Search units").fill(name)
        page.locator(".results button").first.click()
        assert page.evaluate("document.activeElement.dataset.id") == f"{layer['layer']}:0"
        page.get_by_label("Search units").fill("nothing like it")
        assert "nothing found" in page.locator(".results").inner_text()


def test_maps_and_the_divider(browser: Any, live: Path) -> None:
    with opened(browser, live) as page:
        shown = page.locator("img.map")
        loaded = "document.querySelector('img.map').naturalWidth > 1"
        page.wait_for_function(loaded)
        page.get_by_text("Pixel map").click()
        page.locator(".legend", has_text="exact values").wait_for()
        page.wait_for_function(loaded)
        box = page.locator(".stage").bounding_box()
        page.mouse.move(box["x"] + 10, box["y"] + 20)
        page.mouse.down()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
        page.mouse.up()
        assert float(page.get_by_label("Compare").input_value()) == pytest.approx(50, abs=2)
        assert "inset" in shown.evaluate("one => one.style.clipPath")
        page.get_by_text("Photo", exact=True).click()
        shown.wait_for(state="hidden")


def test_a_unit_with_a_map_of_its_own_shows_it(browser: Any, live: Path) -> None:
    data = data_of(live)
    with opened(browser, live) as page:
        open_all(page)
        unit = next(iter(data["unit_maps"]))
        page.locator(f'.node[data-id="{unit}"]').dispatch_event("pointerenter")
        page.wait_for_function("document.querySelector('.stage').getAttribute('aria-label').includes('saw')")


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A gallery of two classes whose labels and file names are as hostile as can be."""
    name = "<img src=x onerror=console.log(1)> & \u202e'\".png"
    folder = results(tmp_path_factory.mktemp("hostile"), [name], labels=HOSTILE, targets=(HOSTILE[2], HOSTILE[1]))
    for file in folder.rglob("path.json"):
        document = json.loads(file.read_text())
        deepest = document["layers"][-1]
        deepest["tensors"][0]["name"] = TENSOR
        deepest["units"] = [{**unit, "tensor": TENSOR} for unit in deepest["units"]]
        file.write_text(json.dumps(document))
    (folder / "damaged").mkdir()
    (folder / "damaged" / "path.json").write_text(json.dumps({**document, "alpha": float("nan")}))
    return report([folder])


TENSOR = "</script><svg onload=console.log(2)>"


def test_no_text_overflows(browser: Any, hostile: Path) -> None:
    for file in (hostile, *sorted(hostile.parent.glob("pages/*.html"))):
        with opened(browser, file) as page:
            for width in (360, 1280, 2560):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate(OVERFLOWING) == [], f"{file.name} at {width}"


def test_hostile_names_are_shown_as_text_and_never_run(browser: Any, hostile: Path) -> None:
    pages = sorted(hostile.parent.glob("pages/*.html"))
    assert len(pages) == 3
    for file in pages:
        data = data_of(file)
        with opened(browser, file) as page:
            assert page.locator("h1").inner_text() == data["whole"]["label"]
            assert page.locator("img[src=x]").count() == 0
            open_all(page)
            page.locator(f'.node[data-id="{data["path"]["layers"][-1]["layer"]}:0"]').dispatch_event("pointerenter")
            assert TENSOR in page.locator(".details").inner_text()
            page.get_by_text("Settings, and the command").click()
            assert page.locator(".again").inner_text()
    with opened(browser, hostile) as page:
        assert data_of(hostile)["rows"][0]["target"] in page.locator(".tile").inner_text()
        assert page.locator("img[src=x]").count() == 0
        (problem,) = data_of(hostile)["notes"]  # numbers that are none make a document that is not shown
        assert "damaged/path.json" in problem and problem in page.locator("body").inner_text()


def test_axe_finds_nothing_serious(browser: Any, axe: str, saved: Path, live: Path) -> None:
    for file in (saved, live):
        with opened(browser, file) as page:
            open_all(page)
            page.locator(".node").first.dispatch_event("click")
            for summary in page.locator("summary").all():
                summary.click()
            assert serious(page, axe) == []


def test_features_open_into_units_that_lead_to_the_flow(browser: Any, saved: Path) -> None:
    data = data_of(saved)["features"]
    drawn = [one for one in data["items"] if one["drawn"]]
    with opened(browser, saved) as page:
        assert page.locator(".feature").count() == len(drawn)
        page.locator("img.overlay").last.wait_for()
        first = page.locator(".feature").first
        assert len(drawn[0]["units"]) == first.locator(".link").count()
        first.locator("summary").click()
        first.locator(".link").first.click()
        layer, position = page.evaluate("document.activeElement.dataset.id").split(":")
        unit = data_of(saved)["path"]["layers"][0]["units"][int(position)]
        assert int(layer) == data["layer"] and unit["index"] == drawn[0]["units"][0][1]


def test_predicted_and_measured_are_shown_and_said_of_a_box(browser: Any, live: Path) -> None:
    data = data_of(live)
    layers = [one for one in data["effects"] if one["kind"] == "layer"]
    assert len(layers) == len(data["path"]["layers"])
    with opened(browser, live) as page:
        rows = page.locator(".effects tbody tr")
        for row, one in zip(rows.all(), layers, strict=False):
            assert f"layer {one['layer']}," in row.inner_text() and f"{100 * one['after']:.1f}%" in row.inner_text()
        open_all(page)
        unit = next(one for one in data["effects"] if one["kind"] == "unit")
        place = data["path"]["layers"][0]
        number = [entry["index"] for entry in place["units"]].index(unit["index"])
        page.locator(f'.node[data-id="{place["layer"]}:{number}"]').dispatch_event("pointerenter")
        said = page.locator(".details").inner_text()
        assert "measured fall" in said and f"{100 * unit['after']:.1f}%" in said


def test_the_page_begins_with_the_proof_as_the_screen_says_it(browser: Any, here: Path, pathx_: Pathx) -> None:
    run = pathx_("explain", picture(), "--model", scripted(file_network()), "--out", "out", "--report")
    (file,) = Path("out").rglob("report.html")
    with opened(browser, file) as page:
        said = page.locator(".proof").inner_text()
        assert said.startswith("Without these ") and said in " ".join(run.out.split())
        assert "Exact in a region" in page.locator("header").inner_text()
