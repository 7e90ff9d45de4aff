"""Linear operations without a rule of their own: autograd's VJP of the one operation, on full maps."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from pathx.engine.record.operations import Value, filled
from pathx.engine.rules.sums import total
from pathx.engine.rules.table import Call, Cotangents, record
from pathx.engine.window import Window


def plain(*names: str, **what: Any) -> None:
    """Register operations that are linear, plus a constant, in the arguments that may vary."""
    record(*names, **{"transpose": vjp, "constant": vjp_constant, "takes_frozen": False, **what})


def vjp(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Autograd's transpose of one linear operation."""
    cotangent = cotangent.dense()
    sources = _sources(call)
    probes = [_zeros(call, value, cotangent.data, len(cotangent.data)) for value in sources]
    pull = torch.func.vjp(lambda *given: _applied(call, output, sources, given, cotangent.image), *probes)[1]
    return [(value, cotangent.whole(data)) for value, data in zip(sources, pull(cotangent.data), strict=True)]


def vjp_constant(call: Call, cotangent: Window) -> Tensor | None:
    """The constant part of such an operation: what it makes of zeros."""
    sources = _sources(call)
    images = max([len(tensor) for tensor in _with_images(call)], default=1)
    zeros = [_zeros(call, value, cotangent.data, images) for value in sources]
    image = torch.arange(images, device=cotangent.data.device)
    made = _applied(call, 0, sources, zeros, image)
    return total(cotangent, made)


def _sources(call: Call) -> list[Value]:
    """The arguments that vary."""
    found: dict[Value, None] = {}
    filled(list(call.args), lambda leaf: found.setdefault(leaf) if call.varies(leaf) else None)
    return list(found)


def _zeros(call: Call, value: Value, like: Tensor, count: int) -> Tensor:
    real = like.real if like.is_complex() else like
    dtype = torch.promote_types(real.dtype, torch.complex64) if value in call.complex else real.dtype
    return torch.zeros(count, *call.shapes[value], dtype=dtype, device=like.device)


def _applied(call: Call, output: int, sources: list[Value], given: Any, image: Tensor) -> Tensor:
    """The operation on the given values, with what belongs to each image taken from the one each row is about."""
    places = dict(zip(sources, given, strict=True))

    def run(belonging: list[Tensor]) -> Tensor:
        belongs = {id(tensor) for tensor in belonging}

        def actual(leaf: Any) -> Any:
            if isinstance(leaf, Value):
                return places[leaf] if leaf in places else call.saved[leaf].index_select(0, image)
            return leaf.index_select(0, image) if id(leaf) in belongs else leaf

        args = [filled(arg, actual) for arg in call.args]
        out = call.node.op(*args, **{name: filled(arg, actual) for name, arg in call.kwargs.items()})
        made: Tensor = out[output] if isinstance(out, (tuple, list)) else out
        return made

    if call.batch > 1:
        return run(_with_images(call))
    # One image: a first dimension of 1 is the batch, or is broadcast along it. It is neither where the rows do not come out.
    with suppress(RuntimeError):
        made = run(_with_images(call))
        if len(made) == len(given[0]):
            return made
    return run([])


def _with_images(call: Call) -> list[Tensor]:
    """Tensors among the arguments that have the images of the batch in front: frozen, or fixed for each of them."""
    found = [call.saved[value] for value in call.node.inputs if value in call.saved]
    rank = 1 + len(call.shapes[call.node.outputs[0]])  # type: ignore[index]
    ranks, batch = {rank, _rank_of_part(call, rank)}, call.batch

    def look(leaf: Any) -> None:
        if isinstance(leaf, Tensor) and leaf.dim() in ranks and len(leaf) == batch:
            found.append(leaf)

    filled([*call.args, *call.kwargs.values()], look)
    return found


def _rank_of_part(call: Call, rank: int) -> int:
    """How many dimensions a part has that is written into a tensor of some rank."""
    if call.node.kind == "index_put":
        places: list[int] = [index.dim() for index in call.args[1] if index is not None]
        return rank - len(places) + max(places)
    return rank - 1 if call.node.kind == "diagonal_scatter" else rank
