"""How values depend on the image, and what is refused for it before the model has run to its end."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from torch import Tensor

import pathx
from pathx import PathxError
from pathx.engine.dependence import Dependence
from pathx.engine.freeze import freeze

FIXED, FROZEN, VARIES = Dependence.FIXED, Dependence.FROZEN, Dependence.VARIES
WEIGHT = torch.arange(1.0, 17).reshape(4, 4)


def states(function: Callable[[Tensor], Tensor]) -> dict[str, Dependence]:
    """By operation, how what it makes depends on the image."""
    network = freeze(Function(function), torch.rand(2, 4) + 0.5).network
    return {node.kind: network.reading.states[node.outputs[0]] for node in network.graph.nodes if node.outputs[0]}


def test_states_follow_from_what_goes_in() -> None:
    found = states(lambda x: F.relu(x @ WEIGHT) * (x > 1) + WEIGHT.sum(0))
    assert found["sum"] is FIXED  # of weights alone
    assert found["gt"] is FROZEN  # constant around the image
    assert (found["mm"], found["relu"], found["mul"], found["add"]) == (VARIES,) * 4


def test_what_takes_only_a_shape_is_fixed_and_whole_numbers_are_frozen() -> None:
    found = states(lambda x: F.relu(x) @ WEIGHT + torch.ones_like(x) + x.argmax(1, keepdim=True) + x.to(torch.int32))
    assert (found["ones_like"], found["argmax"], found["_to_copy"]) == (FIXED, FROZEN, FROZEN)


def test_a_place_is_frozen_where_the_value_beside_it_varies() -> None:
    network = freeze(Function(lambda x: F.relu(x).max(1, keepdim=True)[0] @ WEIGHT[:1]), torch.rand(2, 4)).network
    (node,) = (node for node in network.graph.nodes if node.kind == "max")
    assert [network.reading.states[value] for value in node.outputs if value is not None] == [VARIES, FROZEN]


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "decides": (lambda x: F.relu(x) if x.sum() > 0 else x, "decides by the values of its input"),
    "random": (lambda x: F.relu(x + torch.rand(4)), "draws random numbers"),
    "bends": (lambda x: F.relu(torch.tanh(x)), "tanh in the model itself is not linear for a given input"),
    "no rule": (lambda x: F.relu(torch.trapezoid(x.lgamma())), "pathx has no rule for lgamma"),
    "product": (lambda x: F.relu(x * x.flip(1)), "multiplies or divides by what it computed"),
    "picks": (lambda x: F.relu(x).index_select(1, x.argmax(1)), "computes an operand of index_select"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_comes_at_the_operation_and_not_at_the_end(name: str) -> None:
    function, text = REFUSED[name]
    ended = []

    def forward(x: Tensor) -> Tensor:
        made = function(x)
        ended.append(made)
        return made

    with pytest.raises(PathxError, match=text.replace("(", "\\(")) as refused:
        pathx.explain(Function(forward), torch.rand(2, 4) + 0.5)
    assert refused.value.usage and not ended


def test_a_batch_that_is_mixed_is_refused_with_the_way_out() -> None:
    for function, text in (
        (lambda x: F.relu(x - x.mean(0)), "mean in the model itself works along the batch"),
        (
            lambda x: F.relu(x.reshape(-1)).reshape(2, 4),
            "without the batch of 2 in front; keep the images in the first dimension",
        ),
    ):
        with pytest.raises(PathxError, match=text):
            pathx.explain(Function(function), torch.rand(2, 4))
