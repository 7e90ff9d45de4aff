"""What torch computes for all images together is put back so that each image has a row of its own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

import pathx
from pathx.engine.freeze import network_of
from pathx.engine.graph.folds import fold
from pathx.engine.graph.trace import trace

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=torch.float64)


SQUARE, WIDE, BIAS, SCALE, HEAD = numbers(4, 4), numbers(5, 4), numbers(5), numbers(3).abs() + 1, numbers(15, 2)

FOLDED: dict[str, tuple[Callable[[Tensor], Tensor], set[str], set[str]]] = {
    # by what it is: the function of (B, 3, 4), operations that are gone, operations that are there instead
    "a linear layer over several rows": (
        lambda x: F.relu(F.linear(x, WIDE, BIAS)),
        {"addmm"},
        {"matmul", "add"},
    ),
    "one without a bias": (lambda x: F.relu(F.linear(x, WIDE)), {"mm"}, {"matmul", "alias"}),
    "a sum of products": (lambda x: F.relu(torch.einsum("btc,cd->btd", x, WIDE.T)), {"bmm", "mm"}, {"matmul"}),
    "a product of all rows with one matrix": (
        lambda x: F.relu(torch.bmm(x.view(1, -1, 4), WIDE.T[None]).view(len(x), 3, 5)),
        {"bmm"},
        {"matmul"},
    ),
    "a fixed normalisation of instances": (
        lambda x: F.relu(F.instance_norm(x, BIAS[:3], SCALE, use_input_stats=False)),
        set(),
        {"native_batch_norm"},
    ),
    "an ensemble": (lambda x: torch.stack([F.relu(x), F.relu(x @ SQUARE)]).mean(0), set(), {"stack", "mean"}),
    "the best of an ensemble": (lambda x: torch.stack([F.relu(x), F.relu(-x)]).max(0).values, set(), {"stack", "max"}),
}


def model(name: str) -> Function:
    function = FOLDED[name][0]

    def forward(x: Tensor) -> Tensor:
        made = function(x).flatten(1)
        return made @ HEAD[: made.shape[1]]

    return Function(forward)


@pytest.mark.parametrize("name", FOLDED)
def test_a_batch_is_explained_as_its_images_are(name: str) -> None:
    images = numbers(3, 3, 4)
    together = pathx.explain(model(name), images, target=1, depth=1, width=4)
    for found, image in zip(together, images, strict=True):
        (alone,) = pathx.explain(model(name), image[None], target=1, depth=1, width=4)
        assert_close(found.attribution, alone.attribution)
        assert found.score == pytest.approx(alone.score)


@pytest.mark.parametrize("name", FOLDED)
def test_the_spelling_of_torch_is_gone_and_images_come_first(name: str) -> None:
    _, gone, there = FOLDED[name]
    network = network_of(model(name), numbers(3, 3, 4))
    kinds = {node.kind for node in network.nodes}
    hidden = {node.kind for node in network.nodes if len(network.graph.shapes[node.outputs[0].index]) == 3}  # type: ignore[union-attr]
    assert there <= kinds and not gone & hidden
    assert all(network.graph.shapes[gate.output.index][0] == 3 for layer in network.layers for gate in layer)


def test_what_is_in_no_known_way_together_stays_as_it_is() -> None:
    plain = Function(lambda x: F.relu(x @ SQUARE) @ HEAD[:4])
    graph = trace(plain, numbers(3, 4), lambda: lambda node, image: None)
    assert fold(graph).nodes == graph.nodes
