"""What the network adds is what units saw, is kept as report.json, and is used for the very same explanation only."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops
from support.command_line import Pathx, picture, scripted
from support.command_line import network as file_network
from support.reports import data_of, only_document
from support.small import images, network

import pathx
from pathx.engine.freeze import freeze
from pathx.report.build import report
from pathx.report.saved import network_data, unit_picture

pytestmark = pytest.mark.usefixtures("one_thread")


def test_a_units_map_is_its_gradient_times_the_input() -> None:
    module, batch = network(), images()
    (made,) = pathx.explain(module, batch, depth=3, width=4)
    maps = network_data(freeze(module, batch), made)["unit_maps"]
    assert maps.keys() == {f"{layer.layer}:{at}" for layer in made.path for at in range(len(layer.units))}
    parts = list(module.children())
    before = {1: parts[:1], 2: parts[:3], 3: parts[:6]}  # what makes the pre-activations of each layer
    for layer in made.path:
        for at, unit in enumerate(layer.units):
            x = batch.clone().requires_grad_()
            hidden = torch.nn.Sequential(*before[layer.layer])(x)[0][tuple(unit.index)]
            (gradient,) = torch.autograd.grad(hidden, x)
            expected = unit_picture(unit.weight * gradient[0] * batch[0])
            found = Image.open(io.BytesIO(base64.b64decode(maps[f"{layer.layer}:{at}"].partition(",")[2])))
            apart = ImageChops.difference(found.convert("RGBA"), expected.convert("RGBA"))
            assert max(high for _, high in apart.getextrema()) <= 4  # a step of the table


def test_a_path_without_units_has_a_page() -> None:
    module = network()
    torch.nn.init.zeros_(list(module.parameters())[-2])
    (made,) = pathx.explain(module, images(), depth=3)
    assert sum(len(layer.units) for layer in made.path) == 0
    assert data_of(made.report().html)["unit_maps"] == {}


def test_a_gallery_keeps_what_took_the_network(here: Path, pathx_: Pathx) -> None:
    model = scripted(file_network())
    photos = [picture(f"{number}.png", seed=number) for number in range(3)]
    pathx_("explain", *photos, "--model", model, "--out", "out", "--report", "--quiet")
    before = {file.name: data_of(file) for file in Path("out/report/pages").iterdir()}
    assert all(data["unit_maps"] for data in before.values())
    Path(model).unlink()
    assert pathx_("report", "out", "--quiet").status == 0
    assert {file.name: data_of(file) for file in Path("out/report/pages").iterdir()} == before


def test_data_of_something_else_adds_nothing(here: Path, pathx_: Pathx) -> None:
    pathx_("explain", picture(), "--model", scripted(file_network()), "--out", "out", "--report", "--quiet")
    file, _ = only_document(Path("out"))
    data = file.with_name("report.json")
    whole = data.read_text()
    spoilt = [json.dumps({**json.loads(whole), **change}) for change in ({"path": "0"}, {"unit_maps": [1]})]
    spoilt += [whole.replace('"schema": "pathx/', '"schema": "other/'), whole[: len(whole) // 2], ""]
    for text in spoilt:
        data.write_text(text)
        assert data_of(report(["out"]))["unit_maps"] == {}


def test_the_data_goes_with_its_explanation(here: Path, pathx_: Pathx) -> None:
    run = ("explain", picture(), "--model", scripted(file_network()), "--out", "out", "--quiet")
    pathx_(*run, "--report")
    assert list(Path("out").rglob("report.json"))
    assert pathx_(*run, "--depth", "2").status == 0
    assert not list(Path("out").rglob("report.*"))
