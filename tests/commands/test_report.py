"""`pathx report`: what is wrong with a call, and the page that is opened."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx
from support.reports import only_document, results

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "no such file or folder"),
        (("empty",), "holds no results of pathx"),
        (("out", "--out", "empty"), "is a folder"),
        ((), "Missing argument"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_line(
    here: Path, pathx_: Pathx, arguments: tuple[str, ...], said: str
) -> None:
    results(here)
    Path("empty").mkdir()
    ran = pathx_("report", *arguments)
    assert ran.status == 2 and said in ran.err and ran.err.count("\n") == 1


def test_an_opened_page_is_the_one_that_was_written(here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    results(here)
    assert pathx_("report", "out", "--open").status == 0
    file, _ = only_document(here / "out")
    assert opened == [file.with_name("report.html").as_uri()]
