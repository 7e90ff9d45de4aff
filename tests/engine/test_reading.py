"""A graph read as a network: its layers and routes counted out, what is kept of a pass, and what images share."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.branching import frozen_fire
from support.drawn_networks import networks
from support.modules import Function, Model
from support.networks import Network as Drawn
from support.pulled import fixed, pictures
from torch import Tensor, nn

import pathx
from pathx import PathxError
from pathx.engine.dependence import Dependence
from pathx.engine.freeze import freeze
from pathx.engine.network import Network
from pathx.engine.record.operations import Value
from pathx.engine.replay import Replay

pytestmark = pytest.mark.usefixtures("one_thread")
aten = torch.ops.aten


def routes(network: Network) -> tuple[Callable[[Value], int], Callable[[Value], set[int]]]:
    """The largest number of gates on a way from a value to the logits, and the layers met first on ways down from it."""
    readers: dict[Value, list[tuple[Value, bool]]] = {}
    for node in network.nodes:
        for source in node.inputs:
            if network.reading.states[source] is Dependence.VARIES:
                made = [value for value in node.outputs if value is not None]
                readers.setdefault(source, []).extend((value, node.index in network.gates) for value in made)
    layer_of = {gate.output: number for number, layer in enumerate(network.layers, start=1) for gate in layer}

    @cache
    def above(value: Value) -> int:
        found = [above(made) + gate for made, gate in readers.get(value, []) if above(made) >= 0]
        return max([0 if value == network.logits else -1, *found])

    @cache
    def down(value: Value) -> frozenset[int]:
        if value in layer_of:
            return frozenset([layer_of[value]])
        node = network.producers.get(value)
        if node is None:
            return frozenset([0]) if value == network.graph.input else frozenset()
        return frozenset().union(
            *(down(one) for one in node.inputs if network.reading.states[one] is Dependence.VARIES)
        )

    return above, lambda value: set(down(value))


def assert_read(network: Network) -> None:
    above, down = routes(network)
    deepest = max(above(gate.output) for layer in network.layers for gate in layer)
    for number, layer in enumerate(network.layers, start=1):
        assert layer
        for gate in layer:
            assert number == deepest - above(gate.output) + 1
    for value, lands in network.lands.items():
        if value in network.reading.states and network.reading.states[value] is Dependence.VARIES and above(value) >= 0:
            assert {bit for bit in range(64) if lands >> bit & 1} == down(value)


@settings(max_examples=30)
@given(network=networks(), seed=st.integers(0, 100))
def test_layers_and_landings_are_counted_out(network: Drawn, seed: int) -> None:
    assert_read(freeze(network.module(), network.images(2, seed)).network)


def test_layers_of_two_maps_are_counted_out() -> None:
    network = frozen_fire()[1].network
    assert_read(network)
    assert [len(layer) for layer in network.layers] == [1, 2] and network.depth == 2


HEAD = fixed(12, 3)
BOTH = fixed(2, 12, seed=3)
# What lies between the last ReLU and the logits: whether it is the same for every image of a batch of two, and of one.
SHARED: dict[str, tuple[Callable[[Tensor], Tensor], bool, bool]] = {
    "a matrix": (lambda x: F.relu(x) @ HEAD, True, True),
    "a vector as long as the batch": (lambda x: (F.relu(x) @ HEAD)[:, :2] * fixed(2), True, True),
    "a row for every image": (lambda x: (F.relu(x) * BOTH[: len(x)]) @ HEAD, False, True),
    "a row for all": (lambda x: (F.relu(x) * BOTH[:1]) @ HEAD, True, True),
    "a mask of the image": (lambda x: (F.relu(x) * (x.flip(1) > 0)) @ HEAD, False, False),
    "a maximum": (lambda x: F.max_pool1d(F.relu(x)[:, None], 2).flatten(1) @ HEAD[:6], False, False),
    "the larger of two": (lambda x: torch.maximum(F.relu(x), 2 * F.relu(x.flip(1)) - 1) @ HEAD, False, False),
    "a mask below the last ReLU": (lambda x: F.relu(x * (x.flip(1) > 0) - 0.1) @ HEAD, True, True),
    "a maximum below the last ReLU": (lambda x: F.relu(F.max_pool1d(x[:, None], 2).flatten(1)) @ HEAD[:6], True, True),
    "a maximum on one of two ways": (
        lambda x: F.relu(x) @ HEAD + F.max_pool1d(F.relu(x)[:, None], 2).flatten(1) @ HEAD[:6], False, False,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SHARED)
def test_what_no_image_had_a_part_in_is_shared(name: str) -> None:
    function, two, one = SHARED[name]
    for count, shared in ((2, two), (1, one)):
        images = pictures(2, 12)[:count]
        network = freeze(Function(function), images).network
        assert network.top_is_shared == shared
        options = {"target": 1, "depth": "all", "width": "all", "alpha": 0.0, "skips": "all"}
        x = images.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(function(x)[:, 1].sum(), x)
        found = torch.stack([made.weight for made in pathx.explain(Function(function), images, **options)])
        assert torch.allclose(found, gradient)


def test_a_pass_keeps_what_is_needed_and_no_more() -> None:
    model = nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    for images in (torch.rand(2, 2, 6, 6), torch.rand(2, 2, 6, 6).double()):  # the model's own run, and one in double
        frozen = freeze(model.eval(), images)
        network = frozen.network
        assert {*frozen.kept} == network.needed
        kinds = sorted(network.producers[value].kind for value in frozen.kept if value in network.producers)
        # releases of torch differ in whether `t` is another name for the weight
        assert [kind for kind in kinds if kind != "t"] == ["addmm", "max_pool2d_with_indices", "relu"]


def test_of_what_is_frozen_a_pass_keeps_what_varying_values_meet() -> None:
    for dtype in (torch.float32, torch.float64):
        model = Model(lambda m, x: m.head(F.relu(x) * ((x > 0.2) & (x < 1.5)).to(x.dtype)), head=nn.Linear(12, 3))
        frozen = freeze(model, pictures(2, 12).to(dtype))
        network = frozen.network
        kinds = sorted(network.producers[value].kind for value in frozen.kept if value in network.producers)
        assert {*frozen.kept} == network.needed
        assert [kind for kind in kinds if kind != "t"] == ["_to_copy", "addmm", "relu"]


ROUNDED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "made whole": (
        lambda x: F.relu(x).to(torch.int64).double() @ HEAD,
        ": to_copy in the model itself makes integers of it",
    ),
    "picked": (
        lambda x: F.one_hot(F.relu(x).argmax(1), 12).double() @ HEAD,
        ": argmax in the model itself makes integers of it",
    ),
    "compared": (lambda x: (F.relu(x) > 0.5).double() @ HEAD, "in a way that can be explained"),
    "nothing of it": (lambda x: torch.zeros_like(F.relu(x)) @ HEAD, "in another thread, or outside of torch"),
}


@pytest.mark.parametrize("name", ROUNDED)
def test_where_the_image_was_lost_is_said(name: str) -> None:
    function, text = ROUNDED[name]
    with pytest.raises(PathxError) as refused:
        freeze(Function(function), pictures(2, 12))
    assert str(refused.value).endswith(text) or (text.startswith(":") and text in str(refused.value))


def named(outputs: Callable[[Tensor, Tensor], object]) -> Model:
    def forward(m: nn.Module, x: Tensor) -> object:
        features = F.relu(m.body(x))  # type: ignore[operator]
        return outputs(features, m.head(features))  # type: ignore[operator]

    return Model(forward, body=nn.Linear(12, 5), head=nn.Linear(5, 3)).double()


Named = namedtuple("Named", "features logits")


@dataclass
class Output:
    features: Tensor
    logits: Tensor


# What a model returns beside its logits (B, 3), made of features (B, 5).
RETURNED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "by the name of logits": lambda f, y: {"logits": y, "out": 2 * y, "output": 3 * y},
    "by the name of out": lambda f, y: {"more": 2 * y, "output": 3 * y, "out": y},
    "by the name of output": lambda f, y: {"more": 2 * y, "output": y},
    "a named tuple": lambda f, y: Named(2 * f, y),
    "a dataclass": lambda f, y: Output(2 * f, y),
    "with nothing": lambda f, y: [None, y],
    "what was made last": lambda f, y: [f, y],
    "what was made last, first": lambda f, y: [y, f],
    "with whole numbers": lambda f, y: {"class": y.argmax(1), "scores": y},
    "with maps": lambda f, y: {"maps": f[:, :, None].expand(-1, -1, 2), "scores": y},
    "with what has another batch": lambda f, y: {"rows": f.t(), "scores": y},
    "with one number": lambda f, y: {"loss": f.sum(), "scores": y},
    "with one number per image as logits": lambda f, y: {"loss": f.sum(), "logits": y},
    "twice the same": lambda f, y: [y, y],
    "and its softmax": lambda f, y: [y.softmax(1), y],
    "deep": lambda f, y: {"a": [{"b": (f, y)}]},
    "dimensions of one": lambda f, y: y[:, None, :, None],
}


@pytest.mark.parametrize("name", RETURNED)
def test_the_logits_are_found_among_other_things(name: str) -> None:
    model, images = named(RETURNED[name]), pictures(2, 12)
    with torch.no_grad():
        expected = model.head(F.relu(model.body(images)))
        assert torch.equal(freeze(model, images).logits, expected)


SEVERAL: dict[str, tuple[Callable[[Tensor, Tensor], object], str]] = {
    "two heads": (
        lambda f, y: [y, f * 2],
        "several outputs that could be logits (0 of shape (2, 3), 1 of shape (2, 5))",
    ),
    "deep": (lambda f, y: {"a": [y], "b": {"c": 2 * f}}, "(a.0 of shape (2, 3), b.c of shape (2, 5))"),
    "a map alone": (lambda f, y: f[:, :, None].expand(-1, -1, 2), "returns output of shape (2, 5, 2), not one row"),
    "numbers": (lambda f, y: {"a": 1, "b": y.argmax(1)}, "returns a an int, b of shape (2,), not one row"),
    "an empty list": (lambda f, y: [], "returns nothing, not one row"),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_what_a_model_returns_is_said_where_it_is_not_clear(name: str) -> None:
    function, text = SEVERAL[name]
    with pytest.raises(PathxError) as refused:
        freeze(named(function), pictures(2, 12))
    assert text in str(refused.value)


def test_repeated_calls_of_a_relu_are_numbered() -> None:
    relu = nn.ReLU()
    model = nn.Sequential(
        nn.Linear(12, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, 5), relu, nn.Linear(5, 2)
    ).double()
    names = [gate.name for layer in freeze(model, pictures(2, 12)).network.layers for gate in layer]
    assert names == ["1", "1_1", "1_2"]


TWICE: dict[str, Callable[[Tensor], Tensor]] = {
    "read by another": lambda h: F.relu(h) + h,
    "read by the logits": lambda h: torch.cat([F.relu(h), h], 1),
    "given": lambda h: F.relu(h.view(2, 12)),
}


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("name", TWICE)
def test_what_others_read_is_not_overwritten(name: str, double: bool) -> None:
    """Neither in the model's own run, nor in one of more precision, nor in a replay."""
    model = Model(lambda m, x: TWICE[name](m.body(x)).flatten(1) * 2, body=nn.Linear(12, 12))
    images = pictures(2, 12).to(torch.float64 if double else torch.float32)
    frozen = freeze(model, images)
    with torch.no_grad():
        replayed = Replay(model, images)(images)
        expected = model.to(images.dtype)(images)
    torch.testing.assert_close(frozen.logits, expected)
    torch.testing.assert_close(replayed, expected)
