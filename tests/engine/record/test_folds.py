"""What torch computes for all images together is put back so that each image has a row of its own."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.pulled import assert_as_autograd
from support.small import seeded
from torch import Tensor
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.freeze import network_of
from pathx.engine.record.spellings import fold
from pathx.engine.record.operations import trace

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


# --- what looks alike ----------------------------------------------------------------------------------------------------

MEAN, VARIANCE, NINE = numbers(3), numbers(3).abs() + 1, numbers(9).abs() + 1
MATRICES = numbers(3, 4, 5)
OWN = {count: numbers(3 * count).abs() + 1 for count in (1, 2, 3)}


def normed(x: Tensor, mean: Tensor, variance: Tensor, *affine: Tensor | None) -> Tensor:
    """Instances as channels of one image."""
    return F.batch_norm(x.reshape(1, -1, *x.shape[2:]), mean, variance, *affine).view(x.shape)


def stacked(x: Tensor, dim: int = 0) -> Tensor:
    return torch.stack([F.relu(x), 2 * F.relu(-x), F.relu(x @ SQUARE)], dim)


ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(F.relu(x), WIDE, BIAS),
    "linear, of four dimensions": lambda x: F.linear(F.relu(x)[:, None], WIDE, BIAS),
    "linear, its rows in another shape": lambda x: F.linear(F.relu(x), WIDE, BIAS).reshape(len(x), 15),
    "linear, of rows put together": lambda x: F.linear(F.relu(x).reshape(-1, 4), WIDE, BIAS).reshape(len(x), 3, 5),
    "linear, read twice": lambda x: (
        y := F.linear(F.relu(x).reshape(-1, 4), WIDE),
        y.view(len(x), 3, 5),
        y.view(len(x), 15),
    )[1].flatten(1),
    "linear, both of two views": lambda x: (
        y := F.linear(F.relu(x).view(-1, 4), WIDE),
        y.view(-1, 3, 5) + y.view(-1, 3, 5),
    )[1],
    "addmm, with factors": lambda x: torch.addmm(BIAS, F.relu(x).view(-1, 4), WIDE.T, alpha=2).view(len(x), 3, 5),
    "mm, other rows": lambda x: (F.relu(x).view(-1, 4) @ WIDE.T).view(len(x), 5, 3),
    "mm, as many columns": lambda x: (F.relu(x).view(-1, 2) @ SQUARE[:2, :2]).view(len(x), 3, 4),
    "mm, other columns": lambda x: (F.relu(x).view(-1, 2) @ WIDE.T[:2]).view(len(x), 3, 10),
    "instances": lambda x: normed(F.relu(x), MEAN.repeat(len(x)), VARIANCE.repeat(len(x))),
    "instances, with weights": lambda x: normed(
        F.relu(x), MEAN.repeat(len(x)), VARIANCE.repeat(len(x)), SCALE.repeat(len(x)), MEAN.repeat(len(x))
    ),
    "instances, with a weight alone": lambda x: normed(
        F.relu(x), MEAN.repeat(len(x)), VARIANCE.repeat(len(x)), SCALE.repeat(len(x)), None
    ),
    "instances, maps": lambda x: normed(F.relu(x)[..., None], MEAN.repeat(len(x)), VARIANCE.repeat(len(x))),
    "instances, each with its own": lambda x: normed(F.relu(x), NINE[: 3 * len(x)], NINE[: 3 * len(x)]),
    "instances, each with numbers of its own": lambda x: normed(F.relu(x), OWN[len(x)], OWN[len(x)]),
    "instances, put side by side": lambda x: normed(
        F.relu(x), torch.cat([MEAN] * len(x)), torch.cat([VARIANCE, *[SCALE] * (len(x) - 1)])
    ),
    "instances, of other channels": lambda x: F.batch_norm(
        F.relu(x).reshape(1, -1, 2), MEAN.repeat(2 * len(x)), VARIANCE.repeat(2 * len(x))
    ).view(x.shape),
    "instances, of no batch": lambda x: F.batch_norm(F.relu(x).view(-1, 3, 2, 2), MEAN, VARIANCE).view(x.shape),
    "bmm, one matrix": lambda x: torch.bmm(F.relu(x).view(1, -1, 4), WIDE.T[None]).view(len(x), 3, 5),
    "bmm, one matrix, other rows": lambda x: torch.bmm(F.relu(x).view(1, -1, 2), WIDE.T[None, :2]).view(len(x), 6, 5),
    "bmm, one matrix, read twice": lambda x: (
        rows := F.relu(x).view(1, -1, 4),
        torch.bmm(rows, WIDE.T[None]).view(len(x), 3, 5).flatten(1) + rows.view(len(x), 12).sum(1, keepdim=True),
    )[1],
    "bmm, repeated": lambda x: torch.bmm(F.relu(x).view(-1, 1, 4), WIDE.T.expand(3 * len(x), 4, 5)).view(len(x), 3, 5),
    "bmm, repeated and made whole": lambda x: torch.bmm(
        F.relu(x).view(-1, 1, 4), WIDE.T.expand(3 * len(x), 4, 5).reshape(-1, 4, 5)
    ).view(len(x), 3, 5),
    "bmm, repeated from a view": lambda x: torch.bmm(
        F.relu(x).view(3 * len(x), 1, 4), WIDE.T.expand(len(x), 3, 4, 5).reshape(-1, 4, 5)
    ).view(len(x), 3, 5),
    "bmm, several matrices": lambda x: torch.bmm(
        F.relu(x).view(3 * len(x), 1, 4), MATRICES.expand(len(x), 3, 4, 5).reshape(-1, 4, 5)
    ).view(len(x), 3, 5),
    "bmm, of each image": lambda x: torch.bmm(F.relu(x), MATRICES[: len(x)]),
    "matmul, from the left": lambda x: SQUARE[:, :3] @ F.relu(x),
    "matmul, of maps from the left": lambda x: SQUARE[:, :3] @ F.relu(x)[:, None].expand(-1, 2, -1, -1),
    "matmul, of maps": lambda x: F.relu(x)[:, None] @ WIDE.T,
    "matmul, a matrix for every channel": lambda x: F.relu(x)[:, :, None] @ MATRICES,
    "matmul, of maps, read by another": lambda x: F.relu(MATRICES.mT @ F.relu(x)[:, :, :, None]).squeeze(3),
    "bmm, of maps, read as it is": lambda x: F.relu(
        torch.bmm(MATRICES.mT.repeat(len(x), 1, 1), F.relu(x).view(-1, 4, 1))
    ).view(len(x), 15),
    "einsum": lambda x: torch.einsum("btc,cd->bdt", F.relu(x), WIDE.T),
    "einsum, of all": lambda x: torch.einsum("btc,tcd->bd", F.relu(x), MATRICES),
    **{
        f"ensemble, {name}": (lambda x, reduce=reduce: reduce(stacked(x)))
        for name, reduce in {
            "mean": lambda y: y.mean(0),
            "sum": lambda y: y.sum(0),
            "sum, of a list": lambda y: y.sum([0]),
            "max": lambda y: y.max(0)[0],
            "min": lambda y: y.min(0)[0],
            "median": lambda y: y.median(0)[0],
            "select": lambda y: y[1],
            "select, the last": lambda y: y[-1],
            "twice": lambda y: y.mean(0) + y[0],
            "kept": lambda y: y.mean(0, keepdim=True)[0],
            "kept, of max": lambda y: y.max(0, keepdim=True)[0][0],
            "another dimension": lambda y: y.mean(2)[0],
            "two dimensions": lambda y: y.mean((0, 2)),
            "of two kinds": lambda y: y.mean(0) + y.flip(0)[0],
            "amax": lambda y: y.amax(0),
            "nothing": lambda y: y.flatten(0, 1)[: y.shape[1]],
        }.items()
    },
    "ensemble, from the end": lambda x: stacked(x, -4).mean(0),
    "ensemble, after the batch": lambda x: stacked(x, 1).mean(1),
    "ensemble, over the images": lambda x: stacked(x, 1).mean(0)[: len(x)],
    "ensemble, at the end": lambda x: stacked(x, 3).mean(3),
    "ensemble, of vectors": lambda x: torch.stack([F.relu(x[:, 0]), F.relu(-x[:, 1])]).mean(0),
    "ensemble, of numbers": lambda x: (
        torch.stack([F.relu(x).sum((1, 2)), F.relu(-x).sum((1, 2))]).mean(0)[:, None].expand(-1, 3)
    ),
}
# For which there is another way to say it, along the batch or of images put together.
MIXED = {
    *("linear, of rows put together", "linear, read twice", "linear, both of two views", "addmm, with factors"),
    *("mm, other rows", "mm, other columns", "mm, as many columns", "linear, its rows in another shape"),
    *(
        "instances, each with numbers of its own",
        "instances, each with its own",
        "instances, put side by side",
        "instances, of other channels",
    ),
    *("bmm, one matrix, read twice", "bmm, repeated", "bmm, several matrices", "bmm, of maps, read as it is"),
    *(
        "ensemble, over the images",
        "ensemble, kept",
        "ensemble, kept, of max",
        "ensemble, another dimension",
        "ensemble, two dimensions",
    ),
    *(
        "ensemble, of two kinds",
        "ensemble, nothing",
        "ensemble, amax",
        "bmm, repeated and made whole",
        "bmm, repeated from a view",
        "ensemble, of numbers",
        "ensemble, of vectors",
    ),
}


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("name", ALIKE)
def test_what_looks_like_it_is_what_autograd_says_or_refused(name: str, count: int) -> None:
    images = numbers(3, 3, 4)[:count]
    try:
        assert_as_autograd(Function(lambda x: 2 * ALIKE[name](x).flatten(1) + 1), images)
    except PathxError as refusal:
        if name not in MIXED or not re.search("batch|no rule", str(refusal)):
            raise
