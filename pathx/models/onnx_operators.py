"""ONNX's operators as torch functions; every attribute is followed, or refused by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

REAL = (1, 10, 11, 16)
"""ONNX's numbers for float32, float16, double and bfloat16; the engine computes all of them in its own precision."""

_TYPES = {**dict.fromkeys(REAL, torch.float32), 6: torch.int32, 7: torch.int64, 9: torch.bool}


@dataclass(frozen=True)
class Operator:
    """How an operator is computed."""

    run: Callable[..., Any]
    """Takes a node's inputs (None for one that is omitted) and, by keyword, the attributes that it follows."""
    follows: frozenset[str]
    ignores: frozenset[str]
    """Attributes that do not change the first result."""
    only: Mapping[str, tuple[Any, ...]]
    """Attributes that may have these values only."""
    results: int
    """Largest number of results of a node; those that are not computed must not be used."""


OPERATORS: dict[str, Operator] = {}


def operator(
    name: str, *, ignores: str = "", windows: bool = False, results: int = 1, **only: tuple[Any, ...]
) -> Callable[..., Any]:
    """Register a function. Its keyword arguments are the attributes that it follows; `windows` adds those of `_lay_windows`."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        follows = _keywords(run) | (_keywords(_lay_windows) if windows else set())
        OPERATORS[name] = Operator(run, follows, frozenset(ignores.split()), only, results)
        return run

    return register


def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


class NotConverted(Exception):
    """What about a node cannot be converted."""


def _numbers(value: Any) -> list[int]:
    """Sizes, axes or steps, which older files give as attributes and newer ones as tensors."""
    return [int(one) for one in (value.flatten().tolist() if isinstance(value, Tensor) else value or ())]


def _along(function: Callable[[Tensor, int], Tensor], x: Tensor, axis: int, opset: int) -> Tensor:
    """A softmax along an axis, up to opset 12 along all axes from there on."""
    if opset >= 13 or axis % x.dim() == x.dim() - 1:
        return function(x, axis)
    return function(x.flatten(axis), -1).reshape(x.shape)


@operator("Clip")
def _clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, min: Any = None, max: Any = None
) -> Tensor:
    least, most = min if low is None else low.item(), max if high is None else high.item()
    return x if least is most is None else x.clamp(least, most)


@operator("Attention", is_causal=(0,), softcap=(0.0,), qk_matmul_output_mode=(0,), softmax_precision=(1,))
def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, scale: float | None = None) -> Tensor:
    if q.dim() != 4 or q.shape[1] != k.shape[1]:
        raise NotConverted("heads that are not a dimension of their own, or shared")
    return F.scaled_dot_product_attention(q, k, v, mask, scale=scale)


@operator("PRelu")
def _leak(x: Tensor, slope: Tensor) -> Tensor:
    if slope.numel() == 1 or slope.shape[1 - x.dim() :] == (*x.shape[1:2], *[1] * (x.dim() - 2)):
        return F.prelu(x, slope.flatten())
    return torch.where(x > 0, x, x * slope)


@operator("Dropout", ignores="ratio seed", results=2)
def _leave(x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Tensor:
    if training is not None and bool(training):
        raise NotConverted("training_mode 1")
    return x


# Linear operators


def _lay_windows(
    x: Tensor, kernel: Any, value: float, *, strides: Any = None, dilations: Any = None, pads: Any = None, auto_pad: str
) -> tuple[Tensor, list[int], list[int], list[int]]:
    """The input, padded if its padding is asymmetric; strides; the padding that is left to torch; dilations."""
    sides = len(kernel)
    steps, spread = strides or [1] * sides, dilations or [1] * sides
    if auto_pad != "NOTSET" and any(pads or ()):
        raise NotConverted(f"auto_pad {auto_pad} and pads {pads}")
    pads = list(pads or [0] * 2 * sides)
    if auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        for side, length in enumerate(x.shape[2:]):
            reach = (kernel[side] - 1) * spread[side] + 1
            lacking = max((-(-length // steps[side]) - 1) * steps[side] + reach - length, 0)
            less, more = lacking // 2, lacking - lacking // 2
            pads[side], pads[side + sides] = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
    elif auto_pad not in ("NOTSET", "VALID"):
        raise NotConverted(f"auto_pad {auto_pad}")
    if pads[:sides] == pads[sides:]:
        return x, steps, pads[:sides], spread
    flat = [pads[side + sides * end] for side in reversed(range(sides)) for end in (0, 1)]
    return F.pad(x, flat, value=value), steps, [0] * sides, spread


@operator("Conv", ignores="kernel_shape", windows=True)
def _convolve(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, group: int, **windows: Any) -> Tensor:
    x, steps, padding, spread = _lay_windows(x, weight.shape[2:], 0.0, **windows)
    return (F.conv1d, F.conv2d, F.conv3d)[weight.dim() - 3](x, weight, bias, steps, padding, spread, group)


@operator("ConvTranspose", ignores="kernel_shape", windows=True, auto_pad=("NOTSET",))
def _convolve_transposed(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, *, group: int, output_padding: Any = 0, **windows: Any
) -> Tensor:
    _, steps, padding, spread = _lay_windows(x, weight.shape[2:], 0.0, **windows)
    if (windows.get("pads") or padding * 2) != padding * 2:
        raise NotConverted("pads that differ from side to side")
    convolve = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.dim() - 3]
    return convolve(x, weight, bias, steps, padding, output_padding, group, spread)


@operator("MaxPool", windows=True, storage_order=(0,))
def _pool_max(x: Tensor, *, kernel_shape: list[int], ceil_mode: int = 0, **windows: Any) -> Tensor:
    x, steps, padding, spread = _lay_windows(x, kernel_shape, -torch.inf, **windows)
    pool = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(kernel_shape) - 1]
    pooled: Tensor = pool(x, kernel_shape, steps, padding, spread, bool(ceil_mode))
    return pooled


@operator("AveragePool", windows=True)
def _pool_average(
    x: Tensor, *, kernel_shape: list[int], ceil_mode: int = 0, count_include_pad: int, **windows: Any
) -> Tensor:
    laid, steps, padding, spread = _lay_windows(x, kernel_shape, 0.0, **windows)
    if any(step != 1 for step in spread):
        raise NotConverted(f"dilations {spread}")
    if laid is not x and not count_include_pad:
        raise NotConverted("padding that differs from side to side and is not counted")
    pool = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(kernel_shape) - 1]
    return pool(laid, kernel_shape, steps, padding, bool(ceil_mode), bool(count_include_pad))


@operator("Gemm")
def _multiply(
    a: Tensor, b: Tensor, c: Tensor | None = None, *, alpha: float, beta: float, transA: int, transB: int
) -> Tensor:
    product = (a.transpose(0, 1) if transA else a) @ (b.transpose(0, 1) if transB else b)
    product = product * alpha if alpha != 1.0 else product
    if c is None:
        return product
    return product + (c * beta if beta != 1.0 else c)


@operator("LayerNormalization", results=3, stash_type=(1,))
def _normalize_layer(x: Tensor, scale: Tensor, bias: Tensor | None = None, *, axis: int, epsilon: float) -> Tensor:
    shape = x.shape[axis:]
    return F.layer_norm(x, shape, scale.expand(shape), None if bias is None else bias.expand(shape), epsilon)


def _reduce(
    function: Callable[..., Tensor],
    x: Tensor,
    *given: Any,
    axes: Any = None,
    keepdims: int,
    noop_with_empty_axes: int = 0,
) -> Tensor:
    chosen = _numbers(*given or (axes,))
    if not chosen and noop_with_empty_axes:
        return x
    return function(x, tuple(chosen or range(x.dim())), keepdim=bool(keepdims))


# Shapes


@operator("Reshape")
def _reshape(x: Tensor, shape: Tensor, *, allowzero: int = 0) -> Tensor:
    sizes = _numbers(shape)
    return x.reshape([x.shape[place] if size == 0 and not allowzero else size for place, size in enumerate(sizes)])


@operator("Squeeze")
def _squeeze(x: Tensor, *given: Any, axes: Any = None, opset: int) -> Tensor:
    chosen = _numbers(*given or (axes,))
    if axes is None and not given:
        return x.squeeze()
    if not chosen or (opset < 11 and min(chosen) < 0):
        raise NotConverted(f"axes {chosen}, which opset {opset} does not define")
    return x.squeeze(tuple(chosen))


@operator("Unsqueeze")
def _unsqueeze(x: Tensor, *given: Any, axes: Any = None) -> Tensor:
    chosen = _numbers(*given or (axes,))
    for axis in sorted(axis % (x.dim() + len(chosen)) for axis in chosen):
        x = x.unsqueeze(axis)
    return x


@operator("Slice")
def _slice(x: Tensor, *given: Any, starts: Any = None, ends: Any = None, axes: Any = None) -> Tensor:
    first, last, along, by = map(_numbers, (*(given or (starts, ends, axes)), None, None)[:4])
    for place, axis in enumerate(along or range(len(first))):
        step = by[place] if by else 1
        part = slice(first[place], last[place], step)
        numbers = range(*part.indices(x.shape[axis]))
        if step > 0:
            x = x[(slice(None),) * (axis % x.dim()) + (part,)]
        elif step == -1 and len(numbers) == x.shape[axis]:
            x = x.flip(axis)
        else:  # the older exporter writes padding so; torch has no such slices
            x = x.index_select(axis, torch.tensor(numbers, dtype=torch.int64, device=x.device))
    return x


@operator("Split", results=1 << 20)
def _split(x: Tensor, *given: Any, axis: int, split: Any = None, num_outputs: Any = None, outputs: int) -> Any:
    if num_outputs not in (None, outputs):
        raise NotConverted(f"num_outputs {num_outputs} and {outputs} results")
    return x.split(_numbers(*given or (split,)) or -(-x.shape[axis] // outputs), axis)


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}


@operator("Pad", mode=tuple(_MODES))
def _pad(x: Tensor, *given: Any, mode: str, pads: Any = None, value: float = 0.0) -> Tensor:
    length, constant, axes = (*(given or (pads,)), None, None)[:3]
    lengths = _numbers(length)
    chosen = _numbers(axes) or list(range(x.dim()))
    before, after = [0] * x.dim(), [0] * x.dim()
    for place, axis in enumerate(chosen):
        before[axis], after[axis] = lengths[place], lengths[place + len(chosen)]
    flat = [number for axis in reversed(range(x.dim())) for number in (before[axis], after[axis])]
    if mode == "constant":
        return F.pad(x, flat, value=value if constant is None else constant.item())
    inner = 2 * (x.dim() - 2)
    if any(flat[inner:]) or min(flat) < 0:
        raise NotConverted(f"mode {mode} and pads {lengths}")
    return F.pad(x, flat[:inner], _MODES[mode])


# torch's own resizing agrees with ONNX's for some sizes only.
_PLACES: dict[str, Callable[[Tensor, int, int, Tensor], Tensor]] = {
    "asymmetric": lambda at, length, new, scale: at / scale,
    "half_pixel": lambda at, length, new, scale: (at + 0.5) / scale - 0.5,
    "pytorch_half_pixel": lambda at, length, new, scale: (at + 0.5) / scale - 0.5 if new > 1 else at,
    "align_corners": lambda at, length, new, scale: at * (length - 1) / (new - 1) if new > 1 else at,
    "tf_half_pixel_for_nn": lambda at, length, new, scale: (at + 0.5) / scale,
}
_NEAREST: dict[str, Callable[[Tensor], Tensor]] = {
    "round_prefer_floor": lambda at: (at - 0.5).ceil(),
    "round_prefer_ceil": lambda at: (at + 0.5).floor(),
    "floor": lambda at: at.floor(),
    "ceil": lambda at: at.ceil(),
}


@operator(
    "Resize",
    ignores="cubic_coeff_a extrapolation_value",  # of what is refused: mode cubic, tf_crop_and_resize
    antialias=(0,),
    exclude_outside=(0,),
    keep_aspect_ratio_policy=("stretch",),
    mode=("nearest", "linear"),
    nearest_mode=tuple(_NEAREST),
    coordinate_transformation_mode=tuple(_PLACES),
)
def _resize(
    x: Tensor,
    *given: Any,
    mode: str,
    axes: Any = None,
    nearest_mode: str = "floor",
    coordinate_transformation_mode: str = "asymmetric",
    opset: int = 9,
) -> Tensor:
    scales, sizes = [*given[len(given) > 1 :], None][:2]  # up to opset 10 the scales alone
    for number, axis in enumerate(axes or range(x.dim())):
        length = x.shape[axis]
        if sizes is None:
            scale = scales[number].cpu()
            new = int(scale * length)
        else:
            new = int(sizes[number])
            scale = torch.tensor(new) / length
        if opset < 11 and scale < 1:
            raise NotConverted(f"a scale below 1, which opset {opset} does not define")
        if scale == 1:
            continue
        at = _PLACES[coordinate_transformation_mode](torch.arange(new, dtype=torch.float32), length, new, scale)
        if mode == "nearest":
            x = _take(x, axis, _NEAREST[nearest_mode](at))
            continue
        at = at.clamp(0, length - 1)
        part = (at - at.floor()).to(x).reshape([-1] + [1] * (x.dim() - 1 - axis % x.dim()))
        x = _take(x, axis, at.floor()) * (1 - part) + _take(x, axis, at.floor() + 1) * part
    return x


def _take(x: Tensor, axis: int, at: Tensor) -> Tensor:
    return x.index_select(axis, at.clamp(0, x.shape[axis] - 1).to(x.device, torch.int64))


@operator("Gather")
def _gather(x: Tensor, index: Tensor, *, axis: int) -> Tensor:
    if index.dim() == 0:
        return x.select(axis, int(index))
    index = torch.where(index < 0, index + x.shape[axis], index)
    return x.index_select(axis, index.flatten()).reshape(*x.shape[:axis], *index.shape, *x.shape[axis:][1:])


@operator("Constant")
def _make_constant(
    *,
    value: Any = None,
    value_float: Any = None,
    value_floats: Any = None,
    value_int: Any = None,
    value_ints: Any = None,
) -> Tensor:
    if value is not None:
        return torch.as_tensor(value)
    real = value_float if value_floats is None else value_floats
    whole = value_int if value_ints is None else value_ints
    return torch.tensor(whole, dtype=torch.int64) if real is None else torch.tensor(real)


@operator("DepthToSpace", mode=("DCR", "CRD"))
def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    images, channels, rows, columns = x.shape
    parts = x.reshape(images, blocksize, blocksize, channels // blocksize**2, rows, columns)
    parts = parts.permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(images, channels // blocksize**2, rows * blocksize, columns * blocksize)


# Functions of torch by the names that they have there

_ALIKE = (
    "Abs Ceil Cos Erf Exp Floor Log Neg Reciprocal Sigmoid Sign Sin Sqrt Tanh Less Greater Where MatMul Mul Add Sub"
)
_NAMES = {
    **{name: name.lower() for name in _ALIKE.split()},
    **{"Equal": "eq", "LessOrEqual": "le", "GreaterOrEqual": "ge"},
    **{"And": "bitwise_and", "Or": "bitwise_or", "Not": "bitwise_not"},
    **{"Relu": "relu", "HardSwish": "hardswish", "Mish": "mish", "Softplus": "softplus", "Softsign": "softsign"},
}

# What takes one line; with attributes of which not all values are converted, or that change nothing

_LINES: dict[str, Any] = {
    "Div": lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Sum": lambda *parts: sum(parts[1:], parts[0]),
    "Identity": lambda x: x,
    "Einsum": lambda *parts, equation: torch.einsum(equation, *parts),
    "Mod": lambda a, b, *, fmod: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Max": lambda *parts: reduce(torch.maximum, parts),
    "Min": lambda *parts: reduce(torch.minimum, parts),
    # Activations
    "LeakyRelu": lambda x, *, alpha: F.leaky_relu(x, alpha),
    "ThresholdedRelu": lambda x, *, alpha: F.threshold(x, alpha, 0.0),
    "HardSigmoid": lambda x, *, alpha, beta: (x * alpha + beta).clamp(0, 1),
    "Swish": lambda x, *, alpha: F.silu(x) if alpha == 1 else x * (x * alpha).sigmoid(),
    "Selu": lambda x, *, alpha, gamma: F.elu(x, alpha) * gamma,
    "Celu": lambda x, *, alpha: F.celu(x, alpha),
    "Elu": lambda x, *, alpha: F.elu(x, alpha),
    "Gelu": lambda x, *, approximate: F.gelu(x, approximate=approximate),
    "Softmax": lambda x, *, axis, opset: _along(torch.softmax, x, axis, opset),
    "LogSoftmax": lambda x, *, axis, opset: _along(torch.log_softmax, x, axis, opset),
    "InstanceNormalization": lambda x, scale, bias, *, epsilon: F.instance_norm(
        x, None, None, scale, bias, eps=epsilon
    ),
    # Shapes and places
    "ReduceMean": partial(_reduce, torch.mean),
    "ReduceSum": partial(_reduce, torch.sum),
    "ReduceMax": partial(_reduce, torch.amax),
    "ReduceMin": partial(_reduce, torch.amin),
    "GlobalAveragePool": lambda x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    "GlobalMaxPool": lambda x: x.amax(tuple(range(2, x.dim())), keepdim=True),
    "Transpose": lambda x, *, perm=None: x.permute(perm or list(reversed(range(x.dim())))),
    "Concat": lambda *parts, axis: torch.cat(parts, axis),
    "Expand": lambda x, shape: x.expand(torch.broadcast_shapes(x.shape, _numbers(shape))),
    "Shape": lambda x, *, start=0, end=None: torch.tensor(x.shape[start:end]),
    "Range": lambda start, limit, delta: torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype),
    "Tile": lambda x, repeats: x.repeat(_numbers(repeats)),
    "Flatten": lambda x, *, axis: x.reshape(x.shape[:axis].numel(), -1) if axis != 1 else x.flatten(1),
    "ConstantOfShape": lambda shape, *, value=None: (
        torch.as_tensor([0.0] if value is None else value).expand(_numbers(shape)).clone()
    ),
    "Pow": lambda x, exponent: x.pow(exponent.item() if exponent.numel() == 1 else exponent).to(x.dtype),
    # The predicted class, which some networks give beside the logits
    "ArgMax": (lambda x, *, axis, keepdims: x.argmax(axis, bool(keepdims)), {"select_last_index": (0,)}),
    "TopK": (
        lambda x, *given, k=1, axis, largest=1, sorted=1: tuple(
            x.topk(_numbers(given[0])[0] if given else k, axis, bool(largest), bool(sorted))
        ),
        {"results": 2},
    ),
    "Cast": (
        lambda x, *, to: x if x.is_floating_point() and to in REAL else x.to(_TYPES[to]),
        {"ignores": "saturate round_mode", "to": tuple(_TYPES)},  # both are for floats of 8 bits
    ),
    "BatchNormalization": (
        lambda x, scale, bias, mean, var, *, epsilon: F.batch_norm(x, mean, var, scale, bias, False, 0.0, epsilon),
        {"ignores": "momentum", "training_mode": (0,), "spatial": (1,)},
    ),
    "RMSNormalization": (
        lambda x, scale, *, axis, epsilon: F.rms_norm(x, x.shape[axis:], scale.expand(x.shape[axis:]), epsilon),
        {"stash_type": (1,)},
    ),
    "GroupNormalization": (
        lambda x, scale, bias, *, num_groups, epsilon: F.group_norm(x, num_groups, scale, bias, epsilon),
        {"stash_type": (1,)},
    ),
    # Without axes it would be the absolute value, which no exporter writes.
    "ReduceL2": (
        partial(_reduce, lambda x, axes, keepdim: x.norm(dim=axes, keepdim=keepdim)),
        {"noop_with_empty_axes": (0,)},
    ),
    "GatherND": (lambda x, index: x[tuple(index.unbind(-1))], {"batch_dims": (0,)}),
    "ScatterND": (
        lambda x, index, updates: x.index_put(tuple(index.unbind(-1)), updates.to(x.dtype)),
        {"reduction": ("none",)},
    ),
    "Upsample": (
        lambda x, *given, mode, scales=None: _resize(x, *given or (torch.tensor(scales),), mode=mode),
        {"mode": ("nearest", "linear")},
    ),
}


def _without_attributes(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: function(*given)


for _name, _called in _NAMES.items():
    operator(_name)(_without_attributes(getattr(torch, _called, None) or getattr(F, _called)))
for _name, _entry in _LINES.items():
    _run, _how = _entry if isinstance(_entry, tuple) else (_entry, {})
    operator(_name, **_how)(_run)
