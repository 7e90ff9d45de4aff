"""Operations recorded as others that do the same and that the tables know, and what their schemas do not say of them.

Each rewrite takes a call's arguments and returns what to run instead, or None where the call stays as it is. `FUNCTIONS`
does the same for what torch offers in Python, where the operations that it is made of no longer show what was meant.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from math import prod
from string import ascii_letters
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Factor = Callable[[Tensor, Tensor], Any]  # k where the first was computed as k times the second, else None
Run = Callable[[], Tensor]
Rewrite = Callable[..., Run | None]

aten = torch.ops.aten


def _extreme(reduce: Any) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, dim: Any = (), keepdim: bool = False) -> Run:
        """A maximum over several dimensions as one over a single dimension, which says who won."""
        dims = sorted(d % x.dim() for d in ([dim] if isinstance(dim, int) else dim or range(x.dim())))

        def run() -> Tensor:
            if len(dims) == 1:
                return reduce(x, dims[0], keepdim)[0]  # type: ignore[no-any-return]
            rest = [d for d in range(x.dim()) if d not in dims]
            best: Tensor = reduce(x.permute(*rest, *dims).flatten(len(rest)), len(rest))[0]
            for d in dims if keepdim else []:
                best = best.unsqueeze(d)
            return best

        return run

    return rewrite


def _restrided(factor: Factor, x: Tensor, size: Any, stride: Any, offset: Any = None) -> Run | None:
    """`as_strided_` where it moves nothing: strides of dimensions of size 1, as pooling sets them in channels_last."""
    moved = any(n > 1 and old != new for n, old, new in zip(x.shape, x.stride(), stride, strict=False))
    if tuple(size) != tuple(x.shape) or moved or offset not in (None, x.storage_offset()):
        return None
    return lambda: x


def _filled(in_place: bool) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
        """`x[x < 0] = 0`."""
        mask = indices[0] if len(indices) == 1 else None
        if mask is None or mask.dtype != torch.bool or mask.shape != x.shape or accumulate or values.dim():
            return None
        return lambda: x.masked_fill_(mask, values) if in_place else x.masked_fill(mask, values)

    return rewrite


def _choice(choose: Callable[[Tensor, Tensor], Tensor], takes_first: Callable[[Tensor, Tensor], Tensor]) -> Rewrite:
    def rewrite(factor: Factor, first: Tensor, second: Tensor) -> Run | None:
        """A leaky ReLU spelled out, `maximum(x, 0.1 * x)`: x times one of two slopes."""
        slopes = _two_slopes(factor, lambda: takes_first(first, second), first, second)
        if slopes is not None or first.shape == second.shape or 0 in (first.dim(), second.dim()):
            return slopes
        shape = torch.broadcast_shapes(first.shape, second.shape)
        return lambda: choose(first.expand(shape), second.expand(shape))

    return rewrite


def _bounded(clamp: Any) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, *bounds: Any, **named: Any) -> Run | None:
        """A clamp whose bounds make more of a value than there was: every element is a unit."""
        given = [bound for bound in (*bounds, *named.values()) if isinstance(bound, Tensor)]
        shape = torch.broadcast_shapes(x.shape, *(bound.shape for bound in given))
        return None if x.shape == shape else lambda: clamp(x.expand(shape), *bounds, **named)

    return rewrite


def _power(factor: Factor, x: Tensor, exponent: Any) -> Run | None:
    """`x ** 1`, as pooling by the first power has it."""
    return x.clone if exponent == 1 and x.is_floating_point() else None


def _norm(
    factor: Factor, x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, dtype: Any = None
) -> Run | None:
    """The norms that are made of absolute values alone."""
    dims = list(range(x.dim())) if dim is None else dim
    if ord not in (1, math.inf, -math.inf) or dtype is not None:
        return None
    reduce = torch.sum if ord == 1 else torch.amax if ord > 0 else torch.amin
    return lambda: reduce(x.abs(), dims, keepdim)


def _where(factor: Factor, condition: Tensor, first: Tensor, second: Tensor) -> Run | None:
    """`where(x > 0, x, 0.1 * x)`."""
    return _two_slopes(factor, lambda: condition, first, second)


def _two_slopes(factor: Factor, condition: Run, first: Tensor, second: Tensor) -> Run | None:
    above, below = factor(first, second), factor(second, first)
    if above is None and below is None:
        return None
    x, slopes = (first, (1.0, below)) if above is None else (second, (above, 1.0))

    def run() -> Tensor:
        slope: Tensor = torch.where(condition(), *slopes)  # type: ignore[assignment]
        return x * slope.to(x.dtype)

    return run


def _mean_slope(leaky_relu: Callable[[Tensor, float], Tensor]) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, noise: Tensor, *settings: Any) -> Run:
        """RReLU: at rest its slope is the mean of its bounds, in training it is drawn."""
        lower, upper, training = [*settings, *_RRELU_DEFAULTS[len(settings) :]][:3]
        return lambda: leaky_relu(x, torch.rand(()).item() if training else (lower + upper) / 2)

    return rewrite


_RRELU_DEFAULTS = (1 / 8, 1 / 3, False)  # which calls leave out


def _scattered(add: Callable[..., Tensor]) -> Rewrite:
    def rewrite(factor: Factor, x: Tensor, dim: int, index: Tensor, source: Any, *, reduce: str) -> Run | None:
        """`scatter` that adds, of which torch has no gradient."""
        if reduce != "add":
            return None
        given = source if isinstance(source, Tensor) else torch.full_like(index, source, dtype=x.dtype)
        return lambda: add(x, dim, index, given)

    return rewrite


def _of_numbers(function: Callable[..., Any]) -> Rewrite:
    """TorchScript's optimiser looks at constants, which arrive as plain numbers."""
    return lambda factor, *args: None if isinstance(args[0], Tensor) else lambda: function(*args)


REWRITES: dict[Any, Rewrite] = {
    aten.amax.default: _extreme(torch.max),
    aten.amin.default: _extreme(torch.min),
    aten.as_strided_.default: _restrided,
    aten._local_scalar_dense.default: _of_numbers(lambda number: number),
    aten.equal.default: _of_numbers(operator.eq),
    aten.index_put.default: _filled(in_place=False),
    aten.index_put_.default: _filled(in_place=True),
    aten.clamp.Tensor: _bounded(aten.clamp.Tensor),
    aten.clamp_max.Tensor: _bounded(aten.clamp_max.Tensor),
    aten.clamp_min.Tensor: _bounded(aten.clamp_min.Tensor),
    aten.fmax.default: _choice(torch.fmax, torch.gt),
    aten.fmin.default: _choice(torch.fmin, torch.lt),
    aten.linalg_vector_norm.default: _norm,
    aten.maximum.default: _choice(torch.maximum, torch.gt),
    aten.minimum.default: _choice(torch.minimum, torch.lt),
    aten.pow.Tensor_Scalar: _power,
    aten.rrelu_with_noise.default: _mean_slope(aten.leaky_relu),
    aten.rrelu_with_noise_.default: _mean_slope(aten.leaky_relu_),
    aten.scatter.reduce: _scattered(torch.scatter_add),
    aten.scatter.value_reduce: _scattered(torch.scatter_add),
    aten.scatter_.reduce: _scattered(Tensor.scatter_add_),
    aten.scatter_.value_reduce: _scattered(Tensor.scatter_add_),
    aten.where.self: _where,
}


def _padded(input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Tensor | None:
    """Circular padding without writing into parts of a tensor."""
    if mode != "circular":
        return None
    x = input
    for number in range(len(pad) // 2):
        dim, (before, after) = x.dim() - 1 - number, pad[2 * number : 2 * number + 2]
        size = x.shape[dim]
        inner = x.narrow(dim, max(0, -before), size - max(0, -before) - max(0, -after))  # what is cut off is gone
        parts = [inner.narrow(dim, inner.shape[dim] - before, before)] if before > 0 else []
        x = torch.cat([*parts, inner, *([inner.narrow(dim, 0, after)] if after > 0 else [])], dim)
    return x


def _recurrent(x: Tensor, *settings: Any) -> tuple[Tensor, Tensor] | None:
    """A recurrent network of ReLUs step by step, with the images in front all the way."""
    hidden, weights, biased, layers, _, training, two_ways, batch_first = settings
    if training or not batch_first or not isinstance(weights, (list, tuple)):
        return None
    size = 4 if biased else 2
    states, last = hidden.unbind(0), []
    for layer in range(layers):
        made = []
        for way in range(2 if two_ways else 1):
            number = layer * (2 if two_ways else 1) + way
            own = weights[number * size : (number + 1) * size]
            steps = list(x.unbind(1))[:: -1 if way else 1]
            state, outputs = states[number], []
            for step in steps:
                biases = own[2:] if biased else (None, None)
                state = torch.relu(F.linear(step, own[0], biases[0]) + F.linear(state, own[1], biases[1]))
                outputs.append(state)
            last.append(state)
            made.append(torch.stack(outputs[:: -1 if way else 1], 1))
        x = made[0] if len(made) == 1 else torch.cat(made, 2)
    return x, torch.stack(last)


def _summed(equation: Any, *operands: Any, path: Any = None) -> Tensor | None:
    """`einsum` of one factor that has the images in front and one that has not, as a product that keeps them there.

    torch puts dimensions of size 1, such as a batch of one image, wherever it likes.
    """
    operands = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if not isinstance(equation, str) or "->" not in equation:
        return None
    if len(operands) > 2:
        equation, operands = _of_two(equation, operands)
    if len(operands) != 2:
        return None
    inputs, _, out = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    if "..." in inputs:
        terms = zip(operands, (first, second), strict=True)
        more = max(tensor.dim() - len(term) + 3 for tensor, term in terms if "..." in term)
        unused = [letter for letter in ascii_letters if letter not in equation][:more]
        ends = [
            "".join(unused[more - (tensor.dim() - len(term) + 3) :])
            for tensor, term in zip(operands, (first, second), strict=True)
        ]
        first, second = first.replace("...", ends[0]), second.replace("...", ends[1])
        out = out.replace("...", "".join(unused))
    (x, mine), (w, theirs) = zip(operands, (first, second), strict=True)
    if out[:1] == theirs[:1] != mine[:1]:
        (x, mine), (w, theirs) = (w, theirs), (x, mine)
    common = [letter for letter in mine if letter in theirs]
    alone = [letter for letter in mine if letter not in theirs and letter in out]
    new = [letter for letter in theirs if letter not in mine and letter in out]
    distinct = len(set(mine)) == len(mine) and len(set(theirs)) == len(theirs)
    if not common or not distinct or out[:1] != mine[:1] or sorted(out) != sorted(alone + new) or not alone:
        return None
    (x, mine), (w, theirs) = _summed_out(x, mine, theirs + out), _summed_out(w, theirs, mine + out)
    sizes: dict[str, int] = {**dict(zip(mine, x.shape, strict=True)), **dict(zip(theirs, w.shape, strict=True))}
    if any(x.shape[mine.index(letter)] != w.shape[theirs.index(letter)] for letter in common):
        return None
    together = prod(sizes[letter] for letter in common)
    rows = x.permute(*(mine.index(letter) for letter in alone + common)).reshape(len(x), -1, together)
    matrix = w.permute(*(theirs.index(letter) for letter in common + new)).reshape(together, -1)
    made = F.linear(rows, matrix.mT).reshape([sizes[letter] for letter in alone + new])
    return made.permute(*((alone + new).index(letter) for letter in out))


def _of_two(equation: str, operands: tuple[Tensor, ...]) -> tuple[str, tuple[Tensor, ...]]:
    """An `einsum` of many factors, of which one has the images in front, as one of two: the others are multiplied first."""
    inputs, _, out = equation.replace(" ", "").partition("->")
    terms = inputs.split(",")
    first, *more = [n for n, term in enumerate(terms) if out[:1] in term] or [0, 0]
    if more or "..." in equation:
        return equation, operands
    others = [number for number in range(len(terms)) if number != first]
    kept = dict.fromkeys(letter for n in others for letter in terms[n] if letter in terms[first] + out)
    inner = f"{','.join(terms[n] for n in others)}->{''.join(kept)}"
    product = torch.einsum(inner, *(operands[n] for n in others))
    return f"{terms[first]},{''.join(kept)}->{out}", (operands[first], product)


def _summed_out(factor: Tensor, letters: str, others: str) -> tuple[Tensor, str]:
    """A factor of an `einsum` without the dimensions that nothing else has."""
    alone = [place for place, letter in enumerate(letters) if letter not in others]
    return (
        (factor.sum(alone), "".join(letter for letter in letters if letter in others)) if alone else (factor, letters)
    )


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor | None:
    """Without a look at the numbers, which is only there to find wrong ones."""
    if num_classes < 1:
        return None
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    Tensor.__deepcopy__: lambda tensor, memo: tensor.clone(),
    F.one_hot: _one_hot,
    F.pad: _padded,
    aten.pad.default: _padded,
    torch.einsum: _summed,
    aten.einsum.default: _summed,
    torch.rnn_relu: _recurrent,
    aten.rnn_relu.input: _recurrent,
}


def spelled(func: Any, args: tuple[Any, ...], given: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A call in the one spelling that graphs have.

    Args:
        given: the arguments with their tensors.
    """
    if func is aten._convolution.default:  # as TorchScript spells it, with settings for one library
        return aten.convolution.default, args[:9]
    if func is aten.as_strided.default:  # where it begins is said where places in memory are places in the tensor
        in_order = given[0].is_contiguous() and given[0].storage_offset() == 0
        return func, (*args[:3], (args[3] if len(args) > 3 else None) or 0) if in_order else args[:3]
    return func, args


FACTORS: dict[str, Callable[[int, Callable[[], Any]], Any]] = {
    "mul": lambda place, other: other(),
    "div": lambda place, other: 1 / other() if place == 0 else None,
    "neg": lambda place, other: -1.0,
}
"""Operations that make k times one of their arguments: k by the place of that argument, and from the other; None for none."""

RESPELLED = frozenset([aten._convolution.default, aten.as_strided.default])
"""What `spelled` may write otherwise."""

QUESTIONS = frozenset([aten.is_pinned.default, aten.is_same_size.default])
"""Operations that ask about a tensor, and not about its numbers."""

RESETTING = frozenset([aten.set_])
"""Operations that put other memory in the place of a tensor's own."""

UNSAID: dict[Any, Callable[..., Any]] = {aten.native_batch_norm: lambda args: args[3:5] if args[5] else ()}
"""Operations that write into arguments without their schema saying so: into which."""


def hands_out_parts(func: Any) -> bool:
    """Whether an operation hands out parts of a tensor to be changed without regard to each other (`unsafe_split`)."""
    return str(func.name()).startswith("aten::unsafe_")
