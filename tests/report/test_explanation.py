"""What a page holds are the numbers of the explanation: its laws hold in the page, and in what the network adds to it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.reports import data_of, only_document, results
from support.small import images, network

import pathx
from pathx.drawing.render import heatmap
from pathx.engine.freeze import freeze
from pathx.maps import plane
from pathx.report.build import report
from pathx.report.encoding import read_heatmap, signed_map
from pathx.report.growth import grow, unit_maps
from pathx.report.made import explanation_report

pytestmark = pytest.mark.usefixtures("one_thread")


def decoded(made: dict[str, object]) -> torch.Tensor:
    import base64
    import io

    from PIL import Image

    image = Image.open(io.BytesIO(base64.b64decode(str(made["src"]).partition(",")[2])))
    steps = torch.tensor(list(image.tobytes()), dtype=torch.float64).reshape(image.height, image.width)
    return (steps - 128) / 127 * float(made["scale"])  # type: ignore[arg-type]


@given(st.integers(0, 10**6), st.floats(1e-6, 1e6))
def test_a_map_comes_back_to_half_a_step(seed: int, size: float) -> None:
    values = size * torch.randn(5, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    made = signed_map(values)
    assert (decoded(made) - values).abs().max() <= made["scale"] / 127 * 0.5001


@pytest.mark.parametrize("colours", ["red-blue", "orange-purple"])
def test_a_heatmap_is_read_back_from_its_colours(colours: str) -> None:
    values = torch.randn(12, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = read_heatmap(heatmap(values, colours=colours, percentile=100))
    assert found is not None
    assert (found - values / values.abs().max()).abs().max() <= 0.51 / 127


@pytest.mark.parametrize("skips", ["adjacent", "all"])
def test_edges_in_the_page_sum_to_contributions(tmp_path: Path, skips: str) -> None:
    folder = results(tmp_path, skips=skips)
    data = data_of(report([folder]))
    (path,) = data["paths"]
    for layer in path["layers"]:
        for position, unit in enumerate(layer["units"]):
            out = [edge[4] for edge in path["edges"] if edge[:2] == [layer["layer"], position]]
            assert sum(out) == pytest.approx(unit["contribution"], rel=1e-4, abs=1e-7)


def test_the_page_of_files_is_that_of_the_document(tmp_path: Path) -> None:
    folder = results(tmp_path)
    file, document = only_document(folder)
    page = report([folder])
    data = data_of(page)
    assert page == file.with_name("report.html")
    assert data["target"] == document["target"] and data["image"] == document["image"]
    (path,) = data["paths"]
    assert path["models"] == {"3": {k: v for k, v in document["linear_model"].items() if k != "residual"}}
    for shown, layer in zip(path["layers"], document["layers"], strict=True):
        names = [tensor["name"] for tensor in shown["tensors"]]
        assert [{**unit, "tensor": names[unit["tensor"]]} for unit in shown["units"]] == layer["units"]
    assert data["region"] == pytest.approx(document["region"])
    assert data["notes"] == []
    assert data["command"].startswith("pathx explain ") and "--target" in data["command"]


def test_place_maps_sum_to_the_contributions_of_their_layer() -> None:
    (made,) = pathx.explain(network(), images(), depth=3, width=6)
    data = data_of(explanation_report(made).html)
    path = next(path for path in data["paths"] if path["width"] == 6)
    found = 0
    for layer, place in zip(made.path, path["places"], strict=True):
        if place is None:
            assert all(tensor.places is None for tensor in layer.tensors)
            continue
        found += 1
        total = sum(unit.contribution for unit in layer.units)
        step = place["scale"] / 127 * 0.5 * place["width"] * place["height"]
        assert float(decoded(place).sum()) == pytest.approx(total, abs=step)
    assert found


@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("width", [1, 6, 20])
def test_the_grid_is_what_explain_gives(depth: int, width: int) -> None:
    module, batch = network(), images()
    (own,) = pathx.explain(module, batch, depth=2, width=6)
    growth = grow(freeze(module, batch), own)
    (expected,) = pathx.explain(module, batch, depth=depth, width=width)
    assert growth.models[width, depth]["score"] == pytest.approx(expected.score)
    assert growth.models[width, depth]["bias"] == pytest.approx(expected.bias)
    assert torch.allclose(growth.pixels[width, depth], plane(expected.attribution))
    document = next(one for one in growth.documents if one["width"] == width)
    found = [[unit["index"] for unit in layer["units"]] for layer in document["layers"][:depth]]
    assert found == [[list(unit.index) for unit in layer.units] for layer in expected.path]


def test_units_that_a_page_does_not_list_still_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = results(tmp_path)
    _, document = only_document(folder)
    monkeypatch.setattr("pathx.report.explanation.MOST_UNITS", 2)
    (path,) = data_of(report([folder]))["paths"]
    for shown, layer in zip(path["layers"], document["layers"], strict=True):
        assert len(shown["units"]) == min(2, shown["kept"]) and shown["kept"] == len(layer["units"])
        total = sum(unit["contribution"] for unit in shown["units"]) + shown["unlisted"]
        assert total == pytest.approx(sum(unit["contribution"] for unit in layer["units"]))
    assert all(start < 2 and end < 2 for _, start, _, end, _ in path["edges"])


def test_a_units_map_is_its_gradient_times_the_input() -> None:
    module, batch = network(), images()
    (made,) = pathx.explain(module, batch, depth=3, width=4)
    wanted = [(layer.layer, at) for layer in made.path for at in range(len(layer.units))]
    maps = unit_maps(freeze(module, batch), made, wanted)
    parts = list(module.children())
    before = {1: parts[:1], 2: parts[:3], 3: parts[:6]}  # what makes the pre-activations of each layer
    for layer in made.path:
        for at, unit in enumerate(layer.units):
            x = batch.clone().requires_grad_()
            hidden = torch.nn.Sequential(*before[layer.layer])(x)[0][tuple(unit.index)]
            (gradient,) = torch.autograd.grad(hidden, x)
            expected = plane(unit.weight * gradient[0] * batch[0])
            assert torch.allclose(maps[layer.layer, at], expected, rtol=1e-6, atol=1e-9)


def test_an_explanation_without_its_model_says_what_it_cannot_show() -> None:
    from dataclasses import replace

    (made,) = pathx.explain(network(), images(), depth=2, width=3)
    data = data_of(explanation_report(replace(made, origin=None)).html)
    assert [path["width"] for path in data["paths"]] == [3]
    assert any("without the model" in note for note in data["notes"])


def test_a_notebook_shows_the_page_in_a_frame_of_its_own() -> None:
    (made,) = pathx.explain(network(), images(), depth=2, width=3)
    shown = made.report(label="<b>cat</b>")._repr_html_()
    assert shown.startswith("<iframe srcdoc=") and 'sandbox="allow-scripts"' in shown
    assert shown.count("<") == 2  # the frame, and nothing of the page outside of its attribute
