"""Activations in every spelling, masks and choices, and what is locally constant."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.cases import assert_same
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import Explanation
from pathx.engine.record.operations import Node, Scope, Value
from pathx.engine.rules.table import OPERATIONS, Call, Slopes

Activation = Callable[[Tensor], Tensor]


class Network(nn.Module):
    """Three hidden layers of one activation, on maps and vectors, with values far beyond 6."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.first = nn.Conv2d(2, 5, 3)
        self.second = nn.Conv2d(5, 5, 3, stride=2)
        self.third = nn.Linear(20, 5)
        self.head = nn.Linear(5, 3)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(4 * self.first(x))
        x = self.activation(4 * self.second(x)).flatten(1)
        y: Tensor = self.head(self.activation(self.third(x)))
        return y


def network(activation: Activation) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        return Network(activation).double().eval()


def images() -> Tensor:
    return torch.randn(2, 2, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * 3


def explained(activation: Activation, **options: Any) -> list[Explanation]:
    return pathx.explain(network(activation), images(), target=1, depth="all", width="all", **options)


def zero(h: Tensor) -> Tensor:
    return torch.zeros((), dtype=h.dtype)


def assigned(h: Tensor) -> Tensor:
    h = h.clone()
    h[h < 0] = 0
    return h


def filled_in_place(h: Tensor) -> Tensor:
    h[h < 0] = 0
    return h


SPELLINGS: dict[str, dict[str, Activation]] = {
    "relu": {
        "module": nn.ReLU(),
        "F.relu": F.relu,
        "torch.relu": torch.relu,
        "method": Tensor.relu,
        "clamp": lambda h: h.clamp(min=0),
        "clamp with a tensor": lambda h: h.clamp(min=zero(h)),
        "clamp_min": lambda h: h.clamp_min(0),
        "maximum": lambda h: torch.maximum(h, zero(h)),
        "max": lambda h: torch.max(h, torch.zeros_like(h)),
        "where": lambda h: torch.where(h > 0, h, 0.0),
        "where, the other way round": lambda h: torch.where(h <= 0, zero(h), h),
        "times a mask": lambda h: h * (h > 0),
        "a mask times": lambda h: (h > 0).to(h.dtype) * h,
        "times not a mask": lambda h: h * ~(h <= 0),
        "times a mask of another name": lambda h: h * (h.detach() > 0).type_as(h),
        "masked_fill": lambda h: h.masked_fill(h < 0, 0.0),
        "assigned": assigned,
        "assigned in place": filled_in_place,
        "threshold": lambda h: F.threshold(h, 0, 0),
        "hardtanh without end": nn.Hardtanh(0, 1e9),
        "leaky without a leak": nn.LeakyReLU(0.0),
        "scripted function": torch.jit.script(F.relu),
    },
    "relu6": {
        "module": nn.ReLU6(),
        "module in place": nn.ReLU6(inplace=True),
        "F.relu6": F.relu6,
        "clamp": lambda h: h.clamp(0, 6),
        "clamp with tensors": lambda h: h.clamp(zero(h), zero(h) + 6),
        "hardtanh": nn.Hardtanh(0, 6),
    },
    "hardtanh": {
        "module": nn.Hardtanh(-1, 2),
        "F.hardtanh": lambda h: F.hardtanh(h, -1, 2),
        "clamp": lambda h: h.clamp(-1, 2),
    },
    "leaky relu": {
        "module": nn.LeakyReLU(0.25),
        "module in place": nn.LeakyReLU(0.25, inplace=True),
        "F.leaky_relu": lambda h: F.leaky_relu(h, 0.25),
        "PReLU": nn.PReLU(),
        "PReLU per channel": nn.PReLU(5),
        "RReLU": nn.RReLU(0.125, 0.375),
    },
    "threshold": {
        "module": nn.Threshold(1, 20),
        "F.threshold in place": lambda h: F.threshold(h, 1, 20, inplace=True),
        "where": lambda h: torch.where(h > 1, h, 20.0),
        "masked_fill": lambda h: h.masked_fill(h <= 1, 20.0),
    },
    "absolute value": {
        "abs": torch.abs,
        "times its sign": lambda h: h * h.sign(),
    },
}
CASES = [(kind, name) for kind, spellings in SPELLINGS.items() for name in spellings]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind}: {name}" for kind, name in CASES])
def test_a_spelling_changes_nothing(kind: str, name: str) -> None:
    first, *_ = SPELLINGS[kind].values()
    for one, other in zip(explained(SPELLINGS[kind][name]), explained(first), strict=True):
        assert one.hidden_layers == 3
        assert_same(one, other)


class SlopesOfTheirOwn(nn.PReLU):
    """One per channel, negative ones and none included."""

    def __init__(self) -> None:
        super().__init__(5)
        self.weight = nn.Parameter(torch.tensor([0.5, -1.0, 0.0, 2.0, 0.1]))


ACTIVATIONS = [*(next(iter(spellings.values())) for spellings in SPELLINGS.values()), SlopesOfTheirOwn()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=[*SPELLINGS, "slopes of their own"])
def test_everything_kept_is_the_gradient(activation: Activation) -> None:
    inputs = images().requires_grad_()
    (gradient,) = torch.autograd.grad(network(activation)(inputs)[:, 1].sum(), inputs)
    found = explained(activation, alpha=0.0)
    assert_close(torch.stack([one.weight for one in found]), gradient)
    for one in found:
        assert one.attribution.sum().item() + one.bias == pytest.approx(one.score, rel=1e-10)


def test_a_mask_from_elsewhere_is_no_layer() -> None:
    """Fixed masks and masks of other values are factors; the ReLU they are made of is not counted twice."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(4, 6), nn.Linear(6, 2)
            self.register_buffer("mask", torch.tensor([1.0, 0, 1, 1, 0, 1]))

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x)
            y = F.relu(h) * self.mask
            y = torch.where(self.mask > 0, y, 3.0).masked_fill(h > 1, 0.5)
            z: Tensor = self.second(y * (h < 0.8))
            return z

    torch.manual_seed(0)
    model, inputs = Masked().double(), torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(model(inputs)[:, 1].sum(), inputs)
    found = pathx.explain(model, inputs, target=1, depth="all", width="all", alpha=0.0)
    assert {one.hidden_layers for one in found} == {1}
    assert_close(torch.stack([one.weight for one in found]), gradient)


BOUNDED: dict[str, tuple[float, Activation]] = {
    "clamp below": (-math.inf, lambda x: x.clamp(min=-3)),
    "clamp above": (math.inf, lambda x: x.clamp(max=2)),
    "relu6": (-math.inf, F.relu6),
    "relu6 above": (math.inf, F.relu6),
    "hardtanh": (-math.inf, F.hardtanh),
    "hardsigmoid": (-math.inf, F.hardsigmoid),
    "hardsigmoid above": (math.inf, F.hardsigmoid),
    "maximum": (-math.inf, lambda x: torch.maximum(x, torch.tensor(-3.0, dtype=x.dtype))),
    "minimum": (math.inf, lambda x: torch.minimum(x, torch.tensor(3.0, dtype=x.dtype))),
    "threshold": (-math.inf, lambda x: F.threshold(x, -3.0, -3.0)),
    "relu": (-math.inf, F.relu),
}


@pytest.mark.parametrize("name", BOUNDED)
def test_what_a_bound_takes_from_infinity_is_finite(name: str) -> None:
    """A border of infinities before a bounded unit gives what a border of large numbers gives."""
    infinite, activation = BOUNDED[name]

    def explained(border: float) -> Explanation:
        torch.manual_seed(0)
        convolution, head = nn.Conv2d(2, 5, 3).double(), nn.Linear(5, 3).double()

        class Padded(nn.Module):
            def forward(self, x: Tensor) -> Tensor:
                x = activation(F.pad(x, (1, 2, 0, 1), value=border))
                y: Tensor = head(F.relu(convolution(x)).mean((2, 3)))
                return y

        images = torch.randn(1, 2, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
        return pathx.explain(Padded().eval(), images, depth="all", width=9)[0]

    found, expected = explained(infinite), explained(math.copysign(1e6, infinite))
    assert [[unit.index for unit in layer.units] for layer in found.path] == [
        [unit.index for unit in layer.units] for layer in expected.path
    ]
    assert_close(found.attribution, expected.attribution)
    assert found.bias == pytest.approx(expected.bias, abs=1e-12)
    assert float(found.attribution.sum()) + found.bias == pytest.approx(found.score, abs=1e-10)


# --- slopes at the bends ------------------------------------------------------------------------------------------------

WEIGHT = torch.tensor([0.25], dtype=torch.float64)
# By operation, with what is left out left out: where its units pass nothing on, the bends included.
BENDS: list[tuple[str, tuple[Any, ...], dict[str, Any], Callable[[float], bool]]] = [
    ("relu", (), {}, lambda h: h <= 0),
    ("relu6", (), {}, lambda h: h <= 0 or h >= 6),
    ("hardtanh", (), {}, lambda h: abs(h) >= 1),
    ("hardtanh", (-2.0,), {}, lambda h: h <= -2 or h >= 1),
    ("hardtanh", (-2.0, 3.0), {}, lambda h: h <= -2 or h >= 3),
    ("clamp", (-1.0,), {}, lambda h: h <= -1),
    ("clamp", (None, 2.0), {}, lambda h: h >= 2),
    ("clamp", (-1.0, 2.0), {}, lambda h: h <= -1 or h >= 2),
    ("clamp_min", (0.5,), {}, lambda h: h <= 0.5),
    ("clamp_max", (0.5,), {}, lambda h: h >= 0.5),
    ("threshold", (1.0, 5.0), {}, lambda h: h <= 1),
    ("leaky_relu", (), {}, lambda h: False),
    ("leaky_relu", (0.5,), {}, lambda h: False),
    ("_prelu_kernel", (WEIGHT,), {}, lambda h: False),
    ("abs", (), {}, lambda h: h == 0),
    ("hardshrink", (), {}, lambda h: abs(h) <= 0.5),
    ("hardshrink", (2.0,), {}, lambda h: abs(h) <= 2),
    ("softshrink", (), {}, lambda h: abs(h) <= 0.5),
    ("softshrink", (2.0,), {}, lambda h: abs(h) <= 2),
    ("hardsigmoid", (), {}, lambda h: abs(h) >= 3),
]
POINTS = [-9.0, -6, -3, -2, -1, -0.5, -0.25, 0, 0.2, 0.5, 1, 2, 3, 6, 7]


def slopes(op: Any, h: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str) -> tuple[Slopes, Tensor]:
    """What a record makes of h, and the output of the operation itself."""
    out = op(h, *args, **kwargs)
    out = out[0] if isinstance(out, tuple) else out
    source, made = Value(0), Value(1)
    node = Node(0, op, (source, *args), kwargs, (made,), Scope())
    call = Call(node, (source, *args), kwargs, {source: (15,), made: (15,)}, {}, 1)
    record = OPERATIONS[kind]
    assert record.gate is not None
    return record.gate(call, (out if record.saves == "output" else h).detach()), out


@pytest.mark.parametrize(("kind", "args", "kwargs", "passive"), BENDS)
def test_a_slope_is_autograds_and_nothing_at_a_bend_that_leads_nowhere(
    kind: str, args: tuple[Any, ...], kwargs: dict[str, Any], passive: Callable[[float], bool]
) -> None:
    """The Python functions fill in what was left out; the records have to know it themselves."""
    h = torch.tensor([POINTS], dtype=torch.float64, requires_grad=True)
    found, out = slopes(getattr(torch.ops.aten, kind).default, h, args, kwargs, kind)
    (gradient,) = torch.autograd.grad(out.sum(), h)
    slope = (found.gain > 0).double() if found.given is None else found.given
    assert_close(found.gain, slope * h.detach())
    assert_close(found.gain + (0 if found.offset is None else found.offset), out.detach(), rtol=1e-7, atol=0)
    for point, own, theirs in zip(POINTS, slope[0].tolist(), gradient[0].tolist(), strict=True):
        assert (own == 0) == passive(point), point
        if own:
            assert own == pytest.approx(theirs), point


# By operation: its slope at h where it is h times something that is held, and else the tangent.
HELD_SLOPES: dict[str, tuple[tuple[Any, ...], dict[str, Any], Activation | None]] = {
    "silu": ((), {}, torch.sigmoid),
    "gelu": ((), {}, lambda h: 0.5 * (1 + torch.erf(h / math.sqrt(2)))),
    "gelu, by tanh": (
        (),
        {"approximate": "tanh"},
        lambda h: 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (h + 0.044715 * h**3))),
    ),
    "hardswish": ((), {}, lambda h: F.relu6(h + 3) / 6),
    "mish": ((), {}, lambda h: torch.tanh(torch.log(1 + torch.exp(h)))),
    "pow": ((2,), {}, lambda h: h),
    "pow, to the third": ((3,), {}, lambda h: h * h),
    "square": ((), {}, lambda h: h),
    "sqrt": ((), {}, lambda h: h.rsqrt().masked_fill(h == 0, 0.0)),
    "sigmoid": ((), {}, None),
    "tanh": ((), {}, None),
    "elu": ((), {}, None),
    "elu, of another size": ((0.5,), {}, None),
    "celu": ((0.5,), {}, None),
    "softplus": ((), {}, None),
    "softplus, steeper": ((2.0, 10.0), {}, None),
    "log_sigmoid_forward": ((), {}, None),
}
OVERLOADS = {"pow": "Tensor_Scalar"}


@pytest.mark.parametrize("name", HELD_SLOPES)
def test_a_smooth_activation_is_its_held_slope_or_its_tangent(name: str) -> None:
    kind = name.partition(",")[0]
    args, kwargs, slope = HELD_SLOPES[name]
    op = getattr(getattr(torch.ops.aten, kind), OVERLOADS.get(kind, "default"))
    h = torch.tensor([POINTS], dtype=torch.float64)
    h = (h.abs() if kind == "sqrt" else h).requires_grad_()
    found, out = slopes(op, h, args, kwargs, kind)
    expected = torch.autograd.grad(out.sum(), h)[0] if slope is None else slope(h.detach())
    assert found.given is not None
    assert_close(found.given, expected, rtol=1e-9, atol=1e-12)
    assert_close(found.gain, found.given * h.detach())
    assert (found.offset is None) == (slope is not None)
    assert_close(found.gain + (0 if found.offset is None else found.offset), out.detach(), rtol=1e-9, atol=1e-12)


def test_every_activation_is_tried() -> None:
    smooth = {name for name, record in OPERATIONS.items() if record.gate and record.reading == "nonlinear"}
    gates = {name for name, record in OPERATIONS.items() if record.gate and not record.transpose} - smooth
    assert {name.partition(",")[0] for name in HELD_SLOPES} == smooth
    assert {kind for kind, *_ in BENDS} == gates


# --- locally constant, and of a shape --------------------------------------------------------------------------

AT = torch.tensor([0.3, -1.7, 2.2, 0.9], dtype=torch.float64)
SMALL = 1e-6 * torch.tensor([1.0, -1.0, -1.0, 1.0], dtype=torch.float64)
SECOND = torch.tensor([0.6, -0.4, 3.1, 0.2], dtype=torch.float64)


def applied(name: str, x: Tensor) -> Tensor:
    """An operation by the name of its record, with a fixed second argument where it takes one."""
    operation = getattr(torch.ops.aten, name)
    truth = x > 0 if name.startswith(("logical", "bitwise", "any", "all")) else x
    two = name in ("gt", "ge", "lt", "le", "eq", "ne", "heaviside", "logical_and", "logical_or", "logical_xor")
    if two or name in ("bitwise_and", "bitwise_or"):
        return operation(truth, SECOND if truth is x else SECOND > 0)  # type: ignore[no-any-return]
    return operation(truth)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "name", sorted(name for name, operation in OPERATIONS.items() if operation.reading == "locally constant")
)
def test_such_operations_are_constant_around_an_input(name: str) -> None:
    assert torch.equal(applied(name, AT), applied(name, AT + SMALL))


OF_A_SHAPE = {
    **dict.fromkeys(("zeros_like", "ones_like", "zero"), ()),
    **dict.fromkeys(("full_like", "fill"), (3.0,)),
    **{name: ([2, 4],) for name in ("new_zeros", "new_ones")},
    "new_full": ([2, 4], 3.0),
}
WITHOUT_VALUES = {"empty_like", "new_empty", "new_empty_strided"}  # which hold whatever was there


def test_operations_of_a_shape_take_nothing_but_a_shape() -> None:
    shaped = {name for name, operation in OPERATIONS.items() if operation.reading == "shape"}
    assert shaped == {*OF_A_SHAPE, *WITHOUT_VALUES}
    for name, rest in OF_A_SHAPE.items():
        operation = getattr(torch.ops.aten, name)
        assert torch.equal(operation(AT, *rest), operation(-3 * AT, *rest))
