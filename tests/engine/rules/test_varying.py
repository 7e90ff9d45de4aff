"""Which arguments of an operation may be computed from the image: those that it is linear in, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import pytest
import torch
import torch.nn.functional as F
from support.pulled import DOUBLE, Above, assert_as_autograd, assert_boxes_go_down, fixed, pictures, pulled
from torch import Tensor
from torch.testing import assert_close

from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.engine.record.operations import Node, Scope, Value
from pathx.engine.rules.arithmetic import batch_norm, batch_norm_constant
from pathx.engine.rules.table import OPERATIONS, Call, Operation
from pathx.engine.window import Window

aten = torch.ops.aten
PLACE = torch.tensor([[1, 0, 2], [2, 0, 1]])[:, None].expand(2, 3, 3)
SOME = torch.tensor([2, 0])
TRUE = fixed(3, 3) > 0.7

# By operation, a function of two or three maps of 3 x 3 for each image.
TAKEN: dict[str, tuple[int, Callable[..., Tensor]]] = {
    "add": (2, lambda a, b: torch.add(a, b, alpha=3)),
    "sub": (2, lambda a, b: torch.sub(a, b, alpha=3)),
    "rsub": (2, lambda a, b: torch.rsub(a, b, alpha=3)),
    "mul": (2, torch.mul),
    "div": (2, torch.div),
    "where": (2, lambda a, b: torch.where(TRUE, a, b)),
    "addcmul": (3, lambda a, b, c: torch.addcmul(a, b, c, value=2)),
    "bmm": (2, torch.bmm),
    "baddbmm": (3, lambda a, b, c: torch.baddbmm(a, b, c, beta=2, alpha=3)),
    "matmul": (2, torch.matmul),
    "cat": (3, lambda *maps: torch.cat(maps, 1)),
    "stack": (3, lambda *maps: torch.stack(maps, 2)),
    "slice_scatter": (2, lambda a, b: a.slice_scatter(b[:, 1:], 1, 1)),
    "slice_scatter, every other": (2, lambda a, b: a.slice_scatter(b[:, :, :2], -1, 0, 3, 2)),
    "slice_scatter, to the last": (2, lambda a, b: a.slice_scatter(b[:, 1:2], 1, -2, -1)),
    "select_scatter": (2, lambda a, b: a.select_scatter(b[:, 0], -2, 1)),
    "copy": (2, lambda a, b: (a * 1).copy_(b)),
    "copy, broadcast": (2, lambda a, b: (a * 1).copy_(b[:, :1])),
    "index_put": (2, lambda a, b: aten.index_put(a, [None, SOME], b[:, :2])),
    "index_put, added": (2, lambda a, b: aten.index_put(a, [None, SOME], b[:, :2], True)),
    "scatter": (2, lambda a, b: a.scatter(2, PLACE, b)),
    "scatter, multiplied": (2, lambda a, b: a.scatter(2, PLACE, b, reduce="multiply")),
    "scatter_add": (2, lambda a, b: a.scatter_add(1, PLACE, b)),
    "index_add": (2, lambda a, b: a.index_add(1, SOME, b[:, 1:], alpha=2)),
    "index_put, of pairs": (2, lambda a, b: aten.index_put(a, [None, SOME, SOME], b[:, 0, :2])),
    "index_put, of a table": (2, lambda a, b: aten.index_put(a, [None, SOME[:, None], SOME], b[:, :2, :2])),
    "masked_fill": (1, lambda a: a.masked_fill(TRUE, 3.0)),
}
FIXED = [fixed(2, 3, 3, seed=seed) for seed in (1, 2, 3)]
COMPUTED: list[Callable[[Tensor], Tensor]] = [lambda x: 2 * x, lambda x: x.flip(2) + 1, lambda x: x.flip(1) * 3 + 1]

# Linear, but without a rule.
WITHOUT = {
    ("scatter, multiplied", (False, True)),
    ("scatter, multiplied", (True, False)),
}


# Which argument is held at the image where another one varies, too.
HELD = {"div": 1}


def mixed(name: str, varying: tuple[bool, ...]) -> Callable[[Tensor], Tensor]:
    """The operation with some of its arguments computed from the image and the others fixed."""
    function = TAKEN[name][1]

    def of(x: Tensor) -> Tensor:
        return function(*(make(x) if own else some for own, make, some in zip(varying, COMPUTED, FIXED, strict=False)))

    return of


def detached(name: str, varying: tuple[bool, ...]) -> Callable[[Tensor], Tensor]:
    """The same with the argument detached that is held."""

    def of(x: Tensor) -> Tensor:
        made = [make(x) if own else some for own, make, some in zip(varying, COMPUTED, FIXED, strict=False)]
        made[HELD[name]] = made[HELD[name]].detach()
        return TAKEN[name][1](*made)

    return of


REFUSAL = r"multiplies two values|multiplies what it computed|divides by what it computed|with these arguments computed"


def cases() -> Iterator[tuple[str, tuple[bool, ...]]]:
    for name, (count, _) in TAKEN.items():
        yield from ((name, varying) for varying in product((True, False), repeat=count) if any(varying))


def is_linear(function: Callable[[Tensor], Tensor]) -> bool:
    """Whether it is, but for a constant, by definition."""
    one, two, three = (fixed(2, 3, 3, seed=seed) for seed in (7, 8, 9))
    return torch.allclose(function(one + two - three) + function(three), function(one) + function(two))


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize(("name", "varying"), [*cases()])
def test_what_is_linear_is_what_autograd_says_and_what_is_not_is_refused(name: str, varying: tuple[bool, ...]) -> None:
    function = mixed(name, varying)
    images, model = pictures(2, 3, 3), Above(function)
    if name in HELD and varying[HELD[name]] and sum(varying) > 1:
        frozen = assert_as_autograd(model, images, Above(detached(name, varying)))
        assert frozen.network.reading.exact == "image"
        assert_boxes_go_down(frozen)
        return
    if not is_linear(function) or (name, varying) in WITHOUT:
        with pytest.raises(PathxError, match=REFUSAL):
            freeze(model, images)
        return
    if name.startswith("copy") and not varying[1]:  # over what varies: nothing is left of it
        weight, bias = pulled(freeze(model, images), windows=True)
        assert not weight.any()
        assert_close(bias, model(images))
        return
    assert_boxes_go_down(assert_as_autograd(model, images))


# What an operation takes that is constant around each image, but not the same for all of them.
FROZEN: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda x, k: x.masked_fill(k > 0, 2.0),
    "gather": lambda x, k: x.gather(2, k.long()),
    "scatter": lambda x, k: x.scatter(2, x.argsort(2), 2 * x),
    "scatter_add": lambda x, k: x.scatter_add(1, k.long(), x),
    "stack": lambda x, k: torch.stack([k, x], 1),
    "slice_scatter": lambda x, k: k.slice_scatter(x[:, 1:], 1, 1),
    "select_scatter": lambda x, k: x.select_scatter(k[:, 0], 1, 1),
    "clamp": lambda x, k: (x - 0.3).clamp(k - 0.5, k + 0.5),
    "maximum": lambda x, k: torch.maximum(x, 0.4 * k),
    "grid_sampler_2d": lambda x, k: F.grid_sample(
        x[:, None], torch.stack([k, k.flip(1)], 3) - 0.5, align_corners=False
    ),
}
PICKED: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "index_select": lambda x, k: x.index_select(1, k[0, 0].long()),
    "index": lambda x, k: x[:, k[0, 0].long()],
    "index_put": lambda x, k: aten.index_put(x, [None, k[0, 0].long()[:1]], x[:, :1]),
    "convolution": lambda x, k: F.conv1d(x, k[:1].expand(2, 3, 3)),
    "native_batch_norm": lambda x, k: F.batch_norm(x, k[0, 0], 1 + k[0, 0]),
    "index_put, of what is frozen": lambda x, k: aten.index_put(x, [None, SOME], k[:, :2]),
    "index_add": lambda x, k: x.index_add(1, k[0, 0].long(), x),
}


@pytest.mark.filterwarnings("ignore:.*:UserWarning")
@pytest.mark.parametrize("name", FROZEN)
def test_what_is_frozen_is_that_of_each_image(name: str) -> None:
    images = pictures(2, 3, 3)
    model = Above(lambda x: FROZEN[name](x, (x > 0.4).double()))
    assert_boxes_go_down(assert_as_autograd(model, images))


@pytest.mark.parametrize("name", PICKED)
def test_what_is_frozen_and_picks_elements_is_refused(name: str) -> None:
    with pytest.raises(
        PathxError, match=r"computes an operand of .* from the image: it must be the same for every image"
    ):
        freeze(Above(lambda x: PICKED[name](x, (x > 0.4).double())), pictures(2, 3, 3))


# --- multipliers: any numbers that are frozen at each image ---------------------------------------------------------

TOKENS, WIDTH = 3, 4
TO_TOKENS, TO_WIDTH = fixed(WIDTH, TOKENS) - 0.7, fixed(WIDTH, WIDTH, seed=1) - 0.7
# By operation, of x (B, heads, tokens, width) and a function that freezes what it is given at the image.
MULTIPLIED: dict[str, Callable[[Tensor, Callable[[Tensor], Tensor]], Tensor]] = {
    "mul": lambda x, freeze: x * freeze(x.flip(1)),
    "mul, one per channel": lambda x, freeze: freeze(x.mean((2, 3), keepdim=True)) * x,
    "mul, of what is broadcast": lambda x, freeze: x[:, :1] * freeze(x),
    "mul, both broadcast": lambda x, freeze: x[:, :1] * freeze(x[:, :, :1]),
    "mul, by itself": lambda x, freeze: (x - 1) * freeze(x - 1),
    "div": lambda x, freeze: x / freeze(x.flip(3)),
    "div, one per token": lambda x, freeze: x / (1 + freeze(x.sum(3, keepdim=True))),
    "add": lambda x, freeze: x + freeze(x),
    "sub, from it": lambda x, freeze: freeze(x.flip(2)) - x,
    "matmul, from the left": lambda x, freeze: freeze(x @ TO_TOKENS) @ x,
    "matmul, from the right": lambda x, freeze: x @ freeze(x.mT @ fixed(TOKENS, 5)),
    "matmul, one for all heads": lambda x, freeze: freeze(x[:, :1] @ TO_TOKENS) @ x,
    "matmul, of what is broadcast": lambda x, freeze: freeze(x @ TO_TOKENS) @ x[:, :1],
    "bmm, from the left": lambda x, freeze: torch.bmm(freeze(x[:, 0] @ TO_TOKENS), x[:, 1]),
    "bmm, from the right": lambda x, freeze: torch.bmm(x[:, 0], freeze(x[:, 1].mT)),
    "baddbmm": lambda x, freeze: torch.baddbmm(x[:, 0, :, :TOKENS], x[:, 0], freeze(x[:, 1].mT)),
    "addcmul": lambda x, freeze: torch.addcmul(x, x.flip(1), freeze(x)),
    "cat": lambda x, freeze: torch.cat([x, freeze(x)], 2),
    "where": lambda x, freeze: torch.where(freeze(x) > 0.6, x, freeze(x)),
}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", MULTIPLIED)
def test_a_frozen_factor_is_that_of_each_image_as_in_the_detached_twin(
    name: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any operation may be declared frozen at the image; here, a sigmoid."""
    monkeypatch.setitem(OPERATIONS, "sigmoid", Operation(reading="locally constant"))
    images = pictures(2, 2, TOKENS, WIDTH)[:batch]
    model = Above(lambda x: MULTIPLIED[name](2 * x, torch.sigmoid))
    twin = Above(lambda x: MULTIPLIED[name](2 * x, lambda made: made.detach().sigmoid()))
    frozen = assert_as_autograd(model, images, twin)
    if batch == 2:
        assert_boxes_go_down(frozen)


def test_windows_stay_small_below_products() -> None:
    """A unit reaches one token below a fixed matrix, and below a frozen pattern its head and column of every token."""
    images, one, first = pictures(2, 2, TOKENS, WIDTH), torch.ones(1, dtype=DOUBLE), SOME[1:]
    functions: list[tuple[Callable[[Tensor], Tensor], int, tuple[int, ...]]] = [
        (lambda x: torch.sigmoid(x @ TO_TOKENS) @ x, WIDTH, (1, TOKENS, 1)),
        (lambda x: x @ TO_TOKENS, TOKENS, (1, 1, WIDTH)),
    ]
    for function, width, extent in functions:
        frozen = freeze(Above(function), images)
        product = [node for node in frozen.network.nodes if node.kind == "matmul"][-1]
        unit = Window.one_hot(one, first + 8, (2, TOKENS, width), first, first)
        ((_, below),) = frozen.pull(product, 0, unit)
        assert below.extent == extent


@pytest.mark.parametrize("settings", [(0.1, 0.25), (False, 0.1, 0.25)], ids=["without a flag for training", "with one"])
def test_a_normalisation_is_a_scale_and_a_shift_in_every_spelling(settings: tuple[float, ...]) -> None:
    weight, bias, mean, x = (pictures(4, 3)[number] for number in range(4))
    args = (Value(0), weight, bias, mean, fixed(3), *settings)
    node = Node(0, aten.native_batch_norm.default, args, {}, (Value(1),), Scope())
    call = Call(node, args, {}, {Value(0): (3,), Value(1): (3,)}, {}, 1)
    row = torch.zeros(3, dtype=torch.long)
    cotangent = Window.full(torch.eye(3, dtype=DOUBLE), row, row)
    ((_, below),) = batch_norm(call, 0, cotangent)
    expected = F.batch_norm(x[None], mean, fixed(3), weight, bias, eps=0.25)[0]
    assert_close(below.data @ x + batch_norm_constant(call, cotangent), expected)
