"""Tensors of a model that it writes into by another name: read as they were written, or refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.modules import Model
from torch import Tensor, nn

from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.record.recorder import record


def kinds(model: nn.Module, images: Tensor) -> list[str]:
    """The operations that are noted of a model."""
    return [node.kind for node in record(model, images, lambda image: lambda node, shapes: ()).graph.nodes]


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
