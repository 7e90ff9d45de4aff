"""Operations that are recorded as others compute the same, and the operations they came from are not in the graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function, Model
from support.small import seeded
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.engine.record.rewrites import (
    FACTORS,
    REWRITES,
    UNSAID,
    _filled,
    _norm,
    _one_hot,
    _padded,
    _power,
    _restrided,
    _summed,
    hands_out_parts,
    spelled,
)
from pathx.engine.record.operations import Graph, trace
from pathx.errors import PathxError

aten = torch.ops.aten


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


MATRIX = numbers(5, 3)


def graph_of(model: nn.Module, images: Tensor) -> Graph:
    return trace(model, images.clone(), lambda: lambda node, image: None)


def replayed(graph: Graph, images: Tensor) -> Tensor:
    """What the graph says the model makes, node by node."""
    values = {graph.input: images, **graph.constants}

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
    "maximum of x and a part of it": (lambda x: torch.maximum(x, 0.1 * x), "maximum"),
    "minimum of x and a multiple": (lambda x: torch.minimum(x / 4, x), "minimum"),
    "maximum of x and what is left of it": (lambda x: torch.maximum(-x, x), "maximum"),
    "where": (lambda x: torch.where(x > 0, x, 0.1 * x), "nothing of this name"),
    "rrelu": (lambda x: F.rrelu(x, 0.1, 0.3), "rrelu_with_noise"),
    "rrelu_": (lambda x: F.rrelu(x + 0, inplace=True), "rrelu_with_noise"),
    "circular padding": (lambda x: F.pad(x, (1, 2, 0, 1), mode="circular"), "copy"),
    "circular padding that cuts": (lambda x: F.pad(x, (-1, 2, 0, -1), mode="circular"), "copy"),
    "einsum": (lambda x: torch.einsum("bchw,wk->bkch", x, MATRIX), "bmm"),
    "einsum that sums up": (lambda x: torch.einsum("bchw,wk->bk", x, MATRIX), "bmm"),
    "einsum that sums up the second factor": (lambda x: torch.einsum("bchw,wk->bhc", x, MATRIX), "bmm"),
    "einsum of three": (lambda x: torch.einsum("wk,bchw,kj->bcj", MATRIX, x, MATRIX.mT), "nothing of this name"),
    "einsum, second factor": (lambda x: torch.einsum("wk,bchw->bchk", MATRIX, x), "bmm"),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_a_rewritten_operation_computes_the_same(name: str) -> None:
    function, gone = REWRITTEN[name]
    images = numbers(2, 3, 4, 5)
    graph = graph_of(Function(function), images)
    assert gone not in {node.kind for node in graph.nodes}
    assert_close(replayed(graph, images), function(images.clone()))


@pytest.mark.parametrize(
    "options",
    [
        *({}, {"bidirectional": True}, {"bias": False}, {"num_layers": 3}, {"num_layers": 2, "bias": False}),
        *({"num_layers": 2, "bidirectional": True}, {"num_layers": 3, "bidirectional": True, "bias": False}),
    ],
)
def test_a_recurrent_network_of_relus_is_written_out(options: dict[str, bool | int]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cell = nn.RNN(5, 4, nonlinearity="relu", batch_first=True, **options).double().eval()
    model = Model(lambda self, x: torch.cat([*self.cell(x)[0].unbind(1), *self.cell(x)[1].unbind(0)], 1), cell=cell)
    images = numbers(2, 3, 5)
    graph = graph_of(model, images)
    assert "rnn_relu" not in {node.kind for node in graph.nodes}
    gates = [node for node in graph.nodes if node.kind == "relu"]
    assert len(gates) == 2 * 3 * options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
    parameters = dict(model.named_parameters())
    graph.constants.update({value: parameters[name].detach() for name, value in graph.parameters.items()})
    assert_close(replayed(graph, images), model(images).detach())


WHOLE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "circular padding": (lambda: Function(lambda x: F.pad(x, (1, 2, 0, 1), mode="circular").relu()), (2, 3, 4, 5)),
    "einsum": (lambda: Function(lambda x: torch.einsum("bchw,wk->bkch", x, MATRIX).relu()), (2, 3, 4, 5)),
    "recurrent": (
        lambda: Model(lambda m, x: m.r(x)[0], r=nn.RNN(5, 4, nonlinearity="relu", batch_first=True).double()),
        (2, 3, 5),
    ),
}


@pytest.mark.parametrize("name", WHOLE)
def test_what_is_heard_whole_is_so_in_exported_programs(name: str) -> None:
    """There the functions of torch go by the names of operations."""
    build, shape = WHOLE[name]
    model, images = build().eval(), numbers(*shape)
    exported = torch.export.export(model, (images,)).module()
    kinds = [[node.kind for node in graph_of(one, images).nodes] for one in (model, exported)]
    assert kinds[0].count("relu") == kinds[1].count("relu") and {"copy", "bmm"}.isdisjoint(kinds[1])


def test_what_torchscript_writes_into_is_refused_with_what_to_do() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"), nn.ReLU()).double().eval()
    images = numbers(2, 3, 6, 6)
    with pytest.raises(
        PathxError, match=r"in place .*; give the module that it was made from, or save that with torch"
    ):
        graph_of(torch.jit.trace(model, images), images)  # type: ignore[no-untyped-call]


def test_strides_that_move_nothing_are_no_change() -> None:
    """Of dimensions of size 1 they say nothing; any other stride, size or beginning is another tensor."""
    x = numbers(2, 3, 1, 4)[1:]
    sizes, strides, start = tuple(x.shape), x.stride(), x.storage_offset()
    for same in ((sizes, strides), (list(sizes), strides, start), (sizes, (99, strides[1], 77, strides[3]), None)):
        run = _restrided(no_factor, x, *same)
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
        assert _restrided(no_factor, x, *other) is None


def no_factor(part: Tensor, whole: Tensor) -> None:
    return None


def test_only_a_mask_of_the_same_shape_and_one_number_is_a_filling() -> None:
    x = numbers(2, 3)
    mask, number = x < 0, torch.tensor(0.5).double()
    fill, fill_in = _filled(in_place=False), _filled(in_place=True)
    run = fill(no_factor, x, [mask], number)
    assert torch.equal(run(), x.masked_fill(mask, 0.5)) and x.min() < 0
    for other in (
        ([mask, mask], number),
        ([torch.tensor([1])], number),
        ([mask[0]], number),
        ([mask], number.expand(int(mask.sum()))),
        ([mask], number, True),
    ):
        assert fill(no_factor, x, *other) is None and fill_in(no_factor, x, *other) is None
    assert fill_in(no_factor, x, [mask], number)() is x and x.min() > 0


NORMS = [
    (order, dim, keep)
    for order in (1, 2, torch.inf, -torch.inf, 0)
    for dim in (None, [1], [0, 2])
    for keep in (True, False)
]


@pytest.mark.parametrize(("order", "dim", "keep"), NORMS)
def test_norms_of_absolute_values(order: float, dim: list[int] | None, keep: bool) -> None:
    x = numbers(2, 3, 4)
    run = _norm(no_factor, x, order, dim, keep)
    assert (run is None) == (order in (0, 2))
    if run is not None:
        assert_close(run(), torch.linalg.vector_norm(x, order, dim, keep))
        assert _norm(no_factor, x, order, dim, keep, torch.float32) is None
    assert _norm(no_factor, x) is None  # of squares, where nothing is said


def test_a_power_is_no_power_only_where_it_is_the_first() -> None:
    x = numbers(3)
    assert _power(no_factor, x, 2) is None and _power(no_factor, torch.arange(3), 1) is None
    run = _power(no_factor, x, 1.0)
    assert run is not None and torch.equal(run(), x) and run() is not x


@pytest.mark.parametrize("reduce", [torch.amax, torch.amin])
@pytest.mark.parametrize("dim", [0, -1, 2, (), (0, 2), (-1, -3), (2, 1, 0)])
@pytest.mark.parametrize("keep", [None, True, False])
def test_extremes_over_any_dimensions(reduce: Callable[..., Tensor], dim: object, keep: bool | None) -> None:
    x = numbers(2, 3, 4)
    rewrite = REWRITES[aten.amax.default if reduce is torch.amax else aten.amin.default]
    more = () if keep is None else (keep,)
    run = rewrite(no_factor, x, dim, *more)
    assert run is not None
    assert torch.equal(run(), reduce(x, dim, *more))
    if dim == ():
        assert torch.equal(rewrite(no_factor, x)(), reduce(x))  # type: ignore[misc]


EINSUMS = [
    ("bct,tk->bkc", (2, 3, 4), (4, 5)), ("tk,bct->bck", (4, 5), (2, 3, 4)), ("bct,ctk->bk", (2, 3, 4), (3, 4, 5)),
    ("b...t,tk->b...k", (2, 3, 3, 4), (4, 5)), ("...t,kt->...k", (2, 3, 4), (5, 4)), ("kt,...t->...k", (5, 4), (2, 3, 4)),
    (" b c t , t k -> b k c ", (2, 3, 4), (4, 5)), ("bct,kt->bck", (1, 3, 4), (5, 4)), ("bct,tkj->bjck", (2, 3, 4), (4, 5, 2)),
    ("b...,...k->bk", (2, 3, 4), (3, 4, 5)),
]  # fmt: skip
LEFT = [
    ("bct,bck->bkt", (2, 3, 4), (2, 3, 5)), ("bct,tk", (2, 3, 4), (4, 5)),
    ("bct,jk->bctjk", (2, 3, 4), (4, 5)), ("btt,tk->bk", (2, 4, 4), (4, 5)), ("bct,tk->ckb", (2, 3, 4), (4, 5)),
    ("bct,ttk->bck", (2, 3, 4), (4, 4, 5)), ("bt,bt->", (2, 4), (2, 4)), ("bct,tk->bkc", (2, 3, 4), (1, 5)),
    ("bt,bt->b", (2, 4), (2, 4)),
]  # fmt: skip


@pytest.mark.parametrize(("equation", "first", "second"), EINSUMS)
def test_a_sum_of_products_with_one_matrix_is_a_product(
    equation: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    one, other = numbers(*first), numbers(*second)
    for operands in ((one, other), ([one, other],)):
        made = _summed(equation, *operands)
        assert made is not None
        assert_close(made, torch.einsum(equation, one, other))


@pytest.mark.parametrize(("equation", "first", "second"), LEFT)
def test_any_other_sum_of_products_is_left_to_torch(
    equation: str, first: tuple[int, ...], second: tuple[int, ...]
) -> None:
    assert _summed(equation, numbers(*first), numbers(*second)) is None


def test_a_single_factor_and_factors_by_number_are_left_to_torch() -> None:
    x = numbers(2, 3)
    assert _summed("ij->ji", x) is None
    assert _summed(x, [0, 1], x.T, [1, 2], [0, 2]) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "pad", [(1, 0), (0, 2), (2, 1, 1, 0), (0, 0, 0, 3), (-1, 2), (1, -2, -1, 2), (-1, -1), (4, 4, 3, 3)]
)
def test_circular_padding(pad: tuple[int, ...]) -> None:
    x = numbers(2, 2, 4, 5)[:, :, : 4 if len(pad) == 4 else 1]
    x = x if len(pad) == 4 else x[:, :, 0]
    made = _padded(x, pad, "circular")
    assert made is not None and torch.equal(made, F.pad(x, pad, mode="circular"))
    assert _padded(x, pad) is None and _padded(x, pad, "reflect") is None


def test_circular_padding_of_volumes() -> None:
    x, pad = numbers(1, 2, 3, 4, 5), (1, 0, 2, 1, 0, 2)
    made = _padded(x, pad, "circular")
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
        run = REWRITES[aten.rrelu_with_noise.default](no_factor, x, x, *given)
        assert run is not None
        assert_close(run(), F.leaky_relu(x, slope))
    run = REWRITES[aten.rrelu_with_noise.default](no_factor, x, x, 0.1, 0.5, True)
    assert run is not None and not torch.equal(run(), run())


def test_where_memory_is_read_is_said_only_of_tensors_in_order() -> None:
    x = numbers(2, 3, 4)
    func = aten.as_strided.default
    for given, more, said in (
        (x, (), 0), (x, (5,), 5), (x, (None,), 0), (x[1:], (), None), (x[1:], (5,), None), (x.mT, (2,), None),
    ):  # fmt: skip
        args = (given, [2, 2], [2, 1], *more)
        assert spelled(func, args, args)[1][1:] == (([2, 2], [2, 1]) if said is None else ([2, 2], [2, 1], said))


def test_a_choice_between_two_things_stays_a_choice() -> None:
    found = graph_of(Function(lambda x: torch.maximum(x, x.flip(3))), numbers(2, 3, 4, 5))
    assert [node.kind for node in found.nodes][-1] == "maximum"


def test_factors_are_read_off_the_call() -> None:
    assert FACTORS["neg"](0, lambda: None) == -1.0
    assert FACTORS["mul"](1, lambda: 3) == 3
    assert FACTORS["div"](0, lambda: 4) == 0.25
    assert FACTORS["div"](1, lambda: 4) is None  # 4 / x is no multiple of x


def test_a_convolution_has_one_spelling() -> None:
    args = (*range(9), "benchmark", "deterministic")
    assert spelled(aten._convolution.default, args, args) == (aten.convolution.default, tuple(range(9)))
    assert spelled(aten.relu.default, (1,), (1,)) == (aten.relu.default, (1,))


def test_what_schemas_do_not_say_is_true() -> None:
    x, mean, variance = numbers(4, 3), torch.zeros(3).double(), torch.ones(3).double()
    aten.native_batch_norm(x, None, None, mean, variance, True, 0.1, 1e-5)
    assert mean.any() and not any(argument.alias_info for argument in aten.native_batch_norm.default._schema.arguments)
    told = UNSAID[aten.native_batch_norm]
    assert told((x, None, None, mean, variance, True)) == (mean, variance)
    assert told((x, None, None, mean, variance, False)) == ()
    parts = aten.unsafe_split.Tensor(x, 2)
    assert parts[0].untyped_storage()._cdata == x.untyped_storage()._cdata
    assert hands_out_parts(aten.unsafe_split.Tensor) and not hands_out_parts(aten.split.Tensor)
