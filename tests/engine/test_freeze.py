"""A frozen network: its logits, its gates at the images, and what is asked of a call."""

from __future__ import annotations

import copy
import math

import numpy
import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from torch import Tensor, nn
from torch.testing import assert_close

from pathx import PathxError
from pathx.engine.freeze import freeze, network_of
from pathx.engine.record import recorder
from pathx.engine.replay import Replay


def test_what_is_remembered_is_bounded_and_shared_by_models_that_do_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv1d(1, 2, 3), nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(2, 2))
    network = network_of(model, torch.rand(1, 1, 5))
    assert network_of(copy.deepcopy(model), torch.rand(1, 1, 5)) is network
    monkeypatch.setattr(recorder, "MOST_STEPS", 30)
    for size in range(6, 12):
        network_of(model, torch.rand(1, 1, size))
    assert network_of(model, torch.rand(1, 1, 5)) is not network


PRECISIONS = {
    "casts to the default type": lambda x: x.to(torch.float32) * 2,
    "a type of one's own": lambda x: x * torch.ones(6, dtype=torch.float16),
    "in place": lambda x: x.mul_(torch.full((6,), 3.0)),
    "written into": lambda x: torch.zeros_like(x, dtype=torch.float32).add_(x),
}


@pytest.mark.parametrize("name", PRECISIONS)
def test_a_network_is_computed_as_precisely_as_its_images(name: str) -> None:
    """Whatever types its own operations name, when it is replayed as well."""
    torch.manual_seed(0)
    first, last = nn.Conv2d(3, 4, 3), nn.Linear(4 * 36, 3)

    def forward(x: Tensor) -> Tensor:
        return last(F.relu(PRECISIONS[name](first(x))).flatten(1))  # type: ignore[no-any-return]

    model, images = Function(forward), torch.randn(2, 3, 8, 8, dtype=torch.float64)
    model.first, model.last = first, last
    frozen = freeze(model, images)
    replayed = Replay(model, images)(images)
    assert frozen.logits.dtype == replayed.dtype == torch.float64
    assert_close(replayed.detach(), frozen.logits, rtol=1e-12, atol=1e-12)
    assert_close(frozen.logits.float(), model(images.float()).detach())


@pytest.mark.parametrize(
    ("first", "second", "refused"),
    [(1.0, 1.0, False), (1.0, 2.0, True), (math.nan, math.nan, False), (math.nan, 1.0, True), (1.0, math.nan, True)],
)
def test_a_tensor_that_a_model_makes_again_must_be_the_same_for_another_image(
    first: float, second: float, refused: bool
) -> None:
    """A number that is none is like itself."""
    images = torch.rand(2, 3)
    values = iter([first, second])  # recorded, and then tried with another image

    def forward(x: Tensor) -> Tensor:
        made = torch.from_numpy(numpy.full(3, next(values), dtype=numpy.float32))
        return F.relu(x) @ torch.ones(3, 2) + made.nan_to_num()[:2]

    if refused:
        with pytest.raises(PathxError, match="come from outside of torch and change"):
            freeze(Function(forward), images)
    else:
        assert freeze(Function(forward), images).network.depth == 1
