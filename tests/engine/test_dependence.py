"""How values depend on the image, what is held, and what is refused for it."""

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

FROZEN, HELD, VARIES = Dependence.FROZEN, Dependence.HELD, Dependence.VARIES
WEIGHT = torch.arange(1.0, 17).reshape(4, 4)


def states(function: Callable[[Tensor], Tensor]) -> dict[str, Dependence]:
    """By operation, how what it makes depends on the image."""
    network = freeze(Function(function), torch.rand(2, 4) + 0.5).network
    return {node.kind: network.reading.states[node.outputs[0]] for node in network.graph.nodes if node.outputs[0]}


def test_states_follow_from_what_goes_in() -> None:
    found = states(lambda x: F.relu(x @ WEIGHT) * (x > 1) + WEIGHT.sum(0))
    assert "sum" not in found  # of weights alone: a constant
    assert found["gt"] is FROZEN  # constant around the image
    assert (found["mm"], found["relu"], found["mul"], found["add"]) == (VARIES,) * 4


def test_what_takes_only_a_shape_is_a_constant_and_whole_numbers_are_frozen() -> None:
    found = states(lambda x: F.relu(x) @ WEIGHT + torch.ones_like(x) + x.argmax(1, keepdim=True) + x.to(torch.int32))
    assert (found["argmax"], found["_to_copy"]) == (FROZEN, FROZEN) and "ones_like" not in found


def test_a_place_is_frozen_where_the_value_beside_it_varies() -> None:
    network = freeze(Function(lambda x: F.relu(x).max(1, keepdim=True)[0] @ WEIGHT[:1]), torch.rand(2, 4)).network
    (node,) = (node for node in network.graph.nodes if node.kind == "max")
    assert [network.reading.states[value] for value in node.outputs if value is not None] == [VARIES, FROZEN]


def test_what_made_a_held_factor_is_held_too() -> None:
    found = states(lambda x: (x @ WEIGHT).cos().sigmoid() * F.relu(x))
    assert (found["mm"], found["cos"], found["sigmoid"]) == (HELD,) * 3
    assert (found["relu"], found["mul"]) == (VARIES,) * 2


def test_what_nothing_is_linear_in_is_held_and_what_else_reads_it_is_not() -> None:
    """The same value carries the decision in one place and decides in another."""
    network = freeze(Function(lambda x: F.relu(x @ WEIGHT) * F.relu(x @ WEIGHT).sigmoid()), torch.rand(2, 4)).network
    kinds = {node.kind: node for node in network.nodes}
    assert network.reading.states[kinds["relu"].outputs[0]] is VARIES  # type: ignore[index]
    assert network.reading.states[kinds["sigmoid"].outputs[0]] is HELD  # type: ignore[index]
    assert network.reading.exact == "image"


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
    assert states(lambda x: F.relu(x) @ WEIGHT * function(x).sigmoid())["sigmoid"] is HELD


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
