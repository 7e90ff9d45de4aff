"""Arithmetic: what is refused, and that a normalisation is a scale and a shift in every spelling."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.arithmetic import batch_norm, batch_norm_constant
from pathx.engine.rules.table import Call
from pathx.engine.window import Window

REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "divided": (lambda x: torch.ones(4) / (1 + F.relu(x)), "div in the model itself divides by what it computed"),
    "one over": (lambda x: 1 / F.relu(x), "reciprocal in the model itself is neither linear nor an activation"),
    "rounded": (lambda x: torch.div(F.relu(x), 2, rounding_mode="floor"), "rounds what it computed from the image"),
    "normalised": (
        lambda x: F.batch_norm(F.relu(x), None, None, training=True),
        "normalises by its batch's own statistics",
    ),
    "scaled by itself": (lambda x: F.batch_norm(F.relu(x), *x[:2].detach(), x[0]), "batch_norm in the model itself"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_linear_is_refused(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(PathxError, match=text):
        pathx.explain(Function(function), torch.rand(2, 4) + 0.5)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("short", [True, False], ids=["without a flag for training", "with one"])
def test_a_normalisation_is_a_scale_and_a_shift(affine: bool, short: bool) -> None:
    """The spellings differ in whether a flag stands before the numbers."""
    norm = nn.BatchNorm1d(3, eps=0.25, affine=affine).double().eval()
    mean, variance = torch.tensor([1.0, -2.0, 0.5]).double(), torch.tensor([4.0, 0.75, 2.0]).double()
    norm.running_mean, norm.running_var = mean, variance
    weight, bias = (
        (torch.tensor([2.0, -1.0, 3.0]).double(), torch.tensor([0.5, 0.0, 1.0]).double()) if affine else (None, None)
    )
    if affine:
        norm.weight, norm.bias = nn.Parameter(weight), nn.Parameter(bias)
    source, made = Value(0), Value(1)
    settings = (0.1, 0.25) if short else (False, 0.1, 0.25)
    args = (source, weight, bias, mean, variance, *settings)
    node = Node(0, torch.ops.aten.native_batch_norm.default, args, {}, (made,), None)  # type: ignore[arg-type]
    call = Call(node, args, {}, {source: (3,), made: (3,)}, {}, 1, True)
    row = torch.zeros(3, dtype=torch.long)
    cotangent = Window.full(torch.eye(3).double(), row, row)
    ((_, below),) = batch_norm(call, 0, cotangent)
    x = torch.tensor([[7.0, 8.0, 9.0]]).double()
    with torch.no_grad():
        assert_close((below.data @ x[0]) + batch_norm_constant(call, cotangent), norm(x)[0])


def test_a_product_is_a_gate_only_of_its_own_mask() -> None:
    """The same operation is a factor elsewhere."""
    mask = torch.tensor([1.0, 0.0, 2.0])
    found = freeze(Function(lambda x: F.relu(x) * mask @ torch.ones(3, 2)), torch.rand(1, 3)).network
    assert [[gate.node.kind for gate in layer] for layer in found.layers] == [["relu"]]
    found = freeze(Function(lambda x: x * (x > 0) @ torch.ones(3, 2)), torch.rand(1, 3)).network
    assert [[gate.node.kind for gate in layer] for layer in found.layers] == [["mul"]]
