"""What is said of operations that no gate makes linear is true of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.rules.table import OPERATIONS

X = torch.tensor([0.3, -1.7, 2.2, 0.9], dtype=torch.float64)
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


@pytest.mark.parametrize("name", sorted(name for name, operation in OPERATIONS.items() if operation.frozen))
def test_frozen_operations_are_constant_around_an_input(name: str) -> None:
    assert torch.equal(applied(name, X), applied(name, X + SMALL))


SHAPED = {
    **dict.fromkeys(("zeros_like", "ones_like", "zero"), ()),
    **dict.fromkeys(("full_like", "fill"), (3.0,)),
    **{name: ([2, 4],) for name in ("new_zeros", "new_ones")},
    "new_full": ([2, 4], 3.0),
}
WITHOUT_VALUES = {"empty_like", "new_empty", "new_empty_strided"}  # which hold whatever was there


def test_shaped_operations_take_nothing_but_a_shape() -> None:
    shaped = {name for name, operation in OPERATIONS.items() if operation.shaped}
    assert shaped == {*SHAPED, *WITHOUT_VALUES}
    for name, rest in SHAPED.items():
        operation = getattr(torch.ops.aten, name)
        assert torch.equal(operation(X, *rest), operation(-3 * X, *rest))


BENDING = {
    "pow": lambda x: x.pow(2), "elu": F.elu, "celu": F.celu, "selu": F.selu, "hardswish": F.hardswish, "gelu": F.gelu,
    "silu": F.silu, "mish": F.mish, "softplus": F.softplus, "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp,
    "logsumexp": lambda x: x.logsumexp(0), "prod": torch.prod, "var": torch.var, "std": torch.std, "glu": F.glu,
    "cumprod": lambda x: x.cumprod(0), "native_layer_norm": lambda x: F.layer_norm(x, (4,)), "softmax": lambda x: x.softmax(0),
    "native_group_norm": lambda x: F.group_norm(x[None], 2), "linalg_vector_norm": torch.linalg.vector_norm,
}  # fmt: skip


@pytest.mark.parametrize("name", BENDING)
def test_bending_operations_have_no_one_gradient_around_an_input(name: str) -> None:
    """Neither linear nor piecewise so: the gradient moves with the input."""
    assert OPERATIONS[name].bends and OPERATIONS[name].transpose is None
    gradients = []
    for x in (X, X + 1e-3 * SECOND):
        x = x.clone().requires_grad_()
        out = BENDING[name](x).flatten()
        gradients.append(torch.autograd.grad(out @ torch.arange(1.0, len(out) + 1).double(), x)[0])
    assert not torch.allclose(*gradients, rtol=1e-9, atol=0)


def test_no_record_says_two_things_of_one_operation() -> None:
    for name, operation in OPERATIONS.items():
        said = [operation.frozen, operation.shaped, operation.bends, operation.transpose is not None, operation.decides]
        assert sum(said) <= 1, name
