"""Law 11, argument by argument: whatever a call is given that it was not given when it was recorded is seen.

What comes out has the same shape either way, so that nothing else tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.modules import assert_gradient
from torch import Tensor, nn
from torch.testing import assert_close

import pathx

IMAGES = torch.randn(2, 3, 4, 4, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
FIRST, SECOND = (
    torch.randn(4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) for seed in (1, 2)
)
ALL = torch.ones(4, dtype=torch.float64)

# What a model does with its maps by a setting, and the setting before and after.
CHANGES: dict[str, tuple[Callable[[Tensor, Any], Tensor], Any, Any]] = {
    "a list": (lambda x, s: x.permute(s), [0, 1, 3, 2], [*[0, 2, 1, 3][:1], 1, 2, 3]),
    "a longer tuple": (lambda x, s: x.flip(s), (2,), (2, 3)),
    "a number by name": (lambda x, s: torch.add(x, FIRST, alpha=s), 2, 3),
    "a number by name, left out": (lambda x, s: torch.add(x, FIRST, **s), {"alpha": 2}, {}),
    "yes and no": (lambda x, s: F.avg_pool2d(x, 3, 1, 1, count_include_pad=s), True, False),
    "not None": (lambda x, s: x.clamp(s, 0.5), -0.1, None),
    "a whole number for yes": (lambda x, s: x * s, True, 2),
    "one tensor twice": (lambda x, s: x * s[0] + s[1], (FIRST, FIRST), (FIRST, SECOND)),
    "tensors the other way round": (lambda x, s: x * s[0] + s[1], (FIRST, SECOND), (SECOND, FIRST)),
    "which value": (lambda x, s: (a := 2 * x, b := F.relu(x), b - a if s else a - b)[2], True, False),
    "the same value twice": (lambda x, s: (a := 2 * x, b := F.relu(x), a - (a if s else b) + b)[2], True, False),
    "a list of values": (lambda x, s: torch.cat([2 * x, x][:: 1 if s else -1], 1)[:, :3], True, False),
    "how many values": (
        lambda x, s: torch.cat([x, 2 * x, 3 * x][:s], 1)[:, :3].sum(1, keepdim=True).expand_as(x),
        2,
        3,
    ),
    "how large a choice is": (
        lambda x, s: x[:, :, s.nonzero()[:, 0]].sum(2, keepdim=True).expand_as(x),
        ALL,
        FIRST[0] > 0,
    ),
    "an operation more": (lambda x, s: x * 1 if s else F.relu(x * 1) + x, True, False),
    "another operation": (lambda x, s: s(x), torch.abs, torch.neg),
}


class Changing(nn.Module):
    def __init__(self, function: Callable[[Tensor, Any], Tensor], setting: Any) -> None:
        super().__init__()
        self.function, self.setting = function, setting
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.body, self.head = nn.Conv2d(3, 3, 1), nn.Linear(48, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.function(self.body(x), self.setting)
        result: Tensor = self.head(F.relu(x).flatten(1))
        return result


@pytest.mark.parametrize("name", CHANGES)
def test_what_a_call_is_given_now_counts(name: str) -> None:
    function, before, after = CHANGES[name]
    model = Changing(function, before).double()
    for setting in (before, after, before):
        model.setting = setting
        assert_gradient(model, IMAGES)


RETURNED: dict[str, tuple[Callable[[Tensor, Tensor], Any], Callable[[Tensor, Tensor], Any]]] = {
    "another of two": (lambda a, b: {"logits": a, "more": b}, lambda a, b: {"logits": b, "more": a}),
    "a key less": (lambda a, b: {"logits": a, "out": b}, lambda a, b: {"out": b}),
    "no dict any more": (lambda a, b: {"logits": a, "out": b}, lambda a, b: b),
    "no list any more": (lambda a, b: [a, None], lambda a, b: b),
    "a tensor for a number": (lambda a, b: {"logits": a, "out": 1}, lambda a, b: {"logits": b, "out": a}),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_model_returns_now_counts(name: str) -> None:
    class Returning(Changing):
        def forward(self, x: Tensor) -> Any:
            x = super().forward(x)
            first, second = x * 2, x * -3
            return self.setting(first, second)

    model = Returning(lambda x, s: x, RETURNED[name][0]).double()
    for number, factor in ((0, 2), (1, -3), (0, 2)):
        model.setting = RETURNED[name][number]
        with torch.no_grad():
            expected = factor * Changing.forward(model, IMAGES)
        found = pathx.explain(model, IMAGES, depth=1)
        assert_close(torch.stack([one.logits for one in found]), expected)
