"""What took the network is taken over from an earlier page, where that is of the very same explanation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.command_line import Pathx, network, picture, scripted
from support.reports import data_of, only_document

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_gallery_keeps_what_took_the_network(here: Path, pathx_: Pathx) -> None:
    model = scripted(network())
    photos = [picture(f"{number}.png", seed=number) for number in range(3)]
    pathx_("explain", *photos, "--model", model, "--out", "out", "--report", "--quiet")
    before = {file.name: data_of(file) for file in Path("out/report/pages").iterdir()}
    assert all(len(data["paths"]) > 1 and data["unit_maps"] for data in before.values())
    Path(model).unlink()
    assert pathx_("report", "out", "--quiet").status == 0
    assert {file.name: data_of(file) for file in Path("out/report/pages").iterdir()} == before


@pytest.mark.parametrize(
    "spoil",
    [
        lambda text: text.replace('"alpha":', '"alpha":1,"other":'),
        lambda text: text.replace('"version":1', '"version":0'),
        lambda text: text.replace('"score":', '"score":7,"other":'),
        lambda text: text.replace('"paths":[', '"paths":[1,'),
        lambda text: text[: len(text) // 2],
        lambda text: "",
    ],
)
def test_a_page_of_something_else_adds_nothing(here: Path, pathx_: Pathx, spoil: Callable[[str], str]) -> None:
    photo = picture()
    pathx_("explain", photo, "--model", scripted(network()), "--out", "out", "--report", "--quiet")
    file, document = only_document(Path("out"))
    page = file.with_name("report.html")
    page.write_text(spoil(page.read_text()))
    assert pathx_("report", "out", "--quiet").status == 0
    assert [path["width"] for path in data_of(page)["paths"]] == [document["width"]]
