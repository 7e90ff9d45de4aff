"""ONNX files as networks: one torch function per operator of ONNX, of the kinds that ReLU networks are made of.

Written out here because the converter that others use (onnx2torch 1.5) knows none of the versions that torch's own
exporter writes today: it converted 0 of 18 exports of ten torchvision models. `docs/networks.md` has the operators.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathx.errors import PathxError, reason_of

Attributes = Mapping[str, Any]
Operator = Callable[..., Any]

OPERATORS: dict[str, Operator] = {}
"""By name: takes the attributes of a node, then its inputs (tensors, or None where one is left out)."""

_ADVICE = "export the network from torch with torch.export.save instead, or to ONNX without that operator"


def operator(*names: str) -> Callable[[Operator], Operator]:
    def register(function: Operator) -> Operator:
        OPERATORS.update(dict.fromkeys(names, function))
        return function

    return register


@dataclass(frozen=True)
class Step:
    """One node of the graph."""

    name: str
    kind: str
    attributes: Attributes
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class OnnxNetwork(nn.Module):
    """A network that runs the nodes of an ONNX graph one after the other; its weights are buffers and parameters.

    Of several results, by name, the logits are told as those of any other model are.
    """

    def __init__(self, steps: Sequence[Step], constants: Mapping[str, Tensor], source: str, *results: str) -> None:
        super().__init__()
        self.steps, self.source, self.results = tuple(steps), source, results
        self.weights = {name: f"weight_{number}" for number, name in enumerate(constants)}
        for name, tensor in constants.items():
            self.register_buffer(self.weights[name], tensor)
        # Modules, so that the layers of a path have the names of the graph's nodes.
        self.activations = nn.ModuleDict({_key(step): nn.ReLU() for step in steps if step.kind == "Relu"})
        last_use = {name: number for number, step in enumerate(self.steps) for name in step.inputs}
        self._spent = [[name for name, last in last_use.items() if last == number] for number in range(len(self.steps))]

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        values: dict[str, Any] = {name: getattr(self, key) for name, key in self.weights.items()}
        values[self.source] = x
        for step, spent in zip(self.steps, self._spent, strict=True):
            given = [values[name] if name else None for name in step.inputs]
            run = self.activations[_key(step)] if step.kind == "Relu" else OPERATORS[step.kind]
            made = run(*given) if step.kind == "Relu" else run(step.attributes, *given)
            made = made if isinstance(made, (tuple, list)) else (made,)
            values.update(zip(step.outputs, made, strict=False))
            for name in spent:
                if name not in self.results:
                    values.pop(name, None)
        made = {name: values[name] for name in self.results}
        return made if len(made) > 1 else values[self.results[0]]


def _key(step: Step) -> str:
    return (step.name or step.outputs[0]).strip("/").replace(".", "_").replace("/", "_") or "relu"


def load_onnx(path: Path) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The network in an ONNX file, and the (channels, height, width) of its input where the file says them."""
    from pathx.models.hubs import library

    onnx = library("onnx")
    try:
        return _network(onnx, onnx.load(str(path)).graph, path)
    except PathxError:
        raise
    except Exception as error:  # of protobuf, of onnx, of files that lie beside, of names that are no text
        raise PathxError(
            f"{path} is damaged or no ONNX file ({reason_of(error)}): export it again", usage=True
        ) from error


def external_files(path: Path) -> list[Path]:
    """The files beside an ONNX file that hold some of its tensors."""
    from pathx.models.hubs import library

    onnx = library("onnx")
    helper = onnx.external_data_helper
    tensors = helper._get_all_tensors(onnx.load(str(path), load_external_data=False))
    names = {helper.ExternalDataInfo(tensor).location for tensor in tensors if helper.uses_external_data(tensor)}
    return [path.parent / name for name in sorted(names)]


def _network(onnx: Any, graph: Any, path: Path) -> tuple[nn.Module, tuple[int, ...] | None]:
    constants = {tensor.name: _tensor(onnx, tensor) for tensor in graph.initializer}
    steps = [_step(onnx, node) for node in graph.node]
    _check_operators(path, steps)
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or not graph.output:
        found = f"{path} has {len(inputs)} inputs and {len(graph.output)} outputs"
        raise PathxError(f"{found}: pathx explains networks of one image and one output", usage=True)
    steps = list(_with_distinct_names(steps))
    network = OnnxNetwork(steps, constants, inputs[0].name, *(one.name for one in graph.output)).eval()
    sizes = [int(dim.dim_value) for dim in inputs[0].type.tensor_type.shape.dim][1:]
    return network, tuple(sizes) if len(sizes) == 3 and all(sizes) else None


def _with_distinct_names(steps: Sequence[Step]) -> Iterator[Step]:
    """Names that can be those of modules; exporters leave them out, or give one twice."""
    seen: set[str] = set()
    for step in steps:
        name = _key(step)
        while name in seen or hasattr(nn.ModuleDict, name) or name == "training":
            name += "_"
        seen.add(name)
        yield Step(name, step.kind, step.attributes, step.inputs, step.outputs)


def _check_operators(path: Path, steps: Sequence[Step]) -> None:
    unknown = sorted({step.kind for step in steps if step.kind not in OPERATORS})
    if unknown:
        names = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise PathxError(f"{path} has operators that pathx cannot convert ({names}): {_ADVICE}", usage=True)


def _step(onnx: Any, node: Any) -> Step:
    kind = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
    return Step(
        node.name, kind, {item.name: _attribute(onnx, item) for item in node.attribute}, (*node.input,), (*node.output,)
    )


def _attribute(onnx: Any, item: Any) -> Any:
    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, onnx.TensorProto):
        return _tensor(onnx, value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return (
        list(value)
        if isinstance(value, (list, tuple)) or (hasattr(value, "__len__") and not isinstance(value, str))
        else value
    )


def _tensor(onnx: Any, proto: Any) -> Tensor:
    array = onnx.numpy_helper.to_array(proto)
    tensor = torch.from_numpy(array.copy())
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16, torch.float64) else tensor


def _numbers(value: Any) -> list[int]:
    """Sizes, axes or steps, which older files give as attributes and newer ones as tensors."""
    return (
        []
        if value is None
        else [int(number) for number in (value.flatten().tolist() if isinstance(value, Tensor) else value)]
    )


# Linear operators


@operator("Conv")
def _conv(about: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    kernel = about.get("kernel_shape") or list(weight.shape[2:])
    steps, spread = about.get("strides") or [1] * len(kernel), about.get("dilations") or [1] * len(kernel)
    x, padding = _padded(about, x, kernel, steps, spread, 0.0)
    convolve = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}[len(kernel)]
    return convolve(x, weight, bias, steps, padding, spread, about.get("group", 1))


@operator("ConvTranspose")
def _conv_transpose(about: Attributes, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    sides = weight.dim() - 2
    pads = about.get("pads") or [0] * 2 * sides
    if about.get("auto_pad", "NOTSET") != "NOTSET" or "output_shape" in about or pads[:sides] != pads[sides:]:
        raise PathxError(
            f"a ConvTranspose with automatic or unequal padding cannot be converted: {_ADVICE}", usage=True
        )
    convolve = {1: F.conv_transpose1d, 2: F.conv_transpose2d, 3: F.conv_transpose3d}[sides]
    steps, spread = about.get("strides") or [1] * sides, about.get("dilations") or [1] * sides
    more = about.get("output_padding") or [0] * sides
    return convolve(x, weight, bias, steps, pads[:sides], more, about.get("group", 1), spread)


def _padded(
    about: Attributes, x: Tensor, kernel: list[int], steps: list[int], spread: list[int], value: float
) -> tuple[Tensor, list[int]]:
    """The input with padding that differs from side to side laid on, and what is left for torch to lay on evenly."""
    sides = len(kernel)
    pads = list(about.get("pads") or [0] * 2 * sides)
    how = about.get("auto_pad", "NOTSET")
    if how in ("SAME_UPPER", "SAME_LOWER"):
        for side, length in enumerate(x.shape[2:]):
            reach = (kernel[side] - 1) * spread[side] + 1
            lacking = max((-(-length // steps[side]) - 1) * steps[side] + reach - length, 0)
            less, more = lacking // 2, lacking - lacking // 2
            pads[side], pads[side + sides] = (less, more) if how == "SAME_UPPER" else (more, less)
    if pads[:sides] == pads[sides:]:
        return x, pads[:sides]
    flat = [pads[side + sides * end] for side in reversed(range(sides)) for end in (0, 1)]
    return F.pad(x, flat, value=value), [0] * sides


@operator("Gemm")
def _gemm(about: Attributes, a: Tensor, b: Tensor, c: Tensor | None = None) -> Tensor:
    a = a.transpose(0, 1) if about.get("transA") else a
    b = b.transpose(0, 1) if about.get("transB") else b
    product = a @ b
    product = product * about["alpha"] if about.get("alpha", 1.0) != 1.0 else product
    if c is None:
        return product
    return product + (c * about["beta"] if about.get("beta", 1.0) != 1.0 else c)


@operator("BatchNormalization")
def _batch_normalization(
    about: Attributes, x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor
) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, about.get("epsilon", 1e-5))


OPERATORS.update(
    MatMul=lambda about, a, b: a @ b,
    Add=lambda about, a, b: a + b,
    Sub=lambda about, a, b: a - b,
    Mul=lambda about, a, b: a * b,
    Div=lambda about, a, b: a // b if not (a.is_floating_point() or b.is_floating_point()) else a / b,
    Neg=lambda about, a: -a,
    Sum=lambda about, *parts: sum(parts[1:], parts[0]),
    Identity=lambda about, x: x,
    Dropout=lambda about, x, *others: x,
    Sqrt=lambda about, x: x.sqrt(),
    Reciprocal=lambda about, x: x.reciprocal(),
    Floor=lambda about, x: x.floor(),
    Ceil=lambda about, x: x.ceil(),
    Equal=lambda about, a, b: a == b,
    Less=lambda about, a, b: a < b,
    Greater=lambda about, a, b: a > b,
    Mod=lambda about, a, b: torch.remainder(a, b),
)


# Pooling


@operator("MaxPool")
def _max_pool(about: Attributes, x: Tensor) -> Tensor:
    kernel = about["kernel_shape"]
    steps, spread = about.get("strides") or [1] * len(kernel), about.get("dilations") or [1] * len(kernel)
    x, padding = _padded(about, x, kernel, steps, spread, -torch.inf)
    pool = {1: F.max_pool1d, 2: F.max_pool2d, 3: F.max_pool3d}[len(kernel)]
    pooled: Tensor = pool(x, kernel, steps, padding, spread, bool(about.get("ceil_mode", 0)))
    return pooled


@operator("AveragePool")
def _average_pool(about: Attributes, x: Tensor) -> Tensor:
    kernel = about["kernel_shape"]
    steps, spread = about.get("strides") or [1] * len(kernel), about.get("dilations") or [1] * len(kernel)
    before = x.shape
    x, padding = _padded(about, x, kernel, steps, spread, 0.0)
    counted = bool(about.get("count_include_pad", 0))
    if any(step != 1 for step in spread) or (x.shape != before and not counted):
        raise PathxError(f"an AveragePool with gaps or unequal padding cannot be converted: {_ADVICE}", usage=True)
    pool = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}[len(kernel)]
    pooled: Tensor = pool(x, kernel, steps, padding, bool(about.get("ceil_mode", 0)), counted)
    return pooled


OPERATORS.update(
    GlobalAveragePool=lambda about, x: x.mean(tuple(range(2, x.dim())), keepdim=True),
    GlobalMaxPool=lambda about, x: x.amax(tuple(range(2, x.dim())), keepdim=True),
)


def _reduction(reduce: Callable[..., Tensor]) -> Operator:
    def run(about: Attributes, x: Tensor, axes: Tensor | None = None) -> Tensor:
        chosen = _numbers(about.get("axes", axes))
        if not chosen and about.get("noop_with_empty_axes", 0):
            return x
        return reduce(x, tuple(chosen or range(x.dim())), keepdim=bool(about.get("keepdims", 1)))

    return run


OPERATORS.update(
    ReduceMean=_reduction(torch.mean),
    ReduceSum=_reduction(torch.sum),
    ReduceMax=_reduction(torch.amax),
    ReduceMin=_reduction(torch.amin),
)


@operator("ArgMax")
def _argmax(about: Attributes, x: Tensor) -> Tensor:
    """The predicted class, which some networks give beside the logits."""
    return x.argmax(about.get("axis", 0), bool(about.get("keepdims", 1)))


# Units


@operator("Relu")
def _relu(about: Attributes, x: Tensor) -> Tensor:  # a network has modules for it, to give layers their names
    return F.relu(x)


@operator("Clip")
def _clip(about: Attributes, x: Tensor, low: Tensor | None = None, high: Tensor | None = None) -> Tensor:
    least = about.get("min", None if low is None else low.item())
    most = about.get("max", None if high is None else high.item())
    return x.clamp(least, most)


OPERATORS.update(
    LeakyRelu=lambda about, x: F.leaky_relu(x, about.get("alpha", 0.01)),
    PRelu=lambda about, x, slope: torch.where(x > 0, x, x * slope),
    ThresholdedRelu=lambda about, x: F.threshold(x, about.get("alpha", 1.0), 0.0),
    Abs=lambda about, x: x.abs(),
    Max=lambda about, *parts: _fold(torch.maximum, parts),
    Min=lambda about, *parts: _fold(torch.minimum, parts),
    Softmax=lambda about, x: x.softmax(about.get("axis", -1)),
    LogSoftmax=lambda about, x: x.log_softmax(about.get("axis", -1)),
    Sigmoid=lambda about, x: x.sigmoid(),
    # Not piecewise linear: converted all the same, so that the refusal names the operation as for every other network.
    Tanh=lambda about, x: x.tanh(),
    Erf=lambda about, x: x.erf(),
    Exp=lambda about, x: x.exp(),
    HardSigmoid=lambda about, x: (x * about.get("alpha", 0.2) + about.get("beta", 0.5)).clamp(0, 1),
    HardSwish=lambda about, x: F.hardswish(x),
    Elu=lambda about, x: F.elu(x, about.get("alpha", 1.0)),
    Gelu=lambda about, x: F.gelu(x, approximate=about.get("approximate", "none")),
)


def _fold(combine: Callable[[Tensor, Tensor], Tensor], parts: Sequence[Tensor]) -> Tensor:
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result


# Shapes


@operator("Reshape")
def _reshape(about: Attributes, x: Tensor, shape: Tensor) -> Tensor:
    sizes = _numbers(shape)
    if not about.get("allowzero", 0):
        sizes = [x.shape[place] if size == 0 else size for place, size in enumerate(sizes)]
    return x.reshape(sizes)


@operator("Flatten")
def _flatten(about: Attributes, x: Tensor) -> Tensor:
    axis = about.get("axis", 1)
    return x.flatten(1) if axis == 1 else x.reshape(-1 if axis else 1, *([x.shape[axis:].numel()] if axis else [-1]))


@operator("Slice")
def _slice(about: Attributes, x: Tensor, *given: Tensor | None) -> Tensor:
    starts, ends, axes, steps = (*(_numbers(part) for part in given), [], [], [], [])[:4]
    starts, ends = starts or _numbers(about.get("starts")), ends or _numbers(about.get("ends"))
    axes = axes or _numbers(about.get("axes")) or list(range(len(starts)))
    for place, axis in enumerate(axes):
        step = steps[place] if steps else 1
        part = slice(starts[place], ends[place], step)
        if step == -1 and len(range(*part.indices(x.shape[axis]))) == x.shape[axis]:
            x = x.flip(axis)
            continue
        if step < 0:  # as the older exporter writes padding; torch has no such slices
            x = x.index_select(axis, torch.tensor(range(*part.indices(x.shape[axis]))))
            continue
        index = [slice(None)] * x.dim()
        index[axis] = part
        x = x[tuple(index)]
    return x


@operator("Split")
def _split(about: Attributes, x: Tensor, sizes: Tensor | None = None) -> tuple[Tensor, ...]:
    axis = about.get("axis", 0)
    lengths = _numbers(about.get("split", sizes))
    return x.split(lengths, axis) if lengths else x.chunk(about["num_outputs"], axis)


@operator("Pad")
def _pad(
    about: Attributes, x: Tensor, pads: Tensor | None = None, value: Tensor | None = None, axes: Tensor | None = None
) -> Tensor:
    given = _numbers(about.get("pads", pads))
    chosen = _numbers(axes) or list(range(x.dim()))
    before, after = [0] * x.dim(), [0] * x.dim()
    for place, axis in enumerate(chosen):
        before[axis], after[axis] = given[place], given[place + len(chosen)]
    flat = [number for axis in reversed(range(x.dim())) for number in (before[axis], after[axis])]
    mode = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[
        about.get("mode", "constant")
    ]
    if mode != "constant":
        flat = flat[: 2 * (x.dim() - 2)]
        return F.pad(x, flat, mode)
    return F.pad(x, flat, value=about.get("value", 0.0 if value is None else value.item()))


@operator("Resize", "Upsample")
def _resize(about: Attributes, x: Tensor, *given: Tensor | None) -> Tensor:
    scales, sizes = ([*given, None, None, None][1:3]) if len(given) > 1 else ([*given, None][0], None)
    mode = about.get("mode", "nearest")
    how = about.get("coordinate_transformation_mode", "half_pixel")
    lengths = _numbers(sizes)[2:]
    if not lengths and scales is not None:
        lengths = [int(length * scale) for length, scale in zip(x.shape[2:], scales.tolist()[2:], strict=True)]
    if mode == "nearest" and how in ("asymmetric", "half_pixel"):
        return F.interpolate(x, lengths, mode="nearest")
    if mode == "linear" and how in ("half_pixel", "pytorch_half_pixel", "align_corners"):
        return F.interpolate(x, lengths, mode="bilinear", align_corners=how == "align_corners")
    raise PathxError(f"a Resize of mode {mode} and {how} cannot be converted: {_ADVICE}", usage=True)


@operator("Gather")
def _gather(about: Attributes, x: Tensor, index: Tensor) -> Tensor:
    axis = about.get("axis", 0)
    if index.dim() == 0:
        return x.select(axis, int(index))
    return x.index_select(axis, index.flatten()).reshape(*x.shape[:axis], *index.shape, *x.shape[axis:][1:])


@operator("GatherND")
def _gather_nd(about: Attributes, x: Tensor, index: Tensor) -> Tensor:
    if about.get("batch_dims", 0):
        raise PathxError(f"a GatherND with batch_dims cannot be converted: {_ADVICE}", usage=True)
    return x[tuple(index.unbind(-1))]


@operator("Constant")
def _constant(about: Attributes) -> Tensor:
    for name in ("value", "value_float", "value_int", "value_floats", "value_ints"):
        if name in about:
            return about[name] if isinstance(about[name], Tensor) else torch.tensor(about[name])
    raise PathxError(f"a Constant that is no number cannot be converted: {_ADVICE}", usage=True)


_TYPES = {1: torch.float32, 6: torch.int32, 7: torch.int64, 9: torch.bool, 10: torch.float32, 11: torch.float32}

OPERATORS.update(
    Transpose=lambda about, x: x.permute(about.get("perm") or list(reversed(range(x.dim())))),
    Concat=lambda about, *parts: torch.cat(parts, about["axis"]),
    Squeeze=lambda about, x, axes=None: x.squeeze(tuple(_numbers(about.get("axes", axes)))),
    Unsqueeze=lambda about, x, axes=None: _unsqueezed(x, _numbers(about.get("axes", axes))),
    Expand=lambda about, x, shape: x.expand(torch.broadcast_shapes(x.shape, _numbers(shape))),
    Shape=lambda about, x: torch.tensor(x.shape[about.get("start", 0) : about.get("end")]),
    Cast=lambda about, x: x.to(_TYPES.get(about["to"], torch.float32)),
    ConstantOfShape=lambda about, shape: about.get("value", torch.zeros(1)).expand(_numbers(shape)).clone(),
    Range=lambda about, start, limit, delta: torch.arange(start.item(), limit.item(), delta.item()),
    Where=lambda about, condition, a, b: torch.where(condition, a, b),
    DepthToSpace=lambda about, x: _depth_to_space(about, x),
    Tile=lambda about, x, repeats: x.repeat(_numbers(repeats)),
)


def _unsqueezed(x: Tensor, axes: list[int]) -> Tensor:
    for axis in sorted(axis % (x.dim() + len(axes)) for axis in axes):
        x = x.unsqueeze(axis)
    return x


def _depth_to_space(about: Attributes, x: Tensor) -> Tensor:
    if about.get("mode", "DCR") == "CRD":
        return F.pixel_shuffle(x, about["blocksize"])
    size = about["blocksize"]
    images, channels, rows, columns = x.shape
    parts = x.reshape(images, size, size, channels // size**2, rows, columns)
    return parts.permute(0, 3, 4, 1, 5, 2).reshape(images, channels // size**2, rows * size, columns * size)
