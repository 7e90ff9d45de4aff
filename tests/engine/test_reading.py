"""A graph read as a network: which of its outputs are the logits, what images share, and what others read."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from support.modules import Model
from support.pulled import pictures
from torch import Tensor, nn

from pathx.engine.freeze import freeze

aten = torch.ops.aten


def named(outputs: Callable[[Tensor, Tensor], object]) -> Model:
    def forward(m: nn.Module, x: Tensor) -> object:
        features = F.relu(m.body(x))  # type: ignore[operator]
        return outputs(features, m.head(features))  # type: ignore[operator]

    return Model(forward, body=nn.Linear(12, 5), head=nn.Linear(5, 3)).double()


Named = namedtuple("Named", "features logits")


@dataclass
class Output:
    features: Tensor
    logits: Tensor


# What a model returns beside its logits (B, 3), made of features (B, 5).
RETURNED: dict[str, Callable[[Tensor, Tensor], object]] = {
    "by the name of logits": lambda f, y: {"logits": y, "out": 2 * y, "output": 3 * y},
    "by the name of out": lambda f, y: {"more": 2 * y, "output": 3 * y, "out": y},
    "by the name of output": lambda f, y: {"more": 2 * y, "output": y},
    "a named tuple": lambda f, y: Named(2 * f, y),
    "a dataclass": lambda f, y: Output(2 * f, y),
    "with nothing": lambda f, y: [None, y],
    "what was made last": lambda f, y: [f, y],
    "what was made last, first": lambda f, y: [y, f],
    "with whole numbers": lambda f, y: {"class": y.argmax(1), "scores": y},
    "with maps": lambda f, y: {"maps": f[:, :, None].expand(-1, -1, 2), "scores": y},
    "with what has another batch": lambda f, y: {"rows": f.t(), "scores": y},
    "with one number": lambda f, y: {"loss": f.sum(), "scores": y},
    "with one number per image as logits": lambda f, y: {"loss": f.sum(), "logits": y},
    "twice the same": lambda f, y: [y, y],
    "and its softmax": lambda f, y: [y.softmax(1), y],
    "deep": lambda f, y: {"a": [{"b": (f, y)}]},
    "dimensions of one": lambda f, y: y[:, None, :, None],
}


@pytest.mark.parametrize("name", RETURNED)
def test_the_logits_are_found_among_other_things(name: str) -> None:
    model, images = named(RETURNED[name]), pictures(2, 12)
    with torch.no_grad():
        expected = model.head(F.relu(model.body(images)))
        assert torch.equal(freeze(model, images).logits, expected)
