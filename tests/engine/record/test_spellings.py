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
    HIDDEN_WRITES,
    RESPELLINGS,
    _circular_pad,
    _mask_fill,
    _one_hot,
    _strides_of_one,
    fold,
)
from pathx.errors import PathxError

aten = torch.ops.aten
pytestmark = pytest.mark.usefixtures("one_thread")


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


def test_strides_that_move_nothing_are_no_change() -> None:
    """Of dimensions of size 1 they say nothing; any other stride, size or beginning is another tensor."""
    x = numbers(2, 3, 1, 4)[1:]
    sizes, strides, start = tuple(x.shape), x.stride(), x.storage_offset()
    for same in ((sizes, strides), (list(sizes), strides, start), (sizes, (99, strides[1], 77, strides[3]), None)):
        run = _strides_of_one(x, *same)
        assert run is not None and run() is x
    for other in (
        (sizes, strides, start + 1),
        (sizes, strides, 0),
        (sizes, (strides[0], strides[1] + 1, *strides[2:])),
        (sizes, (*strides[:3], 2)),
        ((1, 3, 4, 1), strides),
        ((1, 3, 1, 3), strides, start),
        ((1, 2, 1, 4), (strides[0], 8, *strides[2:]), 0),
    ):
        assert _strides_of_one(x, *other) is None


def test_only_a_mask_of_the_same_shape_and_one_number_is_a_filling() -> None:
    x = numbers(2, 3)
    mask, number = x < 0, torch.tensor(0.5).double()
    fill, fill_in = _mask_fill(in_place=False), _mask_fill(in_place=True)
    run = fill(x, [mask], number)
    assert torch.equal(run(), x.masked_fill(mask, 0.5)) and x.min() < 0
    for other in (
        ([mask, mask], number),
        ([torch.tensor([1])], number),
        ([mask[0]], number),
        ([mask], number.expand(int(mask.sum()))),
        ([mask], number, True),
    ):
        assert fill(x, *other) is None and fill_in(x, *other) is None
    assert fill_in(x, [mask], number)() is x and x.min() > 0


@pytest.mark.parametrize("reduce", [torch.amax, torch.amin])
@pytest.mark.parametrize("dim", [0, -1, 2, (), (0, 2), (-1, -3), (2, 1, 0)])
@pytest.mark.parametrize("keep", [None, True, False])
def test_extremes_over_any_dimensions(reduce: Callable[..., Tensor], dim: object, keep: bool | None) -> None:
    x = numbers(2, 3, 4)
    respell = RESPELLINGS[aten.amax.default if reduce is torch.amax else aten.amin.default]
    more = () if keep is None else (keep,)
    run = respell(x, dim, *more)
    assert run is not None
    assert torch.equal(run(), reduce(x, dim, *more))
    if dim == ():
        assert torch.equal(respell(x)(), reduce(x))  # type: ignore[misc]


@pytest.mark.parametrize(
    "pad", [(1, 0), (0, 2), (2, 1, 1, 0), (0, 0, 0, 3), (-1, 2), (1, -2, -1, 2), (-1, -1), (4, 4, 3, 3)]
)
def test_circular_padding(pad: tuple[int, ...]) -> None:
    x = numbers(2, 2, 4, 5)[:, :, : 4 if len(pad) == 4 else 1]
    x = x if len(pad) == 4 else x[:, :, 0]
    made = _circular_pad(x, pad, "circular")
    assert made is not None and torch.equal(made, F.pad(x, pad, mode="circular"))
    assert _circular_pad(x, pad) is None and _circular_pad(x, pad, "reflect") is None


def test_circular_padding_of_volumes() -> None:
    x, pad = numbers(1, 2, 3, 4, 5), (1, 0, 2, 1, 0, 2)
    made = _circular_pad(x, pad, "circular")
    assert made is not None and torch.equal(made, F.pad(x, pad, mode="circular"))


def test_classes_as_ones() -> None:
    x = torch.tensor([[2, 0], [1, 1]])
    for classes in (1, 3, 5):
        made = _one_hot(x % classes, classes)
        assert made is not None and torch.equal(made, F.one_hot(x % classes, classes))
    assert _one_hot(x) is None and _one_hot(x, -1) is None and _one_hot(x, 0) is None


def test_the_mean_slope_at_rest() -> None:
    x = numbers(2, 3)
    for given, slope in (
        ((), (1 / 8 + 1 / 3) / 2),
        ((0.1,), (0.1 + 1 / 3) / 2),
        ((0.1, 0.5), 0.3),
        ((0.1, 0.5, False), 0.3),
    ):
        run = RESPELLINGS[aten.rrelu_with_noise.default](x, x, *given)
        assert run is not None
        assert_close(run(), F.leaky_relu(x, slope))
    run = RESPELLINGS[aten.rrelu_with_noise.default](x, x, 0.1, 0.5, True)
    assert run is not None and not torch.equal(run(), run())


def test_a_choice_between_two_things_stays_a_choice() -> None:
    found = graph_of(Function(lambda x: torch.maximum(x, x.flip(3))), numbers(2, 3, 4, 5))
    assert [node.kind for node in found.nodes][-1] == "maximum"


def test_what_schemas_do_not_say_is_true() -> None:
    x, mean, variance = numbers(4, 3), torch.zeros(3).double(), torch.ones(3).double()
    aten.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5)
    assert mean.any() and not any(argument.alias_info for argument in aten.native_batch_norm.default._schema.arguments)
    told = HIDDEN_WRITES[aten.native_batch_norm.default]
    assert told((x, None, None, mean, variance, True)) == (mean, variance)
    assert told((x, None, None, mean, variance, False)) == ()
    parts = aten.unsafe_split.Tensor(x, 2)
    assert parts[0].untyped_storage()._cdata == x.untyped_storage()._cdata


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
OWN = {count: drawn(3 * count).abs() + 1 for count in (1, 2, 3)}


def normed(x: Tensor, mean: Tensor, variance: Tensor, *affine: Tensor | None) -> Tensor:
    """Instances as channels of one image."""
    return F.batch_norm(x.reshape(1, -1, *x.shape[2:]), mean, variance, *affine).view(x.shape)


def stacked(x: Tensor, dim: int = 0) -> Tensor:
    return torch.stack([F.relu(x), 2 * F.relu(-x), F.relu(x @ SQUARE)], dim)


ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(F.relu(x), WIDE, BIAS),
    "linear, of four dimensions": lambda x: F.linear(F.relu(x)[:, None], WIDE, BIAS),
    "linear, its rows in another shape": lambda x: F.linear(F.relu(x), WIDE, BIAS).reshape(len(x), 15),
    "linear, of rows put together": lambda x: F.linear(F.relu(x).reshape(-1, 4), WIDE, BIAS).reshape(len(x), 3, 5),
    "linear, read twice": lambda x: (
        y := F.linear(F.relu(x).reshape(-1, 4), WIDE),
        y.view(len(x), 3, 5),
        y.view(len(x), 15),
    )[1].flatten(1),
    "linear, both of two views": lambda x: (
        y := F.linear(F.relu(x).view(-1, 4), WIDE),
        y.view(-1, 3, 5) + y.view(-1, 3, 5),
    )[1],
    "addmm, with factors": lambda x: torch.addmm(BIAS, F.relu(x).view(-1, 4), WIDE.T, alpha=2).view(len(x), 3, 5),
    "mm, other rows": lambda x: (F.relu(x).view(-1, 4) @ WIDE.T).view(len(x), 5, 3),
    "mm, as many columns": lambda x: (F.relu(x).view(-1, 2) @ SQUARE[:2, :2]).view(len(x), 3, 4),
    "mm, other columns": lambda x: (F.relu(x).view(-1, 2) @ WIDE.T[:2]).view(len(x), 3, 10),
    "instances": lambda x: normed(F.relu(x), MEAN.repeat(len(x)), VARIANCE.repeat(len(x))),
    "instances, with weights": lambda x: normed(
        F.relu(x), MEAN.repeat(len(x)), VARIANCE.repeat(len(x)), SCALE.repeat(len(x)), MEAN.repeat(len(x))
    ),
    "instances, with a weight alone": lambda x: normed(
        F.relu(x), MEAN.repeat(len(x)), VARIANCE.repeat(len(x)), SCALE.repeat(len(x)), None
    ),
    "instances, maps": lambda x: normed(F.relu(x)[..., None], MEAN.repeat(len(x)), VARIANCE.repeat(len(x))),
    "instances, each with its own": lambda x: normed(F.relu(x), NINE[: 3 * len(x)], NINE[: 3 * len(x)]),
    "instances, each with numbers of its own": lambda x: normed(F.relu(x), OWN[len(x)], OWN[len(x)]),
    "instances, put side by side": lambda x: normed(
        F.relu(x), torch.cat([MEAN] * len(x)), torch.cat([VARIANCE, *[SCALE] * (len(x) - 1)])
    ),
    "instances, of other channels": lambda x: F.batch_norm(
        F.relu(x).reshape(1, -1, 2), MEAN.repeat(2 * len(x)), VARIANCE.repeat(2 * len(x))
    ).view(x.shape),
    "instances, of no batch": lambda x: F.batch_norm(F.relu(x).view(-1, 3, 2, 2), MEAN, VARIANCE).view(x.shape),
    "bmm, one matrix": lambda x: torch.bmm(F.relu(x).view(1, -1, 4), WIDE.T[None]).view(len(x), 3, 5),
    "bmm, one matrix, other rows": lambda x: torch.bmm(F.relu(x).view(1, -1, 2), WIDE.T[None, :2]).view(len(x), 6, 5),
    "bmm, one matrix, read twice": lambda x: (
        rows := F.relu(x).view(1, -1, 4),
        torch.bmm(rows, WIDE.T[None]).view(len(x), 3, 5).flatten(1) + rows.view(len(x), 12).sum(1, keepdim=True),
    )[1],
    "bmm, repeated": lambda x: torch.bmm(F.relu(x).view(-1, 1, 4), WIDE.T.expand(3 * len(x), 4, 5)).view(len(x), 3, 5),
    "bmm, repeated and made whole": lambda x: torch.bmm(
        F.relu(x).view(-1, 1, 4), WIDE.T.expand(3 * len(x), 4, 5).reshape(-1, 4, 5)
    ).view(len(x), 3, 5),
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
    **{
        f"ensemble, {name}": (lambda x, reduce=reduce: reduce(stacked(x)))
        for name, reduce in {
            "mean": lambda y: y.mean(0),
            "sum": lambda y: y.sum(0),
            "sum, of a list": lambda y: y.sum([0]),
            "max": lambda y: y.max(0)[0],
            "min": lambda y: y.min(0)[0],
            "median": lambda y: y.median(0)[0],
            "select": lambda y: y[1],
            "select, the last": lambda y: y[-1],
            "twice": lambda y: y.mean(0) + y[0],
            "kept": lambda y: y.mean(0, keepdim=True)[0],
            "kept, of max": lambda y: y.max(0, keepdim=True)[0][0],
            "another dimension": lambda y: y.mean(2)[0],
            "two dimensions": lambda y: y.mean((0, 2)),
            "of two kinds": lambda y: y.mean(0) + y.flip(0)[0],
            "amax": lambda y: y.amax(0),
            "nothing": lambda y: y.flatten(0, 1)[: y.shape[1]],
        }.items()
    },
    "ensemble, from the end": lambda x: stacked(x, -4).mean(0),
    "ensemble, after the batch": lambda x: stacked(x, 1).mean(1),
    "ensemble, over the images": lambda x: stacked(x, 1).mean(0)[: len(x)],
    "ensemble, at the end": lambda x: stacked(x, 3).mean(3),
    "ensemble, of vectors": lambda x: torch.stack([F.relu(x[:, 0]), F.relu(-x[:, 1])]).mean(0),
    "ensemble, of numbers": lambda x: (
        torch.stack([F.relu(x).sum((1, 2)), F.relu(-x).sum((1, 2))]).mean(0)[:, None].expand(-1, 3)
    ),
}
# For which there is another way to say it, along the batch or of images put together.
MIXED = {
    *("instances", "instances, with weights", "instances, with a weight alone", "instances, maps"),
    *("linear, of rows put together", "linear, read twice", "linear, both of two views", "addmm, with factors"),
    *("mm, other rows", "mm, other columns", "mm, as many columns", "linear, its rows in another shape"),
    *(
        "instances, each with numbers of its own",
        "instances, each with its own",
        "instances, put side by side",
        "instances, of other channels",
    ),
    *("bmm, one matrix, read twice", "bmm, repeated", "bmm, several matrices", "bmm, of maps, read as it is"),
    *(
        *("ensemble, max", "ensemble, min", "ensemble, median"),
        "ensemble, over the images",
        "ensemble, kept",
        "ensemble, kept, of max",
        "ensemble, another dimension",
        "ensemble, two dimensions",
    ),
    *(
        "ensemble, of two kinds",
        "ensemble, nothing",
        "ensemble, amax",
        "bmm, repeated and made whole",
        "bmm, repeated from a view",
        "ensemble, of numbers",
        "ensemble, of vectors",
    ),
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_like_it_is_what_autograd_says_or_refused(name: str, count: int) -> None:
    images = drawn(3, 3, 4)[:count]
    try:
        assert_as_autograd(Function(lambda x: 2 * ALIKE[name](x).flatten(1) + 1), images)
    except PathxError as refusal:
        if name not in MIXED or not re.search("batch|no rule", str(refusal)):
            raise
