"""Graphs in one form: images in a dimension of their own where torch takes them together, and nothing computed twice.

A linear layer over (B, T, in) runs as one product over B * T rows, a sum of products (`einsum`) as a product of one
matrix, a fixed normalisation of instances as one of B * C channels, and an ensemble is often stacked before the batch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import prod
from typing import Any

import torch

from pathx.engine.record.trace import Graph, Node, Value, filled

_VIEWS = ("view", "_unsafe_view")


def fold(graph: Graph) -> Graph:
    """The graph with images apart, as far as they were taken together in one of the known ways."""
    for folded in (_linear_layers, _instance_norms, _sums_of_products, _products_of_maps, _ensembles):
        graph = folded(graph)
    return _computed_once(graph)


def _computed_once(graph: Graph) -> Graph:
    """The graph in which nobody reads what was computed before in the same way, but that.

    TorchScript does the same; a ReLU that several branches begin with is one ReLU however a model is loaded.
    """
    first: dict[str, Node] = {}
    same: dict[Value, Value] = {}
    nodes = []

    def earlier(leaf: Any) -> Any:
        return same.get(leaf, leaf) if isinstance(leaf, Value) else leaf

    for node in graph.nodes:
        args = tuple(filled(arg, earlier) for arg in node.args)
        kwargs = {name: filled(arg, earlier) for name, arg in node.kwargs.items()}
        nodes.append(replace(node, args=args, kwargs=kwargs))
        other = first.setdefault(repr((node.op, args, kwargs)), node)
        for mine, theirs in zip(node.outputs, other.outputs, strict=True):
            if mine is not None and theirs is not None and mine is not theirs:
                same[mine] = theirs
    return replace(graph, nodes=tuple(nodes)) if same else graph


def _makers(graph: Graph) -> dict[Value, Node]:
    return {value: node for node in graph.nodes for value in node.outputs if value is not None}


def _changed(graph: Graph, nodes: dict[int, Node], shapes: dict[Value, tuple[int, ...]]) -> Graph:
    """The graph with some nodes replaced, and some values of another shape."""
    kept = list(graph.shapes)
    for value, shape in shapes.items():
        kept[value.index] = shape
    return replace(graph, nodes=tuple(nodes.get(node.index, node) for node in graph.nodes), shapes=tuple(kept))


def _instance_norms(graph: Graph) -> Graph:
    """`view, batch_norm with repeated statistics, view` made one `batch_norm`."""
    makers, batch = _makers(graph), graph.shapes[graph.input.index][0]
    nodes: dict[int, Node] = {}
    shapes: dict[Value, tuple[int, ...]] = {}
    for norm in graph.nodes:
        first = makers.get(norm.args[0]) if norm.kind.endswith("batch_norm") else None
        if first is None or first.kind not in _VIEWS or batch == 1:
            continue
        source, together = (graph.shapes[value.index] for value in (first.inputs[0], norm.inputs[0]))
        if source[0] != batch or together[:2] != (1, batch * source[1]) or together[2:] != source[2:]:
            continue
        repeats = [None if tensor is None else makers.get(tensor) for tensor in norm.args[1:5]]
        statistics = [*zip(norm.args[1:5], repeats, strict=True)]
        if any(given is not None and not _is_repeat(node, batch) for given, node in statistics):
            continue
        terms = [None if node is None else node.inputs[0] for _, node in statistics]
        nodes[norm.index] = replace(norm, args=(first.inputs[0], *terms, *norm.args[5:]))
        shapes.update({value: source for value in norm.outputs[:1] if value is not None})
    return _changed(graph, nodes, shapes)


def _is_repeat(node: Node | None, batch: int) -> bool:
    """Whether a node repeats a vector once for every image."""
    return node is not None and node.kind == "repeat" and node.args[1] == [batch]


def _sums_of_products(graph: Graph) -> Graph:
    """`view, bmm with one matrix, view` made a product of each image's rows with that matrix."""
    makers, batch = _makers(graph), graph.shapes[graph.input.index][0]
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    nodes: dict[int, Node] = {}
    shapes: dict[Value, tuple[int, ...]] = {}
    for product in graph.nodes:
        first = makers.get(product.args[0]) if product.kind == "bmm" and batch > 1 else None
        if first is None or first.kind not in _VIEWS or uses[product.args[0]] > 1:
            continue
        made, (count, rows, size) = product.outputs[0], graph.shapes[product.args[0].index]
        matrix = product.args[1] if count == 1 else _repeated(graph, makers, product.args[1])
        if made is None or matrix is None or graph.shapes[first.inputs[0].index][0] != batch or count * rows % batch:
            continue
        apart = (batch, count * rows // batch)
        nodes[first.index] = replace(first, op=torch.ops.aten.reshape.default, args=(first.inputs[0], [*apart, size]))
        nodes[product.index] = replace(product, op=torch.ops.aten.matmul.default, args=(product.args[0], matrix))
        shapes[product.args[0]], shapes[made] = (*apart, size), (*apart, graph.shapes[made.index][2])
    return _changed(graph, nodes, shapes)


def _products_of_maps(graph: Graph) -> Graph:
    """`W @ maps`, which runs as one product of B * C matrices, made one that keeps the images apart."""
    makers, batch = _makers(graph), graph.shapes[graph.input.index][0]
    nodes: dict[int, Node] = {}
    shapes: dict[Value, tuple[int, ...]] = {}
    for product in graph.nodes:
        made = product.outputs[0]
        if product.kind != "bmm" or made is None:
            continue
        factors = [found for value in product.args if (found := _of_maps(graph, makers, value)) is not None]
        if len(factors) < 2:
            continue
        (front, other), readers = _fronts(graph, factors), [node for node in graph.nodes if made in node.inputs]
        if front != other or front[0] != batch or any(node.kind not in _VIEWS for node in readers):
            continue
        single = [_unrepeated(makers, value) for value in factors]  # a product repeats by itself
        if torch.broadcast_shapes(*_fronts(graph, single)) == front:
            factors = single
        nodes[product.index] = replace(product, op=torch.ops.aten.matmul.default, args=tuple(factors))
        shapes[made] = (*front, *graph.shapes[made.index][1:])
    return _changed(graph, nodes, shapes)


def _of_maps(graph: Graph, makers: dict[Value, Node], value: Value) -> Value | None:
    """What matrices (B * C, n, m) were before they were put in one row: (B, C, n, m); None where they were nothing else."""
    view = makers.get(value)
    if view is None or view.kind not in _VIEWS or _rank(graph, view.inputs[0]) < 4:
        return None
    source = view.inputs[0]
    *front, rows, columns = graph.shapes[source.index]
    return source if graph.shapes[value.index] == (prod(front), rows, columns) else None


def _unrepeated(makers: dict[Value, Node], value: Value) -> Value:
    while (maker := makers.get(value)) is not None and maker.kind in ("expand", "clone"):
        value = maker.inputs[0]
    return value


def _fronts(graph: Graph, values: list[Value]) -> list[tuple[int, ...]]:
    return [graph.shapes[value.index][:-2] for value in values]


def _repeated(graph: Graph, makers: dict[Value, Node], value: Value) -> Value | None:
    """The one matrix that a value holds again and again; None where it does not."""
    view = makers.get(value)
    expand = makers.get(view.inputs[0]) if view is not None and view.kind in _VIEWS else None
    if expand is None or expand.kind != "expand" or _rank(graph, expand.inputs[0]) != 2:
        return None
    return expand.inputs[0]


_REDUCTIONS = ("mean", "sum", "max", "min", "median", "select")


def _ensembles(graph: Graph) -> Graph:
    """`stack(…, 0).mean(0)`, and other reductions, made the same along the dimension after the batch."""
    nodes: dict[int, Node] = {}
    shapes: dict[Value, tuple[int, ...]] = {}
    for stack in graph.nodes:
        made = stack.outputs[0]
        if stack.kind != "stack" or made is None or (len(stack.args) > 1 and stack.args[1] % _rank(graph, made)):
            continue
        readers = [node for node in graph.nodes if made in node.inputs]
        dims = [node.args[1] if len(node.args) > 1 else None for node in readers]
        if any(dim not in ([0], 0) for dim in dims) or any(node.kind not in _REDUCTIONS for node in readers):
            continue
        if (
            any(node.kind != "select" and len(node.args) > 2 and node.args[2] for node in readers)
            or _rank(graph, made) < 3
        ):
            continue  # keepdim
        nodes[stack.index] = replace(stack, args=(stack.args[0], 1))
        for node, dim in zip(readers, dims, strict=True):
            nodes[node.index] = replace(node, args=(made, [1] if isinstance(dim, list) else 1, *node.args[2:]))
        count, *rest = graph.shapes[made.index]
        shapes[made] = (rest[0], count, *rest[1:])
    return _changed(graph, nodes, shapes)


def _rank(graph: Graph, value: Value) -> int:
    return len(graph.shapes[value.index])


def _linear_layers(graph: Graph) -> Graph:
    """`view, mm or addmm, view` made one product, and a sum for the bias."""
    shapes, dtypes = list(graph.shapes), list(graph.dtypes)
    uses = Counter(value for node in graph.nodes for value in node.inputs)
    makers = {value: node for node in graph.nodes for value in node.outputs if value is not None}
    changed: dict[int, Node] = {}
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
        whole = Value(len(shapes))
        shapes.append(shapes[made.index])
        dtypes.append(dtypes[made.index])
        changed[product.index] = replace(
            product, op=torch.ops.aten.matmul.default, args=(source, matrix), outputs=(whole,)
        )
        add, same = torch.ops.aten.add.Tensor, torch.ops.aten.alias.default
        bias = product.args[:-2]
        changed[last.index] = replace(last, op=add if bias else same, args=(whole, *bias), kwargs={})
    if not changed:
        return graph
    nodes = tuple(changed.get(node.index, node) for node in graph.nodes)
    return replace(graph, nodes=nodes, shapes=tuple(shapes), dtypes=tuple(dtypes))
