"""What a page holds are the numbers of the explanation: its laws hold in the page, and in what the network adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.reports import data_of, only_document, results

from pathx.drawing.render import SMOOTHING
from pathx.maps import smooth
from pathx.report.build import report
from pathx.report.explanation import path_map

pytestmark = pytest.mark.usefixtures("one_thread")


def test_the_page_of_files_is_that_of_the_document(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    page = report([folder])
    data = data_of(page)
    assert page == file.with_name("report.html")
    assert data["target"] == document["target"] and data["image"] == document["image"]
    path = data["path"]
    assert [one["name"] for one in data["maps"]] == ["Path map", "Pixel map"]
    assert path["model"] == {key: document["linear_model"][key] for key in ("score", "bias", "attribution_sum")}
    for shown, layer in zip(path["layers"], document["layers"], strict=True):
        names = [tensor["name"] for tensor in shown["tensors"]]
        for unit, own in zip(shown["units"], layer["units"], strict=True):
            assert {**unit, **own, "tensor": unit["tensor"]} == unit and names[unit["tensor"]] == own["tensor"]
            assert unit["channel"] == own["index"][0]
    assert data["region"] == pytest.approx(document["region"])
    assert data["notes"] == []
    assert data["command"].startswith("pathx explain ") and "--target" in data["command"]


def test_the_path_map_of_a_document_is_that_of_its_explanation(tmp_path: Path) -> None:
    _, document = only_document(results(tmp_path, save_tensors=True))
    (file,) = tmp_path.rglob("tensors.safetensors")
    expected = smooth(load_file(file)["path_map"], SMOOTHING)
    found = path_map(document)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
