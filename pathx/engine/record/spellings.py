"""Rewrites to the one spelling of an operation that has a rule: while a model runs (`RESPELLINGS`) and in its graph (`fold`).

A respelling takes a call's arguments and returns what to run instead, or None where the call stays as it is. `FUNCTIONS` does the
same for functions of torch whose operations no longer show what was meant.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf, prod
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from pathx.engine.record.operations import Graph, Node, Value, value_at
from pathx.errors import PathxError

Run = Callable[[], Any]
Respelling = Callable[..., Run | None]

aten = torch.ops.aten


def _extreme(reduce: Any) -> Respelling:
    def respell(x: Tensor, dim: Any = (), keepdim: bool = False) -> Run:
        """A maximum over several dimensions as one over a single dimension, which also returns the indices."""
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

    return respell


def _strides_of_one(x: Tensor, size: Any, stride: Any, offset: Any = None) -> Run | None:
    """Drop an `as_strided_` that only sets strides of dimensions of size 1, as pooling does in channels_last."""
    moved = any(n > 1 and old != new for n, old, new in zip(x.shape, x.stride(), stride, strict=False))
    if tuple(size) != tuple(x.shape) or moved or offset not in (None, x.storage_offset()):
        return None
    return lambda: x


def _mask_fill(in_place: bool) -> Respelling:
    def respell(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
        """`x[x < 0] = 0` as `masked_fill`."""
        mask = indices[0] if len(indices) == 1 else None
        if mask is None or mask.dtype != torch.bool or mask.shape != x.shape or accumulate or values.dim():
            return None
        return lambda: x.masked_fill_(mask, values) if in_place else x.masked_fill(mask, values)

    return respell


def _expand(function: Any) -> Respelling:
    def respell(*args: Any, **kwargs: Any) -> Run | None:
        """Expand the arguments of maxima and clamps to the shape of the result: each of its elements is a unit."""
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        if all(tensor.shape == shape or not tensor.dim() for tensor in tensors):
            return None

        def wide(arg: Any) -> Any:
            return arg.expand(shape) if isinstance(arg, Tensor) and arg.dim() else arg

        return lambda: function(*map(wide, args), **{name: wide(arg) for name, arg in kwargs.items()})

    return respell


def _rrelu(leaky_relu: Callable[[Tensor, float], Tensor]) -> Respelling:
    def respell(x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *training: Any) -> Run:
        """RReLU in eval mode: its slope is the mean of its bounds. In training it is random, which is refused."""
        return lambda: leaky_relu(x, torch.rand(()).item() if any(training[:1]) else (lower + upper) / 2)

    return respell


def _number(x: Any) -> Run | None:
    """TorchScript's optimiser calls operations on constants, some of which arrive as plain numbers."""
    return None if isinstance(x, Tensor) else lambda: x


def _equality(x: Any, other: Any) -> Run | None:
    """Of two constants of TorchScript: a tensor and a number are none that it could share."""
    both = isinstance(x, Tensor) and isinstance(other, Tensor)
    return None if both else lambda: type(x) is type(other) and x == other


def _convolution(*args: Any) -> Run:
    """TorchScript's spelling, with the settings of one library."""
    return lambda: aten.convolution.default(*args[:9])


def _gated_linear_unit(x: Tensor, dim: int = -1) -> Run:
    """A product of two halves, one of them after a sigmoid."""

    def run() -> Tensor:
        value, gate = x.chunk(2, dim)
        return value * gate.sigmoid()

    return run


def _channel_shuffle(x: Tensor, groups: int) -> Run:
    """As views: the operation has no derivative before torch 2.6."""
    return lambda: x.unflatten(1, (groups, -1)).transpose(1, 2).flatten(1, 2)


def _whole_slice(x: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Run | None:
    """A slice of everything, which older releases of torch make of `:`, is another name for the same tensor."""
    whole = not start and step == 1 and (end is None or end >= x.shape[dim])
    return (lambda: aten.alias(x)) if whole else None


def _view_in_order(x: Tensor, size: Any) -> Run | None:
    """A view of a tensor that lies in memory in another order than in the model: what attention makes does, unless fused."""
    if x.is_contiguous():  # nearly always
        return None
    try:
        torch.empty_strided(x.shape, x.stride(), device="meta").view(size)
    except RuntimeError:
        return lambda: x.contiguous().view(size)
    return None


def _spread_and_mean(spread: Callable[..., Tensor]) -> Respelling:
    def respell(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Run:
        """Two operations: the mean is linear, and the variance is not."""
        return lambda: (spread(x, dim, correction=correction, keepdim=keepdim), x.mean(dim, keepdim))

    return respell


def _interpolation(start: Tensor, end: Tensor, weight: Any) -> Run:
    return lambda: start + weight * (end - start)


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    size: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    mask: Tensor | None = None,
    need_weights: bool = True,
    average: bool = True,
    mask_type: int | None = None,
) -> Run:
    """nn.MultiheadAttention as it runs, and is traced, without gradients: one operation, which masks where the mask is not 0."""

    def run() -> tuple[Tensor, Tensor | None]:
        parts = zip((query, key, value), weight.chunk(3), bias.chunk(3), strict=True)
        q, k, v = (F.linear(x, w, b).unflatten(2, (heads, -1)).transpose(1, 2) for x, w, b in parts)
        scores = q * q.shape[-1] ** -0.5 @ k.transpose(2, 3)
        if mask is not None:
            scores = scores.masked_fill(mask[:, None, None] != 0 if mask_type == 1 else mask != 0, -inf)
        pattern = scores.softmax(-1)
        out = F.linear((pattern @ v).transpose(1, 2).flatten(2), out_weight, out_bias)
        return out, (pattern.mean(1) if average else pattern) if need_weights else None

    return run


def _encoder_layer(
    x: Tensor,
    size: int,
    heads: int,
    weight: Tensor,
    bias: Tensor,
    out_weight: Tensor,
    out_bias: Tensor,
    use_gelu: bool,
    norm_first: bool,
    eps: float,
    *rest: Any,
) -> Run:
    """nn.TransformerEncoderLayer in the same way."""
    first, second, (up, up_bias, down, down_bias) = rest[:2], rest[2:4], rest[4:8]
    mask, mask_type = (*rest[8:], None, None)[:2]

    def norm(x: Tensor, affine: tuple[Tensor, ...]) -> Tensor:
        return torch.layer_norm(x, (size,), affine[0], affine[1], eps)

    def attend(x: Tensor) -> Tensor:
        attention = (x, x, x, size, heads, weight, bias, out_weight, out_bias, mask, False, True, mask_type)
        return aten._native_multi_head_attention(*attention)[0]  # type: ignore[no-any-return]

    def feed(x: Tensor) -> Tensor:
        return F.linear((F.gelu if use_gelu else F.relu)(F.linear(x, up, up_bias)), down, down_bias)

    def run() -> Tensor:
        if norm_first:
            y = x + attend(norm(x, first))
            return y + feed(norm(y, second))
        y = norm(x + attend(x), first)
        return norm(y + feed(y), second)

    return run


def _statistics_of_one(
    x: Tensor,
    weight: Any,
    bias: Any,
    running_mean: Any,
    running_var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> Run | None:
    """A norm by the statistics of each channel of one image, as `instance_norm` ends in: a group norm with a group per channel."""
    if not training or running_mean is not None or len(x) != 1:
        return None
    return lambda: aten.native_group_norm(x, weight, bias, 1, x.shape[1], prod(x.shape[2:]), x.shape[1], eps)


def _statistics_alone(x: Tensor, weight: Any, bias: Any, training: bool, momentum: float, eps: float) -> Run | None:
    """The same in a program of core operations."""
    return _statistics_of_one(x, weight, bias, None, None, training, momentum, eps)


RESPELLINGS: dict[Any, Respelling] = {
    aten._native_multi_head_attention.default: _attention,
    aten._transformer_encoder_layer_fwd.default: _encoder_layer,
    aten.native_batch_norm.default: _statistics_of_one,
    aten._native_batch_norm_legit.no_stats: _statistics_alone,
    aten.var_mean.correction: _spread_and_mean(torch.var),
    aten.std_mean.correction: _spread_and_mean(torch.std),
    aten.lerp.Tensor: _interpolation,
    aten.lerp.Scalar: _interpolation,
    aten.channel_shuffle.default: _channel_shuffle,
    aten.native_channel_shuffle.default: _channel_shuffle,
    aten.slice.Tensor: _whole_slice,
    aten.view.default: _view_in_order,
    aten._unsafe_view.default: _view_in_order,
    aten.glu.default: _gated_linear_unit,
    aten._convolution.default: _convolution,
    aten.amax.default: _extreme(torch.max),
    aten.amin.default: _extreme(torch.min),
    aten.as_strided_.default: _strides_of_one,
    aten._local_scalar_dense.default: _number,
    aten.equal.default: _equality,
    aten.index_put.default: _mask_fill(in_place=False),
    aten.index_put_.default: _mask_fill(in_place=True),
    **{op: _expand(op) for op in (aten.clamp.Tensor, aten.clamp_max.Tensor, aten.clamp_min.Tensor)},
    **{op.default: _expand(op) for op in (aten.maximum, aten.minimum)},
    aten.rrelu_with_noise.default: _rrelu(aten.leaky_relu),
    aten.rrelu_with_noise_.default: _rrelu(aten.leaky_relu_),
}


def _circular_pad(input: Tensor, pad: Any, mode: str = "constant", value: Any = None) -> Tensor | None:
    """Circular padding without writing to views of a tensor."""
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


def _one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor | None:
    """`one_hot` without reading its input, which torch does only to find wrong numbers."""
    if num_classes < 1:
        return None
    return (tensor.unsqueeze(-1) == torch.arange(num_classes, device=tensor.device)).long()


def _instance_norm(
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """`instance_norm` as a group norm with a group per channel: torch merges batch and channels instead."""
    return F.group_norm(x, x.shape[1], weight, bias, eps) if use_input_stats else None


def _batch_norm(
    x: Tensor,
    running_mean: Any,
    running_var: Any,
    weight: Any = None,
    bias: Any = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """`batch_norm` in eval mode as the one operation that it ends in: finding that out takes torch longer than a small norm."""
    return (
        None
        if training
        else torch.native_batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[0]
    )


def _refuse_recurrent(*_: Any) -> None:
    raise PathxError("pathx has no rule for recurrent layers (nn.RNN): explain a network without them", usage=True)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    Tensor.__deepcopy__: lambda tensor, memo: tensor.clone(),
    F.batch_norm: _batch_norm,
    F.instance_norm: _instance_norm,
    F.one_hot: _one_hot,
    F.pad: _circular_pad,
    aten.pad.default: _circular_pad,
    torch.rnn_relu: _refuse_recurrent,
    torch.rnn_tanh: _refuse_recurrent,
    aten.rnn_relu.input: _refuse_recurrent,
    aten.rnn_tanh.input: _refuse_recurrent,
}


QUERIES = frozenset([aten.is_pinned.default, aten.is_same_size.default])
"""Operations that ask about a tensor but not about its numbers."""

MEMORY_RESETS = frozenset([aten.set_])
"""Operations that give a tensor other memory."""

HIDDEN_WRITES: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: lambda args: args[3:5] if args[5] else ()
}
"""Operations that write to arguments without their schema saying so, and to which."""


# --- Graphs ----------------------------------------------------------------------------------------------------------

_VIEWS = ("view", "_unsafe_view")


def fold(graph: Graph) -> Graph:
    """The graph with the images in a dimension of their own in linear layers and products of stacked matrices."""
    return _fold_products_of_maps(_fold_linear_layers(graph))


def _fold_products_of_maps(graph: Graph) -> Graph:
    """Rewrite `W @ maps` and attention, which run as one product of B * C matrices, as products of (B, C, n, m)."""
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    batch, nodes, shapes = graph.shapes[graph.input.index][0], list(graph.nodes), list(graph.shapes)
    for product in graph.nodes:
        made = product.outputs[0]
        if product.kind != "bmm" or made is None:
            continue
        factors = [matrices for v in product.args if (matrices := _before_flattening(graph, makers, v)) is not None]
        fronts = {shapes[value.index][:-2] for value in factors}
        readers = [node for node in graph.nodes if made in node.inputs]
        if len(factors) < 2 or len(fronts) > 1 or any(node.kind not in _VIEWS for node in readers):
            continue
        (front,) = fronts
        if front[0] != batch:
            continue
        single = [_before_repeating(makers, value) for value in factors]
        if torch.broadcast_shapes(*(shapes[value.index][:-2] for value in single)) == front:
            factors = single  # a product repeats by itself
        nodes[product.index] = replace(product, op=aten.matmul.default, args=tuple(factors))
        shapes[made.index] = (*front, *shapes[made.index][1:])
    return replace(graph, nodes=tuple(nodes), shapes=tuple(shapes))


def _before_flattening(graph: Graph, makers: dict[Value, Node], value: Value) -> Value | None:
    """The value (B, C, n, m) that matrices (B * C, n, m) are a view of; None if they are not."""
    view = makers.get(value)
    if view is None or view.kind not in _VIEWS:
        return None
    *front, rows, columns = graph.shapes[view.inputs[0].index]
    is_flat = len(front) > 1 and graph.shapes[value.index] == (prod(front), rows, columns)
    return view.inputs[0] if is_flat else None


def _before_repeating(makers: dict[Value, Node], value: Value) -> Value:
    while (maker := makers.get(value)) is not None and maker.kind in ("expand", "clone"):
        value = maker.inputs[0]
    return value


def _fold_linear_layers(graph: Graph) -> Graph:
    """Rewrite `view, mm or addmm, view`, which a linear layer over (B, T, in) runs as, as one product and a sum for the bias."""
    shapes, dtypes = list(graph.shapes), list(graph.dtypes)
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    nodes = list(graph.nodes)
    for last in graph.nodes:
        product = makers.get(last.inputs[0]) if last.kind in _VIEWS else None
        if product is None or product.kind not in ("mm", "addmm") or product.kwargs or uses[last.inputs[0]] > 1:
            continue
        rows, matrix = product.args[-2:]
        first = makers.get(rows)
        if first is None or first.kind not in _VIEWS:
            continue
        source, made = first.inputs[0], last.outputs[0]
        if made is None or shapes[source.index][:-1] != shapes[made.index][:-1] or len(shapes[made.index]) < 3:
            continue
        if (shapes[source.index][-1], shapes[made.index][-1]) != shapes[matrix.index]:
            continue  # rows were cut or merged
        whole: Value = value_at(len(shapes))
        shapes.append(shapes[made.index])
        dtypes.append(dtypes[made.index])
        nodes[product.index] = replace(product, op=aten.matmul.default, args=(source, matrix), outputs=(whole,))
        bias = product.args[:-2]
        op = aten.add.Tensor if bias else aten.alias.default
        nodes[last.index] = replace(last, op=op, args=(whole, *bias), kwargs={})
    return replace(graph, nodes=tuple(nodes), shapes=tuple(shapes), dtypes=tuple(dtypes))
