"""Operations brought to the one spelling that has a rule, while a model runs (`RESPELLINGS`) and in its graph (`fold`).

Each respelling takes a call's arguments and returns what to run instead, or None where the call stays as it is. `FUNCTIONS`
does the same for what torch offers in Python, where the operations that it is made of no longer show what was meant.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import prod
from string import ascii_letters
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

    return respell


def _restrided(x: Tensor, size: Any, stride: Any, offset: Any = None) -> Run | None:
    """`as_strided_` where it moves nothing: strides of dimensions of size 1, as pooling sets them in channels_last."""
    moved = any(n > 1 and old != new for n, old, new in zip(x.shape, x.stride(), stride, strict=False))
    if tuple(size) != tuple(x.shape) or moved or offset not in (None, x.storage_offset()):
        return None
    return lambda: x


def _masked(in_place: bool) -> Respelling:
    def respell(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False) -> Any:
        """`x[x < 0] = 0`."""
        mask = indices[0] if len(indices) == 1 else None
        if mask is None or mask.dtype != torch.bool or mask.shape != x.shape or accumulate or values.dim():
            return None
        return lambda: x.masked_fill_(mask, values) if in_place else x.masked_fill(mask, values)

    return respell


def _broadcast(function: Any) -> Respelling:
    def respell(*args: Any, **kwargs: Any) -> Run | None:
        """Of maxima and clamps every element is a unit: arguments are given the shape of the result first."""
        tensors = [arg for arg in (*args, *kwargs.values()) if isinstance(arg, Tensor)]
        shape = torch.broadcast_shapes(*(tensor.shape for tensor in tensors))
        if all(tensor.shape == shape or not tensor.dim() for tensor in tensors):
            return None

        def wide(arg: Any) -> Any:
            return arg.expand(shape) if isinstance(arg, Tensor) and arg.dim() else arg

        return lambda: function(*map(wide, args), **{name: wide(arg) for name, arg in kwargs.items()})

    return respell


def _mean_slope(leaky_relu: Callable[[Tensor, float], Tensor]) -> Respelling:
    def respell(x: Tensor, noise: Tensor, lower: float = 1 / 8, upper: float = 1 / 3, *training: Any) -> Run:
        """RReLU, whose slope is the mean of its bounds at rest. In training it is drawn, which is refused."""
        return lambda: leaky_relu(x, torch.rand(()).item() if any(training[:1]) else (lower + upper) / 2)

    return respell


def _of_numbers(function: Callable[..., Any]) -> Respelling:
    """TorchScript's optimiser looks at constants, which arrive as plain numbers."""
    return lambda *args: None if isinstance(args[0], Tensor) else lambda: function(*args)


def _convolution(*args: Any) -> Run:
    """As TorchScript spells it, with settings for one library."""
    return lambda: aten.convolution.default(*args[:9])


def _gated_linear_unit(x: Tensor, dim: int = -1) -> Run:
    """A product of two halves, one of them after a sigmoid."""

    def run() -> Tensor:
        value, gate = x.chunk(2, dim)
        return value * gate.sigmoid()

    return run


RESPELLINGS: dict[Any, Respelling] = {
    aten.glu.default: _gated_linear_unit,
    aten._convolution.default: _convolution,
    aten.amax.default: _extreme(torch.max),
    aten.amin.default: _extreme(torch.min),
    aten.as_strided_.default: _restrided,
    aten._local_scalar_dense.default: _of_numbers(lambda number: number),
    aten.equal.default: _of_numbers(operator.eq),
    aten.index_put.default: _masked(in_place=False),
    aten.index_put_.default: _masked(in_place=True),
    **{op: _broadcast(op) for op in (aten.clamp.Tensor, aten.clamp_max.Tensor, aten.clamp_min.Tensor)},
    **{op.default: _broadcast(op) for op in (aten.maximum, aten.minimum, aten.fmax, aten.fmin)},
    aten.rrelu_with_noise.default: _mean_slope(aten.leaky_relu),
    aten.rrelu_with_noise_.default: _mean_slope(aten.leaky_relu_),
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


def _summed(equation: Any, *operands: Any, path: Any = None) -> Tensor | None:
    """`einsum` of one factor that has the images in front and one that has not, as a product that keeps them there.

    torch puts dimensions of size 1, such as a batch of one image, wherever it likes.
    """
    operands = tuple(operands[0]) if len(operands) == 1 and isinstance(operands[0], (list, tuple)) else operands
    if not isinstance(equation, str) or "->" not in equation or len(operands) != 2:
        return None
    inputs, _, out = equation.replace(" ", "").partition("->")
    first, _, second = inputs.partition(",")
    if "..." in inputs:
        ranks = [tensor.dim() - len(term) + 3 for tensor, term in zip(operands, (first, second), strict=True)]
        more = max(rank for rank, term in zip(ranks, (first, second), strict=True) if "..." in term)
        unused = [letter for letter in ascii_letters if letter not in equation][:more]
        ends = ["".join(unused[more - rank :]) for rank in ranks]
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


def _instances(
    x: Tensor,
    running_mean: Any = None,
    running_var: Any = None,
    weight: Any = None,
    bias: Any = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor | None:
    """`instance_norm` by what an image is itself: every channel is a group. torch takes the batch for channels."""
    return F.group_norm(x, x.shape[1], weight, bias, eps) if use_input_stats else None


def _refuse_recurrent(*_: Any) -> None:
    raise PathxError("pathx has no rule for recurrent layers (nn.RNN): explain a network without them", usage=True)


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    Tensor.__deepcopy__: lambda tensor, memo: tensor.clone(),
    F.instance_norm: _instances,
    F.one_hot: _one_hot,
    F.pad: _padded,
    aten.pad.default: _padded,
    torch.einsum: _summed,
    aten.einsum.default: _summed,
    torch.rnn_relu: _refuse_recurrent,
    aten.rnn_relu.input: _refuse_recurrent,
}


QUERIES = frozenset([aten.is_pinned.default, aten.is_same_size.default])
"""Operations that ask about a tensor, and not about its numbers."""

MEMORY_RESETS = frozenset([aten.set_])
"""Operations that put other memory in the place of a tensor's own."""

HIDDEN_WRITES: dict[Any, Callable[..., Any]] = {
    aten.native_batch_norm.default: lambda args: args[3:5] if args[5] else ()
}
"""Operations that write into arguments without their schema saying so: into which."""


# --- Graphs ----------------------------------------------------------------------------------------------------------

_VIEWS = ("view", "_unsafe_view")
_REDUCTIONS = ("mean", "sum", "max", "min", "median", "select")


def fold(graph: Graph) -> Graph:
    """The graph with images in a dimension of their own, where torch takes them together in a known way."""
    for folded in (_fold_linear_layers, _fold_sums_of_products, _fold_products_of_maps, _fold_ensembles):
        graph = folded(graph)
    return graph


def _fold_sums_of_products(graph: Graph) -> Graph:
    """`view(1, B * T, in), bmm with one matrix, view`, as TorchScript runs `einsum`, made a product of each image's rows."""
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    batch, nodes, shapes = graph.shapes[graph.input.index][0], list(graph.nodes), list(graph.shapes)
    for product in graph.nodes:
        first = makers.get(product.args[0]) if product.kind == "bmm" and batch > 1 else None
        if first is None or first.kind not in _VIEWS or uses[product.args[0]] > 1:
            continue
        made, (count, rows, size) = product.outputs[0], shapes[product.args[0].index]
        if made is None or count > 1 or shapes[first.inputs[0].index][0] != batch or rows % batch:
            continue
        apart = (batch, rows // batch)
        nodes[first.index] = replace(first, op=aten.reshape.default, args=(first.inputs[0], [*apart, size]))
        nodes[product.index] = replace(product, op=aten.matmul.default)
        shapes[product.args[0].index], shapes[made.index] = (*apart, size), (*apart, shapes[made.index][2])
    return replace(graph, nodes=tuple(nodes), shapes=tuple(shapes))


def _fold_products_of_maps(graph: Graph) -> Graph:
    """`W @ maps`, which runs as one product of B * C matrices, made one that keeps the images apart."""
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    batch, nodes, shapes = graph.shapes[graph.input.index][0], list(graph.nodes), list(graph.shapes)
    for product in graph.nodes:
        made = product.outputs[0]
        if product.kind != "bmm" or made is None:
            continue
        factors = [matrices for v in product.args if (matrices := _unflattened(graph, makers, v)) is not None]
        fronts = {shapes[value.index][:-2] for value in factors}
        readers = [node for node in graph.nodes if made in node.inputs]
        if len(factors) < 2 or len(fronts) > 1 or any(node.kind not in _VIEWS for node in readers):
            continue
        (front,) = fronts
        if front[0] != batch:
            continue
        single = [_unrepeated(makers, value) for value in factors]
        if torch.broadcast_shapes(*(shapes[value.index][:-2] for value in single)) == front:
            factors = single  # a product repeats by itself
        nodes[product.index] = replace(product, op=aten.matmul.default, args=tuple(factors))
        shapes[made.index] = (*front, *shapes[made.index][1:])
    return replace(graph, nodes=tuple(nodes), shapes=tuple(shapes))


def _unflattened(graph: Graph, makers: dict[Value, Node], value: Value) -> Value | None:
    """What matrices (B * C, n, m) were before they were put in one row: (B, C, n, m); None where they were nothing else."""
    view = makers.get(value)
    if view is None or view.kind not in _VIEWS:
        return None
    *front, rows, columns = graph.shapes[view.inputs[0].index]
    is_flat = len(front) > 1 and graph.shapes[value.index] == (prod(front), rows, columns)
    return view.inputs[0] if is_flat else None


def _unrepeated(makers: dict[Value, Node], value: Value) -> Value:
    while (maker := makers.get(value)) is not None and maker.kind in ("expand", "clone"):
        value = maker.inputs[0]
    return value


def _fold_ensembles(graph: Graph) -> Graph:
    """`stack(…, 0).mean(0)`, and other reductions, made the same along the dimension after the batch."""
    nodes, shapes = list(graph.nodes), list(graph.shapes)
    for stack in graph.nodes:
        made = stack.outputs[0]
        rank = 0 if made is None else len(shapes[made.index])
        if stack.kind != "stack" or made is None or (len(stack.args) > 1 and stack.args[1] % rank) or rank < 3:
            continue
        readers = [node for node in graph.nodes if made in node.inputs]
        if not all(_reduces_first(node) for node in readers):
            continue
        nodes[stack.index] = replace(stack, args=(stack.args[0], 1))
        for node in readers:
            dim = [1] if isinstance(node.args[1], list) else 1
            nodes[node.index] = replace(node, args=(made, dim, *node.args[2:]))
        count, batch, *rest = shapes[made.index]
        shapes[made.index] = (batch, count, *rest)
    return replace(graph, nodes=tuple(nodes), shapes=tuple(shapes))


def _reduces_first(node: Node) -> bool:
    """Whether a node reduces the first dimension of its input, which is then gone."""
    if node.kind not in _REDUCTIONS or len(node.args) < 2 or node.args[1] not in ([0], 0):
        return False
    return node.kind == "select" or not any(node.args[2:3])  # keepdim


def _fold_linear_layers(graph: Graph) -> Graph:
    """`view, mm or addmm, view`, as a linear layer over (B, T, in) runs, made one product, and a sum for the bias."""
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
            continue  # rows were cut or put together
        whole: Value = value_at(len(shapes))
        shapes.append(shapes[made.index])
        dtypes.append(dtypes[made.index])
        nodes[product.index] = replace(product, op=aten.matmul.default, args=(source, matrix), outputs=(whole,))
        bias = product.args[:-2]
        op = aten.add.Tensor if bias else aten.alias.default
        nodes[last.index] = replace(last, op=op, args=(whole, *bias), kwargs={})
    return replace(graph, nodes=tuple(nodes), shapes=tuple(shapes), dtypes=tuple(dtypes))
