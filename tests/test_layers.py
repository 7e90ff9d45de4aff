"""The map of all layers: for every class of every image, in runs, in their files, and drawn again from them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from support.command_line import Pathx, picture, refused, scripted
from support.command_line import network as tiny
from support.small import images, network
from torch.testing import assert_close

from pathx.engine.freeze import freeze
from pathx.layers import layer_maps

pytestmark = pytest.mark.usefixtures("here")


def test_each_pair_of_an_image_and_a_class_has_the_map_that_it_has_alone() -> None:
    model, inputs = network(), images(2)
    pairs = [(0, 1), (0, 2), (1, 3)]
    together = layer_maps(freeze(model, inputs), pairs, [None, 0, None])
    for (image, target), other, found in zip(pairs, (None, 0, None), together, strict=True):
        (alone,) = layer_maps(freeze(model, inputs[image : image + 1]), [(0, target)], [other])
        assert_close(found, alone)


def test_one_class_against_another_is_the_map_of_the_difference() -> None:
    model, inputs = network(), images(1)
    difference = network()
    with torch.no_grad():
        difference[-1].weight[1] -= difference[-1].weight[2]  # type: ignore[index, operator]
    (found,) = layer_maps(freeze(model, inputs), [(0, 1)], [2])
    assert_close(found, layer_maps(freeze(difference, inputs), [(0, 1)])[0])


def test_explain_draws_and_saves_it(pathx_: Pathx) -> None:
    Path("run.toml").write_text('heat = "layers"\n')
    arguments = (picture(), "--model", scripted(tiny()), "--target", "0", "--save-tensors")
    assert pathx_("explain", *arguments, "--config", "run.toml", "--out", "layers").status == 0
    assert pathx_("explain", *arguments, "--out", "path").status == 0
    (overlay,), (plain,) = (list(Path(out).rglob("overlay.png")) for out in ("layers", "path"))
    assert overlay.read_bytes() != plain.read_bytes()
    assert load_file(overlay.with_name("tensors.safetensors"))["layer_map"].shape == (8, 8)
    drawn = overlay.read_bytes()
    assert pathx_("redraw", "layers", "--heat", "path").status == 0
    assert pathx_("redraw", "layers", "--heat", "layers").status == 0
    assert overlay.read_bytes() == drawn
    done = pathx_("redraw", "path", "--heat", "layers")
    assert done.status == 1 and "there is no map of the layers: explain the image with heat layers" in done.err
    refused(pathx_("decompose", *arguments, "--config", "run.toml"), "a map of all layers has no features")
