"""`pathx decompose` on the screen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.command_line import FILES, Pathx, files, network, picture, scripted

pytestmark = pytest.mark.usefixtures("here")


def test_decompose_prints_the_features_and_where_they_are(pathx_: Pathx) -> None:
    arguments = ("decompose", picture(), "--model", scripted(network()), "--target", "red fox")
    done = pathx_(*arguments, "--depth", 1, "--width", 2, "--alpha", 0.1)
    assert (done.status, done.err) == (0, "")
    assert "The 2 units of layer 4 send " in done.out
    assert done.out.endswith(
        "pathx-out/photo.png/red-fox/: sheet.png, feature-01/ to feature-02/, decomposition.json\n\n"
    )
    parts = {f"feature-{number:02}/overlay.png" for number in (1, 2)}
    assert files("pathx-out/photo.png/red-fox") == FILES | {"sheet.png", "decomposition.json"} | parts
    (made,) = pathx_(*arguments, "--features", 1, "--from-layer", 2, "--format", "json").documents
    assert made == json.loads(Path("pathx-out/photo.png/red-fox/decomposition.json").read_text())
    assert (made["schema"], made["layer"]) == ("pathx/decomposition@2", 2)
    assert pathx_(*arguments, "--quiet").out == ""


def test_decompose_says_when_there_is_one_feature(pathx_: Pathx) -> None:
    arguments = ("decompose", picture(), "--model", scripted(network()))
    assert "The layer keeps a single unit: there is one feature.\n" in pathx_(*arguments, "--width", 1).out
    unsupported = pathx_(*arguments, "--alpha", 0.99)
    assert unsupported.status == 0
    assert "No unit of this layer is above alpha; the best one stands alone.\n" in unsupported.out
