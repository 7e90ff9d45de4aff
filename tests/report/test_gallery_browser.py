"""The gallery and the pages of measurements in a real browser."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
from support.browser import opened, serious
from support.reports import HOSTILE, data_of, results
from support.small import LABELS

from pathx.report.build import report
from pathx.report.page import page as made_page


def row(number: int, **changes: Any) -> dict[str, Any]:
    truth, predicted = LABELS[number % 4], LABELS[(number // 7) % 4]
    about = {"file": f"photos/{truth}/{number:05}.png", "page": f"pages/{number}.html", "thumbnail": None}
    about |= {"truth": truth, "predicted": predicted, "target": predicted, "wrong": truth != predicted, "classes": []}
    removal = {"before": 0.9, "after": number % 90 / 100, "at_random": 0.85}
    return about | {"probability": number % 100 / 100, "margin": number % 50 / 100, "removal": removal} | changes


def gallery(folder: Path, rows: list[dict[str, Any]]) -> Path:
    file = folder / "index.html"
    data = {"kind": "gallery", "rows": rows, "links": [], "notes": []}
    file.write_text(made_page("gallery.js", "x", data, pictures="'self' file: data:"), encoding="utf-8")
    return file


def names(page: Any) -> list[str]:
    found = page.eval_on_selector_all(
        ".tile [data-at]", "all => all.map(one => [Number(one.dataset.at), one.textContent])"
    )
    return [text for _, text in sorted(found)]


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    rows = [row(number) for number in range(10_000)]
    rows += [{"file": "photos/broken.png", "error": "it is damaged"}]
    return gallery(tmp_path_factory.mktemp("many"), rows), rows


def told(page: Any) -> str:
    return str(page.locator("main .told").inner_text())


def test_ten_thousand_images_are_a_list_of_few_elements(browser: Any, many: tuple[Path, list[dict[str, Any]]]) -> None:
    file, rows = many
    with opened(browser, file) as page:
        assert told(page).startswith("10,001 images of 10,001")
        assert 5 < page.locator(".tile").count() < 100
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.wait_for_function("document.querySelector('.tile') && document.querySelector('[data-at=\"10000\"]')")
        assert page.locator(".tile").count() < 100
        last = max((one for one in rows if not one.get("error") and not one["wrong"]), key=lambda one: one["file"][-9:])
        assert last["file"][-9:] in names(page)[-1]


def test_wrong_predictions_come_first_and_sorting_sorts(browser: Any, many: tuple[Path, list[dict[str, Any]]]) -> None:
    file, rows = many
    wrong = [one for one in rows if one.get("wrong")]
    with opened(browser, file) as page:
        assert wrong[0]["file"][-9:] in names(page)[0] and f"is {wrong[0]['truth']}" in names(page)[0]
        page.get_by_label("Sort", exact=True).select_option("Least probable")
        assert "0.0%" in names(page)[0]
        page.get_by_label("Sort", exact=True).select_option("Most probable")
        assert "99.0%" in names(page)[0]
        page.get_by_label("Sort", exact=True).select_option("Falls most without its path")
        assert "without path0.0%" in names(page)[0]
        page.get_by_label("Sort", exact=True).select_option("Falls least without its path")
        assert "without path89.0%" in names(page)[0]


def test_search_filters_and_the_confusion_matrix(browser: Any, many: tuple[Path, list[dict[str, Any]]]) -> None:
    file, rows = many
    with opened(browser, file) as page:

        def expect(fits: Any) -> None:
            assert told(page).startswith(f"{sum(map(fits, rows)):,} image")

        page.get_by_text("Labels and predictions").click()
        page.get_by_label("Search", exact=True).fill("00042")
        expect(lambda one: "00042" in one["file"])
        page.get_by_label("Search", exact=True).fill("")
        page.get_by_label("Labelled", exact=True).select_option("dog")
        expect(lambda one: one.get("truth") == "dog")
        page.get_by_label("Predicted", exact=True).select_option("cup")
        expect(lambda one: (one.get("truth"), one.get("predicted")) == ("dog", "cup"))
        page.get_by_role("button", name="Show all classes").click()
        page.get_by_text("failed", exact=True).first.click()
        assert told(page).startswith("1 image ")
        page.get_by_text("wrong", exact=True).click()
        expect(lambda one: bool(one.get("wrong")))
        count = sum((one.get("truth"), one.get("predicted")) == ("cat", "red fox") for one in rows)
        button = page.get_by_role("button", name=f"{count:,} images labelled cat and predicted red fox")
        button.click()
        expect(lambda one: (one.get("truth"), one.get("predicted")) == ("cat", "red fox"))
        page.get_by_role("button", name="Show all classes").click()


def test_the_table_that_is_saved_is_what_is_shown_and_no_formula(browser: Any, tmp_path: Path) -> None:
    rows = [
        row(1, file='=cmd|"x"', wrong=False),
        row(2, predicted=HOSTILE[1], wrong=False),
        row(3, file="other.png", wrong=False),
    ]
    with opened(browser, gallery(tmp_path, rows)) as page:
        with page.expect_download() as waiting:
            page.get_by_role("button", name="Save as CSV").click()
        found = list(csv.DictReader(Path(waiting.value.path()).read_text(encoding="utf-8").splitlines()))
    assert [one["file"] for one in found] == ["'" + rows[0]["file"], rows[1]["file"], "other.png"]
    assert found[1]["predicted"] == HOSTILE[1]
    assert [float(one["probability"]) for one in found] == [one["probability"] for one in rows]
    assert [float(one["after"]) for one in found] == [one["removal"]["after"] for one in rows]


def test_no_tile_is_clipped(browser: Any, many: tuple[Path, list[dict[str, Any]]]) -> None:
    below = """() => [...document.querySelectorAll('.tile')].filter(tile => [...tile.querySelectorAll('.caption > *')]
      .some(one => one.getBoundingClientRect().bottom > tile.getBoundingClientRect().bottom - 4)).length"""
    for width in (390, 1280):
        with opened(browser, many[0], width=width) as page:
            assert page.locator(".tile .truth").count() and page.evaluate(below) == 0


def test_keys_move_among_images_and_pages(browser: Any, tmp_path: Path) -> None:
    index = report([results(tmp_path, [f"{name}.png" for name in "abcd"])])
    rows = data_of(index)["rows"]
    with opened(browser, index) as page:
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.at") == "0"
        page.keyboard.press("ArrowRight")
        assert page.evaluate("document.activeElement.dataset.at") == "1"
        assert page.evaluate("[...document.images].every(one => one.naturalWidth > 0)")
        page.keyboard.press("Enter")
        page.wait_for_url(f"**/{Path(rows[1]['page']).name}")
        page.keyboard.press("ArrowRight")
        page.wait_for_url(f"**/{Path(rows[2]['page']).name}")
        page.keyboard.press("ArrowLeft")
        page.wait_for_url(f"**/{Path(rows[1]['page']).name}")
        page.get_by_role("link", name="All images").click()
        page.wait_for_url("**/index.html")


def test_measurements_have_intervals_and_images(browser: Any, measures: list[Path], axe: str) -> None:
    evaluation, sweep, common = measures
    for file in measures:
        with opened(browser, file) as page:
            for width in (360, 2560):
                page.set_viewport_size({"width": width, "height": 900})
                assert page.evaluate("document.documentElement.scrollWidth") <= width
            assert serious(page, axe) == []
    with opened(browser, evaluation) as page:
        assert page.locator("table tbody tr").count() == 2
        assert "0.2 (0.1 to 0.3)" in page.locator("table").inner_text()
        page.get_by_role("button", name=HOSTILE[0]).click()
        assert page.locator(".strip li").count() == 3
    with opened(browser, sweep) as page:
        assert page.locator("table tbody tr").count() == 4
    with opened(browser, common) as page:
        page.locator(".confusion button").first.click()
        assert "[3,1,1] 50.0%" in page.locator(".told").inner_text()


def test_axe_finds_nothing_serious_in_a_gallery(
    browser: Any, many: tuple[Path, list[dict[str, Any]]], axe: str
) -> None:
    with opened(browser, many[0]) as page:
        assert serious(page, axe) == []
