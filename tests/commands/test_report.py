"""`pathx report` and `--report`: what is wrong with a call, the page that is opened, and what takes the network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx, network, picture, scripted
from support.reports import data_of, only_document, results


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("nowhere",), "no such file or folder"),
        (("empty",), "holds no results that a report shows"),
        (("empty/run.json",), "empty/run.json has no page: name one of path.json, units.json, evaluation.json, "),
        (
            ("checked",),
            "checked holds no results that a report shows: a check is shown beside explanations, so name these too",
        ),
        (("out", "--out", "empty"), "is a folder"),
        ((), "Missing argument"),
    ],
)
def test_what_is_wrong_with_a_call_is_one_line(
    here: Path, pathx_: Pathx, arguments: tuple[str, ...], said: str
) -> None:
    results(here)
    Path("empty").mkdir()
    Path("empty/run.json").write_text('{"schema": "pathx/run@1"}')
    Path("checked").mkdir()
    Path("checked/check.json").write_text('{"schema": "pathx/check@1"}')
    ran = pathx_("report", *arguments)
    assert ran.status == 2 and said in ran.err and ran.err.count("\n") == 1


def test_an_opened_page_is_the_one_that_was_written(here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    results(here)
    assert pathx_("report", "out", "--open").status == 0
    file, _ = only_document(here / "out")
    assert opened == [file.with_name("report.html").as_uri()]


def test_explain_report_holds_what_units_saw_and_the_command_line_does_not_run_a_network(
    here: Path, pathx_: Pathx
) -> None:
    model, photo = scripted(network()), picture()
    ran = pathx_("explain", photo, "--model", model, "--out", "out", "--report", "--format", "json")
    assert ran.status == 0 and len(ran.documents) == 1  # stdout is JSON still
    file, document = only_document(Path("out"))
    data = data_of(file.with_name("report.html"))
    assert data["path"]["model"]["score"] == document["linear_model"]["score"]
    assert data["unit_maps"]
    Path(model).unlink()
    ran = pathx_("report", "out", "--out", "other/page.html")
    assert ran.status == 0 and ran.out == "other/page.html\n" and ran.err == ""
    assert data_of(Path("other/page.html")) == data  # what took the network is in report.json
    file.with_name("report.json").unlink()
    pathx_("report", "out", "--out", "other/page.html")
    assert data_of(Path("other/page.html")) == {**data, "unit_maps": {}, "effects": []}


def test_a_run_that_was_stopped_writes_no_report(here: Path, pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted(network())
    for number in range(3):
        picture(f"photos/{number}.png", seed=number)

    def stopped(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pathx.commands.running._print", stopped)
    ran = pathx_("explain", "photos", "--model", model, "--out", "out", "--report")
    assert ran.status == 130 and "interrupted" in ran.err
    assert Path("out/photos").is_dir() or list(Path("out").rglob("path.json"))
    assert not list(Path("out").rglob("*.html"))
