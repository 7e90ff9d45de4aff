"""What is refused for how it depends on the image, and what may decide all the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from torch import Tensor

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze

WEIGHT = torch.arange(1.0, 17).reshape(4, 4)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "decides": (lambda x: F.relu(x) if x.sum() > 0 else x, "decides by the values of its input"),
    "random": (lambda x: F.relu(x + torch.rand(4)), "draws random numbers"),
    "bends": (lambda x: F.relu(torch.cos(x)), "cos in the model itself is neither linear nor an activation"),
    "no rule": (lambda x: F.relu(x.lgamma()), "pathx has no rule for lgamma"),
    "product": (lambda x: F.relu(x * x.flip(1)), "multiplies two values that it computed from the image"),
    "picks": (lambda x: F.relu(x).index_select(1, x.argmax(1)), "computes an operand of index_select"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_which_operation_rules_a_model_out(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(PathxError, match=text) as refused:
        pathx.explain(Function(function), torch.rand(2, 4) + 0.5)
    assert refused.value.usage


@pytest.mark.parametrize("name", ["bends", "no rule", "product"])
def test_what_is_refused_where_it_carries_the_decision_may_decide(name: str) -> None:
    """As a factor that is held, with all that made it."""
    function, _ = REFUSED[name]
    frozen = freeze(Function(lambda x: F.relu(x) @ WEIGHT * function(x).sigmoid()), torch.rand(2, 4) + 0.5)
    assert frozen.network.reading.exact == "image"


def test_a_batch_that_is_mixed_is_refused_with_the_way_out() -> None:
    for function, text in (
        (lambda x: F.relu(x - x.mean(0)), "mean in the model itself works along the batch"),
        (
            lambda x: F.relu(x.reshape(-1)).cumsum(0).reshape(2, 4),
            "without the batch of 2 in front; keep the images in the first dimension",
        ),
    ):
        with pytest.raises(PathxError, match=text):
            pathx.explain(Function(function), torch.rand(2, 4), depth=1)


def test_a_batch_that_leaves_the_front_and_is_not_mixed_is_explained_image_by_image() -> None:
    images = torch.rand(2, 4)
    frozen = freeze(Function(lambda x: F.relu(x.reshape(-1)).reshape(-1, 4) @ WEIGHT), images)
    assert [part.images.tolist() for part in frozen.parts] == [[image] for image in images.tolist()]
    assert not frozen.kept
