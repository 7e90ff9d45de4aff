"""Parts of tensors: which rows may be dropped, and what is refused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from support.modules import Function, Model
from support.pulled import Above, assert_as_autograd, assert_boxes_go_down, assert_field, fixed, pictures
from support.small import seeded
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.engine.window import Window

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


SLICES = [
    slice(None), slice(1, None), slice(-3, None), slice(None, -2), slice(2, 5), slice(0, 6, 2), slice(1, 6, 3), slice(-9, 3),
    slice(4, 99), slice(-1, None), slice(0, 1), slice(-4, -1, 2),
]  # fmt: skip
MAPS = (2, 4, 7, 6)


@pytest.mark.parametrize("part", SLICES)
@pytest.mark.parametrize("dim", [1, 2, 3])
def test_slices_in_boxes_and_whole_maps(part: slice, dim: int) -> None:
    if dim == 1 and part.start == 4:
        part = slice(3, 99)
    index = (*[slice(None)] * dim, part)
    assert_boxes_go_down(assert_as_autograd(Above(lambda x: (x * 2)[index]), pictures(*MAPS)))
    assert_field(lambda x: x[index], fixed(2, 1, 15, 7), exact=True)


PADS = [
    (1, 0),
    (0, 2),
    (-1, 1),
    (2, -3),
    (1, 2, 3, 0),
    (0, 0, 0, 1),
    (-2, 0, 1, -1),
    (1, 0, 0, 2, 1, 1),
    (0, 0, 0, 0, -1, 0),
]


@pytest.mark.parametrize("pads", PADS)
@pytest.mark.parametrize("value", [None, 0.0, 0.5])
def test_pads_in_boxes_and_whole_maps(pads: tuple[int, ...], value: float | None) -> None:
    more = () if value is None else ("constant", value)
    assert_boxes_go_down(assert_as_autograd(Above(lambda x: F.pad(x * 2, pads, *more)), pictures(*MAPS)))
    assert_field(lambda x: F.pad(x, pads, *more), fixed(2, 1, 15, 7), exact=True)


def test_vectors_are_sliced_and_padded_too() -> None:
    for function in (lambda x: F.pad(2 * x, (1, 2), value=0.5), lambda x: (2 * x)[:, 1:-1], lambda x: (2 * x)[:, ::2]):
        assert_boxes_go_down(assert_as_autograd(Above(function), pictures(2, 5)))


@pytest.mark.parametrize("sizes", [3, 4, [1, 4, 2], [7], [2, 5], 7, 9])
@pytest.mark.parametrize("dim", [1, 2, -1])
def test_every_part_of_a_split(sizes: object, dim: int) -> None:
    shape = [2, 3, 4, 5]
    shape[dim] = 7
    count = len(torch.zeros(shape).split(sizes, dim))  # type: ignore[arg-type]
    for number in range(count):
        model = Above(lambda x, number=number: (2 * x).split(sizes, dim)[number])
        assert_boxes_go_down(assert_as_autograd(model, pictures(*shape)))


@pytest.mark.parametrize("dim", [1, 2, 3, -1, -3])
@pytest.mark.parametrize("number", [0, 2, -1])
def test_one_of_several(dim: int, number: int) -> None:
    for function in (lambda x: (2 * x).select(dim, number), lambda x: (2 * x).unbind(dim)[number]):
        assert_boxes_go_down(assert_as_autograd(Above(function), pictures(2, 3, 4, 5)))


@pytest.mark.parametrize("compact", [True, False])
@pytest.mark.parametrize("dim", [1, 2, 3, -1, -3])
def test_parts_put_together_in_boxes_and_whole_maps(dim: int, compact: bool) -> None:
    """Of what varies, what is frozen and what is fixed, in sizes of their own."""

    def function(x: Tensor) -> Tensor:
        x = 2 * x
        some, more = x.narrow(dim, 0, 2), x.narrow(dim, 1, 1)
        return torch.cat([some, fixed(*some.shape), x, (more > 0.5).double(), more, fixed(*more.shape, seed=3)], dim)

    images = pictures(2, 3, 4, 5)
    frozen = assert_as_autograd(Above(function), images)
    frozen._calls.clear()
    frozen.compact = compact
    assert_boxes_go_down(frozen, lambda node: node.kind == "cat")


def test_rows_that_miss_a_part_are_left_out_of_it() -> None:
    frozen = freeze(Above(lambda x: torch.cat([2 * x, 3 * x], 1)), pictures(2, 3))
    (node,) = (node for node in frozen.network.nodes if node.kind == "cat")
    row = torch.arange(4)
    units = Window.one_hot(torch.ones(4).double(), torch.tensor([0, 2, 3, 5]), (6,), row, row % 2)
    for compact, rows in ((True, [[0, 1], [2, 3]]), (False, [[0, 1, 2, 3], [0, 1, 2, 3]])):
        frozen._calls.clear()
        frozen.compact = compact
        parts = frozen.pull(node, 0, units)
        assert [part.row.tolist() for _, part in parts] == rows
        assert [any(part.overhang) for _, part in parts] == [not compact] * 2
