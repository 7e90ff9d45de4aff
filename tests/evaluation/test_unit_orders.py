"""Orders of units: Captum's by Captum, curves by hand, and an order that is right where the answer is known."""

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
from pathx.engine.replay import Classifier
from pathx.errors import PathxError
from pathx.evaluation.unit_orders import INTEGRATION_STEPS, ORDERS, Decision, Layer, chosen_orders, curves, summary

captum = pytest.importorskip("captum.attr", reason="Captum is an extra")
pytestmark = pytest.mark.usefixtures("one_thread")
PATH: dict[str, Any] = {"depth": 2, "width": 6, "alpha": None, "skips": "adjacent"}


def layer_of(model: nn.Module, number: int, seed: int = 0) -> Layer:
    image = images(1, seed)
    (explanation,) = pathx.explain(model, image, **{**PATH, "depth": "all"})
    (path,) = (layer for layer in explanation.path if layer.layer == number)
    gates = tuple(gate.name for gate in freeze(model, image).network.layers[number - 1])
    return Layer(Decision(Classifier(model, image[0]), image, explanation.target, (gates,), "image"), gates, path)


@pytest.mark.parametrize(("number", "module"), [(1, 1), (2, 3), (3, 6)])
def test_conductance_and_integrated_gradients_are_captum_s(number: int, module: int) -> None:
    model = network()
    layer = layer_of(model, number)
    image, target = layer.decision.image, layer.decision.target
    theirs = captum.LayerIntegratedGradients(model, model[module]).attribute(
        image, target=target, n_steps=INTEGRATION_STEPS, method="riemann_middle"
    )
    assert_close(ORDERS["layer_integrated_gradients"](layer), theirs.flatten())
    theirs = captum.LayerGradientXActivation(model, model[module]).attribute(image, target=target)
    assert_close(ORDERS["gradient_x_activation"](layer), theirs.flatten())
    theirs = captum.LayerActivation(model, model[module]).attribute(image)
    assert_close(ORDERS["activation"](layer), theirs.flatten().detach())
    many = captum.LayerConductance(model, model[module]).attribute(
        image, target=target, n_steps=INTEGRATION_STEPS, method="riemann_right"
    )
    mine = ORDERS["layer_conductance"](layer)
    assert torch.corrcoef(torch.stack([mine, many.flatten().detach()]))[0, 1] > 0.99


def test_curves_by_hand() -> None:
    model, inputs = network(), images(2, 4)
    targets = model(inputs).argmax(1).tolist()
    found = curves(
        *(Classifier(model, inputs[0]), inputs, targets, ["a", "b"]),
        steps=3,
        orders=["pathx", "activation"],
        settings=PATH,
    )
    explanations = pathx.explain(model, inputs, **PATH)
    for one in found:
        number = "ab".index(one.image)
        (layer,) = (layer for layer in explanations[number].path if layer.layer == one.layer)
        assert one.units == len(layer.units)
        if one.order != "pathx":
            continue
        amounts = sorted({round(one.units * step / 3) for step in range(4)})
        for keep, values in ((False, one.removed), (True, one.kept)):
            for amount, value in zip(amounts, values, strict=True):
                if amount or keep:
                    units = layer.units[:amount] if amount else [(layer.tensors[0].name, ())]
                    (made,) = pathx.ablate(
                        model, inputs[number : number + 1], units, keep=keep and amount > 0, target=targets[number]
                    )
                    assert value == pytest.approx(made.probabilities[1])
                else:
                    assert value == pytest.approx(explanations[number].probability)
    assert {one.layer for one in found} == {2, 3}


def test_the_summary_compares_image_by_image() -> None:
    model, inputs = network(), images(3, 1)
    targets = model(inputs).argmax(1).tolist()
    found = curves(
        *(Classifier(model, inputs[0]), inputs, targets, ["a", "b", "c"]),
        steps=2,
        orders=list(ORDERS),
        settings=PATH,
    )
    for entry in summary(found):
        own = {one.image: one for one in found if one.layer == entry["layer"] and one.order == "pathx"}
        other = {one.image: one for one in found if one.layer == entry["layer"] and one.order == "random"}
        mean = sum(own[image].areas["kept"] - other[image].areas["kept"] for image in own) / len(own)
        assert entry["orders"]["random"]["pathx minus it, kept"]["mean"] == pytest.approx(mean)
        assert set(entry["orders"]) == set(ORDERS)


def test_orders_by_name() -> None:
    assert chosen_orders(["random", "activation"]) == ["pathx", "random", "activation"]
    assert chosen_orders([]) == list(ORDERS)
    with pytest.raises(PathxError, match="no order 'luck'"):
        chosen_orders(["luck"])


def test_the_command_goes_on_from_its_records(pathx_: Pathx, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pathx.evaluation import unit_orders

    model = scripted(small())
    for number in range(3):
        picture(f"photos/{number}.png", seed=number)
    Path("photos/bad.png").write_bytes(b"no image")
    options = ("--model", model, "--unit-orders", "--depth", "2", "--width", "4", "--steps", "2", "--methods", "random")
    done = pathx_("evaluate", "photos", *options, "--out", "out")
    assert done.status == 1
    assert "bad.png" in done.err
    before = Path("out/unit-orders.json").read_text()
    made = json.loads(before)
    assert (made["schema"], made["images"]) == ("pathx/unit-orders@1", 3)
    assert [list(layer["orders"]) for layer in made["layers"]] == [["pathx", "random"]] * 2
    monkeypatch.setattr(unit_orders, "curves", lambda *arguments, **options: pytest.fail("it was known"))
    assert pathx_("evaluate", "photos", *options, "--out", "out").status == 1
    assert Path("out/unit-orders.json").read_text() == before
