"""Law 7: a model is explained as it rests, in eval mode, and is afterwards what it was, also after an exception."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError

pytestmark = pytest.mark.usefixtures("one_thread")


class MergingLinear(nn.Linear):
    """A low-rank update of a weight as loralib writes it: merged in eval mode, taken out again for training."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.a, self.b = nn.Parameter(torch.randn(2, inputs)), nn.Parameter(torch.randn(outputs, 2))
        self.merged = False

    def train(self, mode: bool = True) -> MergingLinear:
        super().train(mode)
        if self.merged == mode:
            self.weight.data += (-1 if mode else 1) * (self.b @ self.a).data
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        update = 0 if self.merged else x @ self.a.T @ self.b.T
        return F.linear(x, self.weight, self.bias) + update


class MergingConv(nn.Conv2d):
    """Folds a scale into its weight when it is put to rest."""

    def eval(self) -> Any:
        self.weight.data *= 3
        return super().eval()


def merging() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        MergingConv(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), MergingLinear(8, 4), nn.Dropout(), nn.ReLU(), nn.Linear(4, 2)
    ).train()  # fmt: skip


def test_a_model_in_training_mode_keeps_its_weights() -> None:
    model, images = merging(), torch.randn(2, 1, 4, 4)
    before = copy.deepcopy(model.state_dict())
    modes = [module.training for module in model.modules()]
    scores = []
    for _ in range(3):
        found = pathx.explain(model, images, target=0, depth=1)
        scores.append(torch.stack([one.logits for one in found]))
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert [module.training for module in model.modules()] == modes
    assert torch.equal(scores[0], scores[1]) and torch.equal(scores[0], scores[2])
    for module in model.modules():
        module.training = False
    assert_close(scores[0], model(images).detach())


@pytest.mark.parametrize("part", [0, 4])
def test_modes_come_back_after_an_exception(part: int) -> None:
    model = merging()
    model[1].training = False
    modes = [module.training for module in model.modules()]

    def fail(*_: object) -> None:
        raise ValueError("not now")

    model[part].register_forward_hook(fail)
    with pytest.raises(PathxError, match="not now"):
        pathx.explain(model, torch.randn(1, 1, 4, 4))
    assert [module.training for module in model.modules()] == modes
