"""The page of an explanation that is at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.reports import data_of
from support.small import images, network

import pathx
from pathx import PathxError
from pathx.report.saved import explanation_report


def test_an_explanation_without_its_model_has_a_page_without_what_units_saw() -> None:
    from dataclasses import replace

    (made,) = pathx.explain(network(), images(), depth=2, width=3)
    data = data_of(explanation_report(replace(made, origin=None)).html)
    assert data["unit_maps"] == {}
    whole = data_of(explanation_report(made).html)
    assert data["path"] == whole["path"] and whole["unit_maps"]


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    (made,) = pathx.explain(network(), images(), depth=2, width=3)
    shown = made.report(label="<b>cat</b>")._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2  # the frame, and nothing of the page outside of its attribute


def test_a_page_is_saved_as_it_is_and_not_as_a_folder(tmp_path: Path) -> None:
    (made,) = pathx.explain(network(), images(), depth=1)
    report = explanation_report(made, name="my photo")
    file = report.save(tmp_path / "page.html")
    assert file.read_text(encoding="utf-8") == report.html and data_of(file)["image"]["file"] == "my photo"
    with pytest.raises(PathxError, match="is a folder: name a file"):
        report.save(tmp_path)
