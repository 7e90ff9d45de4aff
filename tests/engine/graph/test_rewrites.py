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

from pathx.engine.graph.rewrites import FACTORS, UNSAID, hands_out_parts, spelled
from pathx.engine.graph.trace import Graph, trace
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
    "options", [{}, {"bidirectional": True}, {"bias": False}, {"num_layers": 2, "bidirectional": True}]
)
def test_a_recurrent_network_of_relus_is_written_out(options: dict[str, bool | int]) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        cell = nn.RNN(5, 4, nonlinearity="relu", batch_first=True, **options).double().eval()
    model = Model(lambda self, x: self.cell(x)[0], cell=cell)
    images = numbers(2, 3, 5)
    graph = graph_of(model, images)
    assert "rnn_relu" not in {node.kind for node in graph.nodes}
    gates = [node for node in graph.nodes if node.kind == "relu"]
    assert len(gates) == 3 * options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
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
