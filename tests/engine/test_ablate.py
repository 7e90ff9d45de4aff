"""Units set to zero in the real network, compared with the same done by hand: a hook on the eager model's ReLUs."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.branching import fire
from support.small import RELUS, by_hand, images, network, seeded, zeroed
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze


@st.composite
def places(draw: st.DrawFn) -> list[tuple[str, tuple[int, ...]]]:
    """Units and channels anywhere in the network."""
    found = []
    for _ in range(draw(st.integers(1, 5))):
        name = draw(st.sampled_from(sorted(RELUS)))
        shape = RELUS[name][: draw(st.integers(1, len(RELUS[name])))]
        found.append((name, tuple(draw(st.integers(0, size - 1)) for size in shape)))
    return found


@given(places(), st.integers(0, 50))
def test_units_and_channels_as_by_hand(chosen: list[tuple[str, tuple[int, ...]]], seed: int) -> None:
    model, inputs = network(), images(2, seed)
    edits = {name: zeroed(*(index for other, index in chosen if other == name)) for name, _ in chosen}
    made = pathx.ablate(model, inputs, chosen)
    with torch.no_grad():
        assert_close(torch.stack([one.before for one in made]), model(inputs))
    assert_close(torch.stack([one.after for one in made]), by_hand(model, inputs, edits))


@given(places())
def test_only_the_chosen_units_stay(chosen: list[tuple[str, tuple[int, ...]]]) -> None:
    def only(*indices: tuple[int, ...]) -> Callable[[Tensor], Tensor]:
        return lambda out: out - zeroed(*indices)(out.clone())

    model, inputs = network(), images(2)
    edits = {name: only(*(index for other, index in chosen if other == name)) for name, _ in chosen}
    made = pathx.ablate(model, inputs, chosen, keep=True)
    assert_close(torch.stack([one.after for one in made]), by_hand(model, inputs, edits))


def test_units_can_be_set_to_their_mean() -> None:
    model, inputs = network(), images(2)
    per_channel, per_unit = torch.rand(5, generator=seeded(1)), torch.rand(12, generator=seeded(2))

    def channel(out: Tensor) -> Tensor:
        out[:, 3] = per_channel[3].double()
        return out

    def unit(out: Tensor) -> Tensor:
        out[:, 7] = per_unit[7].double()
        return out

    made = pathx.ablate(model, inputs, [("1", (3,)), ("6", (7,))], means={"1": per_channel, "6": per_unit})
    assert_close(torch.stack([one.after for one in made]), by_hand(model, inputs, {"1": channel, "6": unit}))


def test_units_are_counted_active_or_not() -> None:
    """Whatever they pass on, a 1 included, and what they are set to is no matter."""
    model = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 3)).double().eval()
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0], [0.0, 0.0]]))
        model[0].bias.copy_(torch.tensor([0.0, 0.0, 0.0, 1.0]))
    inputs = torch.tensor([[1.0, 2.0], [-3.0, -4.0]]).double()  # outputs 1, 2, 0, 1 and 0, 0, 3, 1
    for units, counts in (((0, 1, 2, 3), (3, 2)), ((2,), (0, 1)), ((0, 3), (2, 1)), ((1, 2), (1, 1))):
        made = pathx.ablate(model, inputs, [("1", (unit,)) for unit in units])
        assert [(one.units, one.active) for one in made] == [(len(units), count) for count in counts]
        kept = pathx.ablate(model, inputs, [("1", (unit,)) for unit in units], keep=True)
        totals = (3, 2)
        assert [(one.units, one.active) for one in kept] == [
            (4 - len(units), total - count) for total, count in zip(totals, counts, strict=True)
        ]
        assert [one.predictions for one in made] == [
            (int(one.before.argmax()), int(one.after.argmax())) for one in made
        ]


def test_a_layer_of_several_maps_is_kept_as_one() -> None:
    model = fire()
    inputs = torch.randn(2, 2, 5, 5, generator=seeded(4), dtype=torch.float64)
    names = [gate.name for gate in freeze(model, inputs).network.layers[1]]
    made = pathx.ablate(model, inputs, [(names[1], (0, 2, 3))], keep=True)
    with torch.no_grad():
        wide = torch.relu(model.wide(torch.relu(model.first(inputs))))
        only = torch.zeros_like(wide)
        only[:, 0, 2, 3] = wide[:, 0, 2, 3]
        expected = model.head(torch.cat([torch.zeros(2, 50).double(), only.flatten(1)], 1))
    assert_close(torch.stack([one.after for one in made]), expected)
    assert [one.units for one in made] == [124, 124]


def test_a_path_without_units_changes_nothing() -> None:
    """Where no unit sends anything to any class; only those of the path stay: none."""
    model, inputs = network(), images(2)
    with torch.no_grad():
        model[-1].weight.zero_()  # type: ignore[index, union-attr, operator]
    paths = pathx.explain(model, inputs, depth=1)
    assert not any(layer.units for path in paths for layer in path.path)
    for keep in (False, True):
        for made in pathx.ablate(model, inputs, path=paths, keep=keep):
            assert made.units == (12 if keep else 0)
            assert_close(made.after, made.before)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"units": [("nothing", (0,))]}, "no activation named 'nothing'"),
        ({"units": [("1", (5,))]}, r"1 \[5\] is out of range: its shape is 5 x 8 x 8, counted from 0"),
        ({"units": [("1", (4, 7, 8))]}, "out of range"),
        ({"units": [("1", (-1,))]}, "out of range"),
        ({"units": [("1", (0, 0, 0, 0))]}, "out of range"),
        ({"units": [("6", (0, 0))]}, "out of range"),
        ({}, "no unit to change"),
        ({"units": [("1", (0,))], "target": 4}, "target 4 is out of range: the model has classes 0 to 3"),
        ({"units": [("1", (0,))], "target": -1}, "target -1 is out of range"),
        ({"units": [("1", (0,))], "means": {"1": torch.zeros(3)}}, "neither per channel nor per unit"),
        ({"units": [("1", (0,))], "means": {"1": torch.zeros(5, 8)}}, "neither per channel nor per unit"),
        ({"units": [("1", (0,))], "means": {"1": torch.zeros(5, 1, 1)}}, "neither per channel nor per unit"),
        ({"units": [("1", (0,))], "means": {"1": torch.full((5,), torch.inf)}}, "is NaN or infinite"),
    ],
)
def test_what_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(PathxError, match=message) as caught:
        pathx.ablate(network(), images(), **options)  # type: ignore[arg-type]
    assert caught.value.usage == ("NaN" not in message)


def test_names_that_are_not_there_suggest_others() -> None:
    layers = {
        f"{name}{number}": part for number in range(5) for name, part in (("fc", nn.Linear(2, 2)), ("act", nn.ReLU()))
    }
    model = nn.Sequential(nn.Sequential(OrderedDict(layers)), nn.Linear(2, 2))
    for name, near in (("body.act", "0.act0, 0.act1, 0.act2"), ("act3", "0.act3"), ("relu", "0.act2, 0.act3, 0.act4")):
        with pytest.raises(PathxError) as caught:
            pathx.ablate(model.eval(), torch.ones(1, 2), [(name, (0,))])
        assert str(caught.value) == f"there is no activation named {name!r} in the network; it has {near}, …"


def test_models_and_images_as_explain_takes_them() -> None:
    """A loaded model, an exported program, images in half precision: all are one network."""

    class Loaded:
        module, labels = network().float(), ("a", "b", "c")

    units, half = [("1", (2,))], images(2, 3).half()
    expected = pathx.ablate(network().float(), half.float(), units)
    exported = torch.export.export(network().float(), (half.float(),))
    for model, inputs in ((Loaded(), half.float()), (exported, half.float()), (network().float(), half)):
        for found, wanted in zip(pathx.ablate(model, inputs, units), expected, strict=True):  # type: ignore[arg-type]
            assert_close((found.before, found.after), (wanted.before, wanted.after))
    with pytest.raises(PathxError, match=r"must be a torch\.nn\.Module, not an int"):
        pathx.ablate(3, half, units)  # type: ignore[arg-type]
