"""Parts of tensors: which rows may be dropped, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modules import Function, Model
from support.small import seeded
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze

pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int, seed: int = 4) -> Tensor:
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


JOINED = Model(
    lambda self, x: self.head(F.relu(torch.cat([F.relu(self.one(x)), F.relu(self.two(x)), x[:, :1]], 1)).flatten(1)),
    one=nn.Conv2d(2, 2, 3, padding=1),
    two=nn.Conv2d(2, 3, 1),
    head=nn.Linear(6 * 16, 3),
).double()


@settings(max_examples=25)
@given(st.integers(0, 99), st.integers(1, 9), st.sampled_from(["adjacent", "all"]))
def test_rows_that_are_dropped_were_empty(seed: int, width: int, skips: str) -> None:
    """A unit of one part of a `cat` sends nothing to the others: on a CPU those rows are left out, on a GPU they are zero."""
    found = []
    for compact in (True, False):
        frozen = freeze(JOINED, numbers(2, 2, 4, 4, seed=seed))
        frozen.compact = compact
        found.append(explain_frozen(frozen, [(0, 1), (1, 2)], depth=2, width=width, skips=skips))
    for one, other in zip(*found, strict=True):
        assert [[unit.index for unit in layer.units] for layer in one.path] == [
            [unit.index for unit in layer.units] for layer in other.path
        ]
        assert_close(one.attribution, other.attribution)
        assert one.bias == pytest.approx(other.bias)


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "some of the images": (lambda x: F.relu(x)[:1].expand(2, 4), "slice in the model itself works along the batch"),
    "images put together": (
        lambda x: torch.cat([F.relu(x), F.relu(-x)])[:2],
        "works along the batch, so images are not explained one by one; run the network once for each",
    ),
    "stacked before the images": (lambda x: torch.stack([F.relu(x), x]).flatten(0, 1)[:2], "stack along dim 1"),
    "one image picked": (lambda x: F.relu(x)[1].expand(2, 4), "select in the model itself works along the batch"),
    "images around images": (lambda x: F.pad(F.relu(x), (0, 0, 1, 1))[1:3], "works along the batch"),
    "multiplied in place": (
        lambda x: F.relu(x).scatter(1, torch.tensor([[0], [1]]), x[:, :1], reduce="multiply"),
        "multiplies what it computed from the image",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_mixes_images_or_multiplies_is_refused(name: str) -> None:
    function, text = REFUSED[name]
    with pytest.raises(PathxError, match=text):
        pathx.explain(Function(function), torch.rand(2, 4) + 0.5)


@pytest.mark.parametrize(
    "part", [slice(None), slice(-3, None), slice(1, -1), slice(0, 99), slice(-99, 2), slice(0, 4, 3)]
)
def test_any_slice_is_the_part_that_python_takes(part: slice) -> None:
    images, head = numbers(2, 4), numbers(4, 2)
    model = Function(lambda x: F.relu(x)[:, part] @ head[part])
    found = pathx.explain(model, images, target=0, depth=1, width="all", alpha=0.0)
    for one, image in zip(found, images, strict=True):
        expected = torch.zeros(4).double()
        expected[part] = head[part, 0]
        assert_close(one.weight, expected * (image > 0))
