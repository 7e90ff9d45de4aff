"""Removal over many images: what is removed by hand with `ablate`, orders as Captum has them, and restarts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import Pathx, picture, scripted
from support.command_line import network as small
from support.small import images, network
from torch import nn
from torch.testing import assert_close

import pathx
from pathx.engine.freeze import freeze
from pathx.evaluation import removal
from pathx.evaluation.removal import INTEGRATION_STEPS, ORDERS, TOGETHER, Decision, chosen_units, measure_image, summary

captum = pytest.importorskip("captum.attr", reason="Captum is an extra")
PATH: dict[str, Any] = {"depth": 2, "width": 6, "skips": "adjacent"}


def decision(model: nn.Module, seed: int = 0, **settings: Any) -> Decision:
    image = images(1, seed)
    (explanation,) = pathx.explain(model, image, **{**PATH, **settings})
    return Decision(model, freeze(model, image), explanation)


@pytest.mark.parametrize(("number", "module"), [(1, 1), (2, 3), (3, 6)])
def test_orders_are_captum_s(number: int, module: int) -> None:
    model = network()
    one = decision(model, depth="all")
    image, target = one.frozen.images, one.explanation.target
    theirs = captum.LayerGradientXActivation(model, model[module]).attribute(image, target=target)
    assert_close(ORDERS["gradient_x_activation"](one, number), theirs.flatten())
    theirs = captum.LayerActivation(model, model[module]).attribute(image)
    assert_close(ORDERS["activation"](one, number), theirs.flatten().detach())
    many = captum.LayerConductance(model, model[module]).attribute(
        image, target=target, n_steps=INTEGRATION_STEPS, method="riemann_right"
    )
    mine = ORDERS["layer_conductance"](one, number)
    assert torch.corrcoef(torch.stack([mine, many.flatten().detach()]))[0, 1] > 0.99


@pytest.mark.parametrize("importance", ["paper", "effect"])
def test_the_probabilities_are_those_of_ablate(importance: str) -> None:
    model, settings = network(), {**PATH, "importance": importance}
    image = images(1, 4)
    (explanation,) = pathx.explain(model, image, **settings)
    target = explanation.target
    found = measure_image(model, image, target, "image", keep=True, settings=settings)
    assert found["before"] == pytest.approx(explanation.probability)
    for keep in (False, True):
        (made,) = pathx.ablate(model, image, path=explanation, keep=keep, target=target)
        assert found["figures"][TOGETHER]["pathx"][keep] == pytest.approx(made.probabilities[1])
        for layer in explanation.path:
            (made,) = pathx.ablate(model, image, layer.units, keep=keep, target=target)
            assert found["figures"][str(layer.layer)]["pathx"][keep] == pytest.approx(made.probabilities[1])
    drawn = chosen_units(decision(model, 4, importance=importance))["random"]
    gates = {layer.layer: layer.tensors[0] for layer in explanation.path}
    after = []
    for units in drawn:
        places = [
            (gates[layer].name, [int(at) for at in torch.unravel_index(unit, gates[layer].shape)])
            for layer, numbers in units.items()
            for unit in numbers
        ]
        after.append(pathx.ablate(model, image, places, target=target)[0].probabilities[1])
    assert found["figures"][TOGETHER]["random"][0] == pytest.approx(sum(after) / len(after))


class Attending(nn.Module):
    """Attention that folds the heads into the batch, so that images are frozen one by one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(10, 8), nn.Linear(16, 3)
        self.mlp = nn.Sequential(nn.Linear(8, 16), nn.GELU())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x.mean(1))  # (B, 10, 8)
        heads = tokens.reshape(len(x), 10, 2, 4).transpose(1, 2).reshape(len(x) * 2, 10, 4)
        mixed = torch.softmax(heads @ heads.mT, -1) @ heads
        tokens = tokens + mixed.reshape(len(x), 2, 10, 4).transpose(1, 2).reshape(len(x), 10, 8)
        logits: torch.Tensor = self.head(self.mlp(tokens).mean(1))
        return logits


def test_networks_that_are_frozen_image_by_image() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Attending().eval().double()
    image = images(1, 3)
    assert freeze(model, torch.cat([image, image])).parts
    found = measure_image(model, image, 1, "image", keep=False, settings={"depth": 1, "width": 6})
    assert set(found["figures"][TOGETHER]) == {"pathx", *ORDERS, "random"}
    (explanation,) = pathx.explain(model, image, target=1, depth=1, width=6)
    (made,) = pathx.ablate(model, image, path=explanation, target=1)
    assert found["figures"][TOGETHER]["pathx"][0] == pytest.approx(made.probabilities[1])


def test_the_summary_compares_image_by_image() -> None:
    model, inputs = network(), images(3, 1)
    targets = model(inputs).argmax(1).tolist()
    found = [
        measure_image(model, inputs[place : place + 1], target, name, keep=True, settings=PATH)
        for place, (target, name) in enumerate(zip(targets, "abc", strict=True))
    ]
    made = summary(found)
    differences = [one["figures"][TOGETHER]["pathx"][1] - one["figures"][TOGETHER]["activation"][1] for one in found]
    assert made[TOGETHER]["activation"]["pathx minus it, kept"]["mean"] == pytest.approx(sum(differences) / 3)
    assert [layer["layer"] for layer in made["layers"]] == [3, 2]
    assert set(made[TOGETHER]) == {"pathx", *ORDERS, "random"}


def test_the_command_goes_on_from_its_records(pathx_: Pathx, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = scripted(small())
    for number in range(3):
        picture(f"photos/{number}.png", seed=number)
    Path("photos/bad.png").write_bytes(b"no image")
    options = ("--model", model, "--removal", "--keep", "--depth", "2", "--width", "4")
    done = pathx_("evaluate", "photos", *options, "--out", "out")
    assert done.status == 1
    assert "bad.png" in done.err
    before = Path("out/removal.json").read_text()
    made = json.loads(before)
    assert (made["schema"], made["images"]) == ("pathx/removal@1", 3)
    for name, figures in made["together"].items():
        assert f"{name}" in done.out and f"{figures['removed']['mean']:.3f}" in done.out
    monkeypatch.setattr(removal, "measure_image", lambda *arguments, **options: pytest.fail("it was known"))
    assert pathx_("evaluate", "photos", *options, "--out", "out").status == 1
    assert Path("out/removal.json").read_text() == before
