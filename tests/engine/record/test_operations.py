"""The pieces of a graph: arguments, names, and operations that write and those that compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function, Model
from torch import Tensor, nn

from pathx import PathxError
from pathx.engine.record.operations import Scope
from pathx.engine.record.operations import (
    Graph,
    Node,
    Value,
    factor_of,
    filled,
    in_place,
    modules_of,
    named_tensors,
    out_of_place,
    trace,
    values_in,
)

aten = torch.ops.aten
ONE, TWO, THREE = Value(1), Value(2), Value(3)


def node(op: Any, *args: Any, scope: Scope | None = None, **kwargs: Any) -> Node:
    return Node(0, op, args, kwargs, (THREE,), scope or Scope())


def graph_of(model: nn.Module, images: Tensor) -> Graph:
    return trace(model, images, lambda: lambda node, image: None)


def test_values_are_found_wherever_they_are() -> None:
    assert values_in([ONE, (2, [TWO]), "a", ONE]) == [ONE, TWO, ONE] and values_in(3) == []
    assert filled([1, (2, [3])], lambda leaf: leaf * 2) == [2, [4, [6]]]
    assert node(aten.cat.default, [ONE, TWO], 1).inputs == [ONE, TWO]
    assert node(aten.add.Tensor, ONE, 2, alpha=TWO).inputs == [ONE, TWO]


def test_names_of_calls() -> None:
    plain = node(aten._softmax.default, ONE, 1, False)
    assert (plain.kind, plain.op_name, plain.module) == ("_softmax", "softmax", "the model itself")
    assert (plain.place, plain.name) == ("softmax in the model itself", "softmax")
    inner = node(aten.relu.default, ONE, scope=Scope("a.b", True))
    assert (inner.place, inner.name) == ("relu in a.b", "a.b")
    assert node(aten.relu.default, ONE, scope=Scope("a.b")).name == "a.b.relu"
    other = node(torch.ops.prims.abs.default, ONE)
    assert (other.kind, other.place) == ("prims.abs", "prims.abs in the model itself")


@pytest.mark.parametrize(
    ("func", "plain"),
    [
        (aten.add_.Tensor, aten.add.Tensor), (aten.relu_.default, aten.relu.default), (aten.add.out, None),
        (aten.index_put_.default, aten.index_put.default), (aten._foreach_add_.Scalar, aten._foreach_add.Scalar),
        (aten.relu.default, None),
    ],
)  # fmt: skip
def test_the_operation_that_computes_what_one_writes(func: Any, plain: Any) -> None:
    assert out_of_place(func) is plain
    if plain is not None:
        assert in_place(plain) is func


def test_a_factor_is_read_off_the_call_that_made_it() -> None:
    tensors = {TWO: torch.tensor(4.0)}
    for made, factor in (
        (node(aten.mul.Tensor, ONE, 3.0), 3.0), (node(aten.mul.Tensor, 3.0, ONE), 3.0), (node(aten.mul.Tensor, ONE, TWO), 4.0),
        (node(aten.mul.Tensor, TWO, ONE), 4.0), (node(aten.div.Tensor, ONE, TWO), 0.25), (node(aten.div.Tensor, TWO, ONE), None),
        (node(aten.neg.default, ONE), -1.0), (node(aten.add.Tensor, ONE, 3.0), None), (node(aten.mul.Tensor, THREE, 3.0), None),
        (None, None),
    ):  # fmt: skip
        assert factor_of(made, ONE, tensors.__getitem__) == factor
    assert factor_of(node(aten.mul.Tensor, ONE, 3.0), None, tensors.__getitem__) is None


def test_every_tensor_of_a_model_has_its_first_name() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.extra = model[0].bias
    model.plain = torch.ones(1)
    model[1].shared = model.plain
    model.unset = None
    names = [name for name, _ in named_tensors(model)]
    assert names == [
        "extra",
        "plain",
        "0.weight",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
    ]


def test_every_module_comes_once() -> None:
    inner = nn.ReLU()
    model = nn.Sequential(inner, nn.Sequential(inner, nn.Identity()))
    model.register_module("nothing", None)
    found = list(modules_of(model))
    assert {id(one) for one in found} == {id(one) for one in model.modules()} and len(found) == 4


def test_a_graph_says_what_lay_in_order_and_where_code_ran() -> None:
    model = Model(lambda m, x: m.a(x.t()).t() * 2, a=nn.Linear(2, 3))
    graph = graph_of(model, torch.rand(2, 4))
    kinds = {node.kind: node for node in graph.nodes}
    assert graph.framed and not graph.functional
    made = {kind: graph.contiguous[one.outputs[0].index] for kind, one in kinds.items() if one.outputs[0] is not None}
    assert made["addmm"] and not made["t"]
    assert kinds["addmm"].scope == Scope("a", True) and kinds["mul"].scope == Scope("", False)
    scripted = graph_of(torch.jit.script(nn.Sequential(nn.Linear(2, 3), nn.ReLU())), torch.rand(4, 2))
    assert not scripted.framed and [node.name for node in scripted.nodes if node.kind == "relu"] == ["1"]


def written_through(x: Tensor) -> Tensor:
    """A part that is changed, and the whole that is read."""
    y = x * 1
    part = y[:, :2]
    part.mul_(3)
    return y + 1


def test_what_is_written_through_another_name_is_sorted_out() -> None:
    graph = graph_of(Function(written_through), torch.rand(2, 4))
    assert graph.functional and "slice_scatter" in {node.kind for node in graph.nodes}
    plain = graph_of(Function(lambda x: (x * 1).mul_(3) + 1), torch.rand(2, 4))
    assert not plain.functional and [node.kind for node in plain.nodes] == ["mul", "mul", "add"]


def test_parts_that_are_changed_without_regard_to_each_other() -> None:
    graph = graph_of(
        Function(lambda x: torch.cat([F.relu_(part) for part in torch.unsafe_split(x * 1, 2, 1)], 1)), torch.rand(2, 4)
    )
    assert not graph.functional and [node.kind for node in graph.nodes].count("relu") == 2


class Writing(nn.Module):
    """Writes into its tensor by a name that nothing shows to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        self.own.data.zero_()
        return x + self.own


def test_what_cannot_be_sorted_out_is_refused_with_its_module() -> None:
    for model, place in (
        (Writing(), "the model itself"),
        (Model(lambda m, x: m.inner(x * 2 + 3 - 1) + 1, inner=Writing()), "inner"),
    ):
        with pytest.raises(PathxError, match=f"changes a tensor in place in {place} that it also reads elsewhere"):
            graph_of(model, torch.rand(2, 3))
