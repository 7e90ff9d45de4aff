"""Matrix products with a fixed factor."""

from __future__ import annotations

from torch import Tensor

from pathx.engine.record.operations import Node, Value
from pathx.engine.rules.fallback import plain, vjp
from pathx.engine.rules.geometry import Shapes, elementwise
from pathx.engine.rules.sums import total
from pathx.engine.rules.table import Call, Cotangents, Refusal, constant, linear
from pathx.engine.window import Window


def _rows(call: Shapes) -> bool:
    """Rows of a product are images, or parts of one; an image's rows are never summed up."""
    return elementwise(call) and len(call.source) > 1


def _times(call: Call, source: Value, matrix: Tensor, cotangent: Window, factor: float = 1) -> Cotangents:
    """Cotangents (P, …, out) of x @ matrix, for x (…, in) and a matrix (in, out)."""
    matrix = matrix.conj()
    if cotangent.is_one_hot and len(cotangent.shape) == 1:
        column = cotangent.position(0).flatten().expand(len(cotangent.data)).clamp(0, cotangent.shape[0] - 1)
        data = matrix.t().index_select(0, column) * cotangent.cleaned().data
    else:
        data = cotangent.dense().data @ matrix.t()
    if factor != 1:
        data = data * factor
    return [(source, cotangent.whole(data.reshape(-1, *call.shapes[source])))]


@linear("addmm", varies=(1,), fresh=True, multiplies=True, apart=_rows)
def addmm(call: Call, output: int, cotangent: Window) -> Cotangents:
    return _times(call, call.args[1], call.args[2], cotangent, call.kwargs.get("alpha", 1))


@constant("addmm")
def addmm_constant(call: Call, cotangent: Window) -> Tensor:
    bias = call.args[0] * call.kwargs.get("beta", 1)
    return total(cotangent, bias.reshape(1, -1))


@linear("matmul", varies=(0, 1), apart=_rows)
def matmul(call: Call, output: int, cotangent: Window) -> Cotangents:
    """Matrices, as many as there are, with one fixed matrix or as many; either may stand in front."""
    first, second = call.args
    if call.varies(first) and isinstance(second, Tensor) and second.dim() == 2:
        return _times(call, first, second, cotangent)
    return vjp(call, output, cotangent)


@linear("mm", fresh=True, multiplies=True, apart=_rows)
def mm(call: Call, output: int, cotangent: Window) -> Cotangents:
    return _times(call, call.args[0], call.args[1], cotangent)


@linear("linear", apart=_rows)
def linear_layer(call: Call, output: int, cotangent: Window) -> Cotangents:
    return _times(call, call.args[0], call.args[1].t(), cotangent)


@constant("linear")
def linear_constant(call: Call, cotangent: Window) -> Tensor | None:
    bias = call.arg(2, "bias")
    return None if bias is None else total(cotangent, bias[None])


def _one_factor(first: int, second: int) -> Refusal:
    def refuses(node: Node, varying: list[int]) -> str | None:
        """A sum with a product: only one factor may vary."""
        return "multiplies what it computed from the image" if {first, second} <= set(varying) else None

    return refuses


plain("bmm", takes_frozen=True, varies=(0, 1))
plain("baddbmm", takes_frozen=True, varies=(0, 1, 2), together=True, refuses=_one_factor(1, 2))
plain("addcmul", takes_frozen=True, varies=(0, 1, 2), together=True, refuses=_one_factor(1, 2))
plain("addcdiv", takes_frozen=True, varies=(0, 1), together=True)
plain("mv", apart=lambda call: len(call.source) == 2)
plain("addmv", varies=(1,), apart=lambda call: len(call.source) == 2)
