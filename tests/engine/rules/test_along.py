"""Operations along every dimension, named from either end or not at all: numbers and fields are as torch has them.

All sizes are alike, so that no shape gives away that images were taken for something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from support.pulled import Above, assert_as_autograd, assert_boxes_go_down, assert_field, pictures
from torch import Tensor

from pathx import PathxError
from pathx.engine.freeze import freeze

RANK, SIZE = 4, 2
aten = torch.ops.aten
BOTH = torch.tensor([1, 0])
WHERE = torch.tensor([1, 0, 0, 1, 1, 0, 1, 0, 0, 1, 1, 0, 0, 0, 1, 1]).reshape(2, 2, 2, 2)
PART = pictures(2, 2, 2, 2)

# By what is recorded: what it makes of a map and one of its dimensions.
ONE: dict[str, Callable[[Tensor, int], Tensor]] = {
    "mean": lambda x, d: x.mean(d, keepdim=True),
    "mean, dropped": lambda x, d: x.mean(d),
    "sum": lambda x, d: x.sum(d, keepdim=True),
    "max": lambda x, d: x.max(d, keepdim=True)[0],
    "median": lambda x, d: x.median(d)[0],
    "sort": lambda x, d: x.sort(d)[0],
    "topk": lambda x, d: x.topk(2, d)[0],
    "cumsum": lambda x, d: x.cumsum(d),
    "flip": lambda x, d: x.flip(d),
    "roll": lambda x, d: x.roll(1, d),
    "select": lambda x, d: x.select(d, 1),
    "slice": lambda x, d: x.narrow(d, 1, 1),
    "slice, of all": lambda x, d: x.narrow(d, 0, 2),
    "split": lambda x, d: x.split(1, d)[1],
    "split, into one": lambda x, d: x.split(2, d)[0],
    "split_with_sizes": lambda x, d: x.split([1, 1], d)[1],
    "unbind": lambda x, d: x.unbind(d)[1],
    "unfold": lambda x, d: x.unfold(d, 2, 1),
    "index_select": lambda x, d: x.index_select(d, BOTH),
    "gather": lambda x, d: x.gather(d, WHERE),
    "scatter": lambda x, d: x.scatter(d, BOTH.expand(*x.shape).movedim(-1, d), 2 * x),
    "scatter_add": lambda x, d: x.scatter_add(d, WHERE, 2 * x),
    "index_add": lambda x, d: x.index_add(d, BOTH, 2 * x),
    "cat": lambda x, d: torch.cat([x, 2 * x], d),
    "cat, of one": lambda x, d: torch.cat([x], d),
    "stack": lambda x, d: torch.stack([x, 2 * x], d),
    "slice_scatter": lambda x, d: x.slice_scatter(PART.narrow(d, 1, 1), d, 1, 2),
    "slice_scatter, from the end": lambda x, d: x.slice_scatter(PART.narrow(d, 1, 1), d, -1),
    "slice_scatter, of all": lambda x, d: x.slice_scatter(3 * x, d),
    "select_scatter": lambda x, d: x.select_scatter(PART.select(d, 0), d, 1),
    "squeeze": lambda x, d: x.narrow(d, 0, 1).squeeze(d),
    "index": lambda x, d: x[(*[slice(None)] * (d % RANK), BOTH)],
    "index_put": lambda x, d: aten.index_put(x, [*[None] * (d % RANK), BOTH[:1]], PART.narrow(d, 0, 1)),
}
TWO: dict[str, Callable[[Tensor, int, int], Tensor]] = {
    "transpose": lambda x, d, e: x.transpose(d, e),
    "mean": lambda x, d, e: x.mean((d, e)),
    "sum": lambda x, d, e: x.sum((d, e), keepdim=True),
    "roll": lambda x, d, e: x.roll((1, 1), (d, e)),
    "amax": lambda x, d, e: x.amax((d, e), keepdim=True),
}
# Without a dimension: which one that is.
DEFAULT: dict[str, tuple[Callable[[Tensor], Tensor], int]] = {
    "sort": (lambda x: x.sort()[0], -1),
    "topk": (lambda x: x.topk(1)[0], -1),
    "split": (lambda x: x.split(1)[1], 0),
    "unbind": (lambda x: x.unbind()[1], 0),
    "cat": (lambda x: torch.cat([x, 2 * x]), 0),
    "stack": (lambda x: torch.stack([x, 2 * x]), 0),
    "slice_scatter": (lambda x: x.slice_scatter(3 * x), 0),
    "slice_scatter, a part": (lambda x: x.slice_scatter(PART[1:], start=1), 0),
    "slice": (lambda x: aten.slice.Tensor(x), 0),
    "roll": (lambda x: x.roll(1), 0),
}


def named() -> Iterator[tuple[str, Callable[[Tensor], Tensor], tuple[int, ...]]]:
    """Every case, with the dimensions that it works along, counted from the front."""
    for name, one in ONE.items():
        for dim in (0, 2, -1, -3, -4):
            last = RANK + 1 if name == "stack" else RANK
            yield f"{name}, along {dim}", (lambda x, f=one, d=dim: f(x, d)), (dim % last,)
    for name, two in TWO.items():
        for dim, other in ((0, 1), (1, 2), (-1, 1), (-4, 3), (3, 0)):
            dims = (dim % RANK, other % RANK)
            yield f"{name}, along {dim} and {other}", (lambda x, f=two, d=dim, e=other: f(x, d, e)), dims
    for name, (function, dim) in DEFAULT.items():
        yield f"{name}, along what it takes", function, (dim % RANK,)


CASES = {name: (function, dims) for name, function, dims in named()}
# The whole batch at once is all images, each where it was.
WHOLE = (
    "slice, of all",
    "slice, along what",
    "split, into one",
    "cat, of one",
    "slice_scatter, of all",
    "slice_scatter, along what",
)


def of_the_batch(made: Tensor) -> Tensor:
    """As many rows as there are images, so that the number of them tells nothing either."""
    return made[:SIZE] if len(made) > SIZE else made.expand(SIZE, *made.shape[1:])


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_what_works_along_the_batch_is_refused_by_name_and_the_rest_is_what_autograd_says(name: str) -> None:
    function, dims = CASES[name]
    images = pictures(*(SIZE,) * RANK)
    if 0 in dims and not name.startswith(WHOLE):
        kind = name.split(",")[0].strip("_")
        heard = {"amax": "permute", "squeeze": "slice"}.get(kind, kind)
        with pytest.raises(PathxError, match=f"{heard} in the model itself works along the batch"):
            freeze(Above(lambda x: of_the_batch(function(x))), images)
        return
    frozen = assert_as_autograd(Above(function), images)
    if name.startswith(("slice", "select", "split", "unbind", "cat", "stack", "mean", "sum", "transpose", "squeeze")):
        assert_boxes_go_down(frozen)
    assert_field(lambda x: function(x[:, :SIZE] * 1), pictures(2, 1, 5, 3).abs(), exact=False)


# Each is right for one image, and takes images for something else where there are several.
BROADCAST: dict[str, Callable[[Tensor], Tensor]] = {
    "add": lambda x: x + 2 * x.mean(1),
    "mul": lambda x: x * (x.mean(1) > 0.3),
    "where": lambda x: torch.where(x.mean(1) > 0.3, x, x.flip(3)),
    "cumsum": lambda x: x.sum((1, 2, 3)).cumsum(-1)[:, None],
    "flip": lambda x: x.sum((1, 2, 3)).flip(-1)[:, None],
}


@pytest.mark.parametrize("name", BROADCAST)
def test_what_has_a_dimension_less_meets_other_images(name: str) -> None:
    with pytest.raises(PathxError, match=f"{name} in the model itself works along the batch"):
        freeze(Above(BROADCAST[name]), pictures(*(SIZE,) * RANK))
