"""The pieces of a graph: arguments, names, and operations that write and those that compute the same."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function, Model
from torch import Tensor, nn

from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.record.model import named_tensors
from pathx.engine.record.operations import Value
from pathx.engine.record.recorder import record

aten = torch.ops.aten
ONE, TWO, THREE = Value(1), Value(2), Value(3)


def kinds(model: nn.Module, images: Tensor) -> list[str]:
    """The operations that are noted of a model."""
    return [node.kind for node in record(model, images, lambda image: lambda node, shapes: ()).graph.nodes]


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


def written_through(x: Tensor) -> Tensor:
    """A part that is changed, and the whole that is read."""
    y = x * 1
    part = y[:, :2]
    part.mul_(3)
    return y + 1


def test_what_is_written_through_another_name_is_sorted_out() -> None:
    assert "slice_scatter" in kinds(Function(written_through), torch.rand(2, 4))
    assert kinds(Function(lambda x: (x * 1).mul_(3) + 1), torch.rand(2, 4)) == ["mul", "mul", "add"]


def test_common_subexpressions_are_noted_once() -> None:
    twice = Function(lambda x: F.relu(x * 2) + F.relu(x * 2) - F.relu(x * 3))
    assert kinds(twice, torch.rand(2, 4)) == ["mul", "relu", "add", "mul", "relu", "sub"]
    changed = Function(lambda x: (a := x * 2, b := x * 2, a.mul_(3), a + b)[3])  # one of two that were the same
    assert kinds(changed, torch.rand(2, 4)) == ["mul", "mul", "add"]


class Writing(nn.Module):
    """Writes into its tensor by a name that nothing shows to be the same."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.ones(3)

    def forward(self, x: Tensor) -> Tensor:
        x = x * self.own
        self.own.data.zero_()
        return x + self.own


def test_what_is_fixed_is_read_as_it_was_written_under_another_name_and_stays_the_models() -> None:
    model, x = Writing(), torch.rand(2, 3)
    for _ in range(2):
        assert kinds(model, x) == ["mul", "add"]
        assert model.own.tolist() == [1.0] * 3
    network = freeze(Model(lambda m, x: F.relu(m.inner(x)) @ torch.eye(3), inner=model), x)
    assert torch.equal(network.logits, x)


class Keeping(nn.Module):
    """Writes the image into its tensor by such a name."""

    def __init__(self) -> None:
        super().__init__()
        self.own = torch.ones(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        own = self.own
        own.detach().copy_(x)
        return x + own


def test_what_cannot_be_sorted_out_is_refused() -> None:
    for model in (Keeping(), Model(lambda m, x: m.inner(x * 2 + 3 - 1) + 1, inner=Keeping())):
        with pytest.raises(PathxError, match="writes what it computed from the image into a tensor of its own"):
            kinds(model, torch.rand(2, 3))
