"""Operations in other spellings: they compute the same, and what torch takes together keeps the images apart."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.pulled import assert_as_autograd
from support.small import seeded
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx.engine.freeze import network_of
from pathx.engine.record.operations import Graph
from pathx.engine.record.recorder import record
from pathx.engine.record.spellings import (
    fold,
)
from pathx.errors import PathxError

aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


def graph_of(model: nn.Module, images: Tensor) -> Graph:
    return record(model, images, lambda image: lambda node, shapes: ()).graph


def replayed(model: nn.Module, images: Tensor) -> Tensor:
    """What the graph says the model makes, node by node."""
    recording = record(model, images, lambda image: lambda node, shapes: ())
    graph = recording.graph
    values = {graph.input: images, **{value: recording.tensors[value] for value in graph.constants}}

    def actual(leaf: object) -> object:
        if isinstance(leaf, list):
            return [actual(one) for one in leaf]
        return values.get(leaf, leaf) if type(leaf).__name__ == "Value" else leaf  # type: ignore[call-overload]

    for node in graph.nodes:
        out = node.op(*map(actual, node.args), **{name: actual(arg) for name, arg in node.kwargs.items()})
        for value, tensor in zip(node.outputs, out if isinstance(out, (tuple, list)) else [out], strict=True):
            if value is not None:
                values[value] = tensor
    return values[graph.outputs]


def filled(x: Tensor) -> Tensor:
    x = x + 0
    x[x < 0] = 0.5
    return x


REWRITTEN: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "amax": (lambda x: x.amax((1, 3)), "amax"),
    "amax, of all with their dimensions": (lambda x: x.amax(keepdim=True, dim=()), "amax"),
    "amin": (lambda x: x.amin(2, keepdim=True), "amin"),
    "index_put": (lambda x: x.index_put((x < 0,), torch.tensor(0.5, dtype=x.dtype)), "index_put"),
    "index_put_": (filled, "index_put_"),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), "rrelu_with_noise"),
    "rrelu_": (lambda x: F.rrelu(x + 0, inplace=True), "rrelu_with_noise"),
    "circular padding": (lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"), "copy"),
    "circular padding that cuts": (lambda x: F.pad(x, (-1, 2, 0, -1), mode="circular"), "copy"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_rewritten_operation_computes_the_same(name: str) -> None:
    function, gone = REWRITTEN[name]
    images = numbers(2, 3, 4, 5)
    graph = graph_of(Function(function), images)
    assert gone not in {node.kind for node in graph.nodes}
    assert_close(replayed(Function(function), images), function(images.clone()))


WHOLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "circular padding": (lambda: Function(lambda x: F.pad(x, (1, 2, 0, 1), mode="circular").relu()), (2, 3, 4, 5)),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_heard_whole_is_so_in_exported_programs(name: str) -> None:
    """There the functions of torch go by the names of operations."""
    build, shape = WHOLE[name]
    model, images = build().eval(), numbers(*shape)
    exported = torch.export.export(model, (images,)).module()
    kinds = [[node.kind for node in graph_of(one, images).nodes] for one in (model, exported)]
    assert kinds[0].count("relu") == kinds[1].count("relu") and {"copy", "bmm"}.isdisjoint(kinds[1])


def test_what_torchscript_writes_into_is_explained_as_the_module_is_or_refused_with_what_to_do() -> None:
    """Releases of torch differ in what they write for circular padding."""
    convolution = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    images = numbers(2, 3, 6, 6)
    (expected, _) = pathx.explain(model, images, target=1)
    try:
        (found, _) = pathx.explain(torch.jit.trace(model, images), images, target=1)  # type: ignore[no-untyped-call]
    except PathxError as error:
        remedy = "give the module that it was made from, or save that with torch"
        assert re.search(rf"in place .*; {remedy}", str(error))  # noqa: PT017
    else:
        assert_close(found.attribution, expected.attribution)


def test_channels_are_shuffled_as_by_hand() -> None:
    def by_hand(x: Tensor) -> Tensor:
        return torch.stack([x[:, :3], x[:, 3:]], 2).flatten(1, 2)

    kernel, images = numbers(4, 6, 3, 3), numbers(2, 6, 5, 5)

    def attributions(shuffle: Callable[[Tensor], Tensor]) -> Tensor:
        model = Function(lambda x: F.conv2d(shuffle(x.relu()), kernel).relu().mean((2, 3)))
        return torch.stack([one.attribution for one in pathx.explain(model, images, depth="all")])

    assert attributions(by_hand).abs().sum() > 0
    assert_close(attributions(nn.ChannelShuffle(2)), attributions(by_hand))


def test_a_slice_of_everything_is_another_name() -> None:
    for end, kinds in ((99, {"relu"}), (2, {"relu", "slice"})):
        model = Function(lambda x, end=end: aten.slice.Tensor(x.relu(), 1, 0, end))
        assert {node.kind for node in graph_of(model, numbers(2, 3)).nodes} - {"alias"} == kinds


# --- Images apart -----------------------------------------------------------------------------------------------------


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=torch.float64)


SQUARE, WIDE, BIAS, SCALE, HEAD = drawn(4, 4), drawn(5, 4), drawn(5), drawn(3).abs() + 1, drawn(15, 2)

FOLDED: dict[str, tuple[Callable[[Tensor], Tensor], set[str], set[str]]] = {
    # by what it is: the function of (B, 3, 4), operations that are gone, operations that are there instead
    "a linear layer over several rows": (
        lambda x: F.relu(F.linear(x, WIDE, BIAS)),
        {"addmm"},
        {"matmul", "add"},
    ),
    "one without a bias": (lambda x: F.relu(F.linear(x, WIDE)), {"mm"}, {"matmul", "alias"}),
}


def folded(name: str) -> Function:
    function = FOLDED[name][0]

    def forward(x: Tensor) -> Tensor:
        made = function(x).flatten(1)
        return made @ HEAD[: made.shape[1]]

    return Function(forward)


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_is_explained_as_its_images_are(name: str) -> None:
    images = drawn(3, 3, 4)
    together = pathx.explain(folded(name), images, target=1, depth=1, width=4)
    for found, image in zip(together, images, strict=True):
        (alone,) = pathx.explain(folded(name), image[None], target=1, depth=1, width=4)
        assert_close(found.attribution, alone.attribution)
        assert found.score == pytest.approx(alone.score)


@pytest.mark.parametrize("name", FOLDED)
def test_the_spelling_of_torch_is_gone_and_images_come_first(name: str) -> None:
    _, gone, there = FOLDED[name]
    network = network_of(folded(name), drawn(3, 3, 4))
    kinds = {node.kind for node in network.nodes}
    hidden = {node.kind for node in network.nodes if len(network.graph.shapes[node.outputs[0].index]) == 3}  # type: ignore[union-attr]
    assert there <= kinds and not gone & hidden
    assert all(network.graph.shapes[gate.output.index][0] == 3 for layer in network.layers for gate in layer)


def test_what_is_in_no_known_way_together_stays_as_it_is() -> None:
    plain = Function(lambda x: F.relu(x @ SQUARE) @ HEAD[:4])
    graph = graph_of(plain, drawn(3, 4))
    assert fold(graph).nodes == graph.nodes


# --- what looks alike ----------------------------------------------------------------------------------------------------

MEAN, VARIANCE, NINE = drawn(3), drawn(3).abs() + 1, drawn(9).abs() + 1
MATRICES = drawn(3, 4, 5)


def stacked(x: Tensor, dim: int = 0) -> Tensor:
    return torch.stack([F.relu(x), 2 * F.relu(-x), F.relu(x @ SQUARE)], dim)


ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(F.relu(x), WIDE, BIAS),
    "linear, its rows in another shape": lambda x: F.linear(F.relu(x), WIDE, BIAS).reshape(len(x), 15),
    "linear, of rows put together": lambda x: F.linear(F.relu(x).reshape(-1, 4), WIDE, BIAS).reshape(len(x), 3, 5),
    "linear, read twice": lambda x: (
        y := F.linear(F.relu(x).reshape(-1, 4), WIDE),
        y.view(len(x), 3, 5),
        y.view(len(x), 15),
    )[1].flatten(1),
    "addmm, with factors": lambda x: torch.addmm(BIAS, F.relu(x).view(-1, 4), WIDE.T, alpha=2).view(len(x), 3, 5),
    "mm, other rows": lambda x: (F.relu(x).view(-1, 4) @ WIDE.T).view(len(x), 5, 3),
    "mm, other columns": lambda x: (F.relu(x).view(-1, 2) @ WIDE.T[:2]).view(len(x), 3, 10),
    "bmm, one matrix": lambda x: torch.bmm(F.relu(x).view(1, -1, 4), WIDE.T[None]).view(len(x), 3, 5),
    "bmm, repeated": lambda x: torch.bmm(F.relu(x).view(-1, 1, 4), WIDE.T.expand(3 * len(x), 4, 5)).view(len(x), 3, 5),
    "bmm, repeated from a view": lambda x: torch.bmm(
        F.relu(x).view(3 * len(x), 1, 4), WIDE.T.expand(len(x), 3, 4, 5).reshape(-1, 4, 5)
    ).view(len(x), 3, 5),
    "bmm, several matrices": lambda x: torch.bmm(
        F.relu(x).view(3 * len(x), 1, 4), MATRICES.expand(len(x), 3, 4, 5).reshape(-1, 4, 5)
    ).view(len(x), 3, 5),
    "bmm, of each image": lambda x: torch.bmm(F.relu(x), MATRICES[: len(x)]),
    "matmul, from the left": lambda x: SQUARE[:, :3] @ F.relu(x),
    "matmul, of maps from the left": lambda x: SQUARE[:, :3] @ F.relu(x)[:, None].expand(-1, 2, -1, -1),
    "matmul, of maps": lambda x: F.relu(x)[:, None] @ WIDE.T,
    "matmul, a matrix for every channel": lambda x: F.relu(x)[:, :, None] @ MATRICES,
    "matmul, of maps, read by another": lambda x: F.relu(MATRICES.mT @ F.relu(x)[:, :, :, None]).squeeze(3),
    "bmm, of maps, read as it is": lambda x: F.relu(
        torch.bmm(MATRICES.mT.repeat(len(x), 1, 1), F.relu(x).view(-1, 4, 1))
    ).view(len(x), 15),
    "einsum": lambda x: torch.einsum("btc,cd->bdt", F.relu(x), WIDE.T),
    "einsum, of all": lambda x: torch.einsum("btc,tcd->bd", F.relu(x), MATRICES),
    "ensemble": lambda x: stacked(x).mean(0),
    "ensemble, select": lambda x: stacked(x)[-1],
    "ensemble, max": lambda x: stacked(x).max(0)[0],
    "ensemble, after the batch": lambda x: stacked(x, 1).mean(1),
    "ensemble, over the images": lambda x: stacked(x, 1).mean(0)[: len(x)],
}
REFUSABLE = {"ensemble, max", "ensemble, over the images"}
"""They mix the images of a batch, or put them together."""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_like_it_is_what_autograd_says_or_refused(name: str, count: int) -> None:
    images = drawn(3, 3, 4)[:count]
    try:
        assert_as_autograd(Function(lambda x: 2 * ALIKE[name](x).flatten(1) + 1), images)
    except PathxError as refusal:
        if name not in REFUSABLE or not re.search("batch|no rule", str(refusal)):
            raise
