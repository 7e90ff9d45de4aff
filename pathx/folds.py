"""A linear layer over all but the last dimension, (B, T, in) to (B, T, out), put back together.

torch runs it as one product over B * T rows, in which pictures no longer have a dimension of their own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import torch

from pathx.trace import Graph, Node, Value

_VIEWS = ("view", "_unsafe_view")


def fold(graph: Graph) -> Graph:
    """The graph with `view, mm or addmm, view` in the place of such a layer made one product, and a sum for its bias."""
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
