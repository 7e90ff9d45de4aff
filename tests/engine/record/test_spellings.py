"""Operations in other spellings: they compute the same, and what torch takes together keeps the images apart."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.modules import Function
from support.pulled import assert_as_autograd
from support.small import seeded
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx.errors import PathxError


def numbers(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(2), dtype=torch.float64)


def test_what_torchscript_writes_into_is_explained_as_the_module_is_or_refused_with_what_to_do() -> None:
    """Releases of torch differ in what they write for circular padding."""
    convolution = nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()).double().eval()
    images = numbers(2, 3, 6, 6)
    (expected, _) = pathx.explain(model, images, target=1)
    try:
        (found, _) = pathx.explain(torch.jit.trace(model, images), images, target=1)  # type: ignore[no-untyped-call]
    except PathxError as error:
        remedy = "give the module that it was made from, or save that with torch"
        assert re.search(rf"in place .*; {remedy}", str(error))  # noqa: PT017
    else:
        assert_close(found.attribution, expected.attribution)


tensor = partial(torch.tensor, dtype=torch.float64)


@pytest.mark.filterwarnings("ignore:torch.tensor results are registered as constants")
def test_torchscript_compares_its_constants_of_every_kind() -> None:
    """Numbers of the code are tensors to TorchScript, which looks for equal ones among them and among those of the model."""
    weight, images = numbers(4, 3), numbers(2, 4)
    for first, second in itertools.permutations(
        [(float, -2), (int, -2), (tensor, -2.0), (tensor, -2), (tensor, [-2.0])], 2
    ):

        def forward(x: Tensor, first: Any = first, second: Any = second) -> Tensor:
            return (F.relu(x) * first[0](first[1]) + second[0](second[1])) @ weight

        (expected, _) = pathx.explain(Function(forward), images, target=1)
        traced = torch.jit.trace(Function(forward), images)  # type: ignore[no-untyped-call]
        (found, _) = pathx.explain(traced, images, target=1)
        assert_close((found.attribution, found.bias), (expected.attribution, expected.bias))


def test_channels_are_shuffled_as_by_hand() -> None:
    def by_hand(x: Tensor) -> Tensor:
        return torch.stack([x[:, :3], x[:, 3:]], 2).flatten(1, 2)

    kernel, images = numbers(4, 6, 3, 3), numbers(2, 6, 5, 5)

    def attributions(shuffle: Callable[[Tensor], Tensor]) -> Tensor:
        model = Function(lambda x: F.conv2d(shuffle(x.relu()), kernel).relu().mean((2, 3)))
        return torch.stack([one.attribution for one in pathx.explain(model, images, depth="all")])

    assert attributions(by_hand).abs().sum() > 0
    assert_close(attributions(nn.ChannelShuffle(2)), attributions(by_hand))


# --- Images apart -----------------------------------------------------------------------------------------------------


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=seeded(1), dtype=torch.float64)


SQUARE, WIDE, BIAS = drawn(4, 4), drawn(5, 4), drawn(5)

MATRICES = drawn(3, 4, 5)


def stacked(x: Tensor, dim: int = 0) -> Tensor:
    return torch.stack([F.relu(x), 2 * F.relu(-x), F.relu(x @ SQUARE)], dim)


ALIKE: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda x: F.linear(F.relu(x), WIDE, BIAS),
    "linear, its rows in another shape": lambda x: F.linear(F.relu(x), WIDE, BIAS).reshape(len(x), 15),
    "linear, of rows put together": lambda x: F.linear(F.relu(x).reshape(-1, 4), WIDE, BIAS).reshape(len(x), 3, 5),
    "linear, read twice": lambda x: (
        y := F.linear(F.relu(x).reshape(-1, 4), WIDE),
        y.view(len(x), 3, 5),
        y.view(len(x), 15),
    )[1].flatten(1),
    "addmm, with factors": lambda x: torch.addmm(BIAS, F.relu(x).view(-1, 4), WIDE.T, alpha=2).view(len(x), 3, 5),
    "mm, other rows": lambda x: (F.relu(x).view(-1, 4) @ WIDE.T).view(len(x), 5, 3),
    "mm, other columns": lambda x: (F.relu(x).view(-1, 2) @ WIDE.T[:2]).view(len(x), 3, 10),
    "bmm, one matrix": lambda x: torch.bmm(F.relu(x).view(1, -1, 4), WIDE.T[None]).view(len(x), 3, 5),
    "bmm, repeated": lambda x: torch.bmm(F.relu(x).view(-1, 1, 4), WIDE.T.expand(3 * len(x), 4, 5)).view(len(x), 3, 5),
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
    "squeezed in place": lambda x: F.relu(x.sum(1, keepdim=True)).mul(2).squeeze_(1) + BIAS[:4],
    "einsum": lambda x: torch.einsum("btc,cd->bdt", F.relu(x), WIDE.T),
    "einsum, of all": lambda x: torch.einsum("btc,tcd->bd", F.relu(x), MATRICES),
    "ensemble": lambda x: stacked(x).mean(0),
    "ensemble, select": lambda x: stacked(x)[-1],
    "ensemble, max": lambda x: stacked(x).max(0)[0],
    "ensemble, after the batch": lambda x: stacked(x, 1).mean(1),
    "ensemble, over the images": lambda x: stacked(x, 1).mean(0)[: len(x)],
}
REFUSABLE = {"ensemble, max", "ensemble, over the images"}
"""They mix the images of a batch, or put them together."""


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", ALIKE)
def test_what_torch_takes_together_is_what_autograd_says_of_each_image_or_refused(name: str, count: int) -> None:
    images = drawn(3, 3, 4)[:count]
    try:
        assert_as_autograd(Function(lambda x: 2 * ALIKE[name](x).flatten(1) + 1), images)
    except PathxError as refusal:
        if name not in REFUSABLE or not re.search("batch|no rule", str(refusal)):
            raise
