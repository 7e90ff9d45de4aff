"""The proof of a path: its units set to zero in the real network, compared with hooks on the eager model."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.modules import Function
from support.small import by_hand, images, network
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx.engine.ablate import DRAWS, Draws, part_removals, removals
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.explanation import Removal

LAYERS = {1: "1", 2: "3", 3: "6"}
"""The ReLUs of `network` by their layers."""


def logits_without(model: nn.Module, image: Tensor, units: dict[str, Tensor]) -> Tensor:
    """The model's own logits with units of its modules, by flat numbers, set to zero."""
    zero = {
        name: lambda out, numbers=numbers: out.flatten().index_fill(0, numbers, 0).reshape(out.shape)
        for name, numbers in units.items()
    }
    return by_hand(model, image[None], zero)[0]


def active_units(model: nn.Sequential, image: Tensor) -> dict[int, set[int]]:
    """By layer, the numbers of the units whose ReLU passes anything on."""
    found, value = {}, image[None]
    names = {name: layer for layer, name in LAYERS.items()}
    with torch.no_grad():
        for name, module in model.named_children():
            value = module(value)
            if name in names:
                found[names[name]] = {*value.flatten().nonzero().flatten().tolist()}
    return found


@given(st.integers(0, 30), st.integers(1, 3), st.sampled_from([1, 4, 12, "all"]), st.sampled_from([None, 0, 3]))
def test_removal_is_what_hooks_on_the_model_do(seed: int, depth: int, width: int | str, target: int | None) -> None:
    model, inputs = network(), images(2, seed)
    settings = {"depth": depth, "width": width, "target": target}
    made = pathx.explain(model, inputs, removal=True, **settings)  # type: ignore[arg-type]
    frozen = freeze(model, inputs)
    for number, one in enumerate(made):
        removal, active = one.removal, active_units(model, inputs[number])  # type: ignore[arg-type]
        assert removal is not None
        draws = Draws.of(frozen, number, one).units
        paths = {layer.layer: {*layer.contributions()[0].tolist()} for layer in one.path}
        assert removal.units == sum(map(len, paths.values()))
        assert removal.of_active == sum(len(active[layer]) for layer in paths)
        random = []
        for run in range(1 + DRAWS):
            units = {LAYERS[layer]: several[run] for layer, several in draws.items()}
            after = float(logits_without(model, inputs[number], units).softmax(0)[one.target])
            for layer, several in draws.items():
                drawn = several[run].tolist()
                assert len({*drawn}) == len(drawn)
                if run == 0:
                    assert {*drawn} == paths[layer]
                else:
                    assert {*drawn} <= active[layer] - paths[layer]
                    assert len(drawn) == min(len(paths[layer]), len(active[layer] - paths[layer]))
            if run == 0:
                assert removal.after == pytest.approx(after)
            else:
                random.append(after)
        assert removal.before == pytest.approx(one.probability)
        assert removal.random_units == sum(len(several[1]) for several in draws.values())
        if removal.random_units:
            assert removal.at_random == pytest.approx(sum(random) / DRAWS)
            assert removal.draws == DRAWS
        else:
            assert removal.at_random is None
            assert removal.draws == 0


def test_draws_are_the_same_in_any_batch_and_differ_between_images() -> None:
    model, inputs = network(), images(5, 3)
    together = pathx.explain(model, inputs, width=6, removal=True)
    alone = [pathx.explain(model, inputs[number : number + 1], width=6, removal=True)[0] for number in range(5)]
    for one, other in zip(together, alone, strict=True):
        assert_close(vars_of(one.removal), vars_of(other.removal))
    frozen, other = freeze(model, inputs), freeze(model, inputs[2:3])
    (mine,) = pathx.explain(model, inputs[2:3], width=6)
    drawn, again = Draws.of(frozen, 2, mine), Draws.of(other, 0, mine)
    assert [part.tolist() for part in drawn.units[2]] == [part.tolist() for part in again.units[2]]
    draws = {tuple(sorted(part.tolist())) for part in drawn.units[2]}
    assert len(draws) == 1 + DRAWS
    elsewhere = Draws.of(frozen, 1, together[1])
    assert [part.tolist() for part in drawn.units[2][1:]] != [part.tolist() for part in elsewhere.units[2][1:]]


def vars_of(removal: Removal | None) -> list[float]:
    assert removal is not None
    return [removal.before, removal.after, removal.at_random or 0.0, removal.units, removal.of_active]


def test_several_classes_of_an_image_are_removed_one_by_one() -> None:
    model, inputs = network(), images(3, 5)
    frozen = freeze(model, inputs)
    wanted = [(0, 1), (2, 0), (2, 3), (2, 1), (0, 2)]
    made = explain_frozen(frozen, wanted, width=5)
    found = removals(frozen, made, [image for image, _ in wanted])
    for (image, target), one in zip(wanted, found, strict=True):
        (alone,) = pathx.explain(model, inputs[image : image + 1], target=target, width=5, removal=True)
        assert_close(vars_of(one), vars_of(alone.removal))


def test_a_path_that_keeps_everything_has_nothing_to_draw_from() -> None:
    model, inputs = network(), images()
    frozen = freeze(model, inputs)
    (made,) = pathx.explain(model, inputs, depth=2, width="all", alpha=0.0)
    everything = [
        torch.cat([frozen.slopes(gate).gain.flatten() for gate in frozen.network.layers[layer.layer - 1]]).nonzero()
        for layer in made.path
    ]
    assert sum(map(len, everything)) == sum(len(layer.units) for layer in made.path)
    (found,) = removals(frozen, [made])
    assert found is not None
    assert (found.at_random, found.draws, found.random_units) == (None, 0, 0)
    assert found.units == found.of_active


def test_parts_of_a_path_are_removed_alone() -> None:
    """Predicted is what they contribute; measured what the model's own logit loses, by hooks."""
    model, inputs = network(), images(2, 11)
    made = pathx.explain(model, inputs, depth=3, width=12)
    frozen = freeze(model, inputs)
    for number, one in enumerate(made):
        parts = part_removals(frozen, one, number)
        for part in parts:
            (layer,) = [layer for layer in one.path if layer.layer == part.layer]
            units = [
                unit
                for unit in layer.units
                if part.tensor in (None, unit.tensor) and unit.index[: len(part.index)] == part.index
            ]
            assert part.units == len(units)
            assert part.predicted == pytest.approx(sum(unit.contribution for unit in units))
            shape = layer.tensors[0].shape
            numbers = torch.tensor([int(torch.arange(math.prod(shape)).reshape(shape)[unit.index]) for unit in units])
            after = logits_without(model, inputs[number], {LAYERS[part.layer]: numbers})
            assert part.measured == pytest.approx(float(one.logits[one.target] - after[one.target]), abs=1e-12)
            assert part.after == pytest.approx(float(after.softmax(0)[one.target]))
        channels = {
            (layer.layer, unit.index[0]) for layer in one.path[1:] for unit in layer.units
        }  # the top one is a vector
        assert {(part.layer, part.index[0]) for part in parts if part.kind == "channel"} == channels
        assert [part.units for part in parts if part.kind == "layer"] == [len(layer.units) for layer in one.path]
        assert sum(part.kind == "unit" for part in parts) == sum(len(layer.units) for layer in one.path)


def test_in_the_top_layer_the_prediction_is_what_happens() -> None:
    """Nothing is gated above it, so the frozen network and the real one agree."""
    model, inputs = network(), images(1, 12)
    for settings in ({}, {"against": 2, "target": 0}):
        (made,) = pathx.explain(model, inputs, width=12, **settings)  # type: ignore[arg-type]
        for part in part_removals(freeze(model, inputs), made):
            if part.layer == 3:
                assert part.measured == pytest.approx(part.predicted, abs=1e-9)


def test_nothing_is_printed_where_torch_maps_an_operation_slowly(capfd: pytest.CaptureFixture[str]) -> None:
    """`copy`, as writes into parts are recorded, is one."""

    def shift(x: Tensor) -> Tensor:
        moved = torch.zeros_like(x)
        moved[..., 1:] = x[..., :-1]
        return moved

    model = nn.Sequential(nn.Conv2d(2, 3, 1), nn.ReLU(), Function(shift), nn.Flatten(), nn.Linear(75, 3))
    pathx.explain(model, torch.randn(1, 2, 5, 5), removal=True)
    assert capfd.readouterr() == ("", "")
