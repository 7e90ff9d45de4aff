"""ONNX files as networks: one torch function per operator of ONNX, and every attribute of it followed or refused by name.

Written out here because the converter that others use (onnx2torch 1.5) knows none of the versions that torch's own
exporter writes today: it converted 0 of 18 exports of ten torchvision models. `docs/networks.md` has the operators.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pathx.errors import PathxError, reason_of

OPSETS = range(7, 27)
"""The versions of ONNX whose operators were compared with onnxruntime, one by one (`tests/models/test_onnx_operators.py`)."""

_ADVICE = "export the network from torch with torch.export.save instead, or to ONNX without that"


@dataclass(frozen=True)
class Operator:
    """How an operator is computed, and which attributes that follows."""

    run: Callable[..., Any]
    """Takes a node's inputs (tensors, or None where one is left out) and, by keyword, the attributes that it follows."""
    follows: frozenset[str]
    ignores: frozenset[str]
    """Attributes that change nothing about the first result."""
    only: Mapping[str, tuple[Any, ...]]
    """Attributes of which these values alone are converted."""
    results: int
    """Results that a node may have; those that are not computed must not be used."""


OPERATORS: dict[str, Operator] = {}


def operator(
    name: str, *, ignores: str = "", windows: bool = False, results: int = 1, **only: tuple[Any, ...]
) -> Callable[..., Any]:
    """Register a function; its keyword arguments are the attributes that it follows, with those of windows if it has any."""

    def register(run: Callable[..., Any]) -> Callable[..., Any]:
        follows = _keywords(run) | (_keywords(_lay_windows) if windows else set())
        OPERATORS[name] = Operator(run, follows, frozenset(ignores.split()), only, results)
        return run

    return register


def _keywords(function: Callable[..., Any]) -> frozenset[str]:
    parameters = inspect.signature(function).parameters.values()
    return frozenset(one.name for one in parameters if one.kind is one.KEYWORD_ONLY)


class NotConverted(Exception):
    """What about a node is not converted, found out where it is run."""


def _refusal(kind: str, name: str, problem: object) -> PathxError:
    return PathxError(f"{kind} with {problem} (node {name}) cannot be converted: {_ADVICE}", usage=True)


@dataclass(frozen=True)
class Step:
    """One node of the graph."""

    name: str
    kind: str
    attributes: Mapping[str, Any]
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
            run = self.activations[_key(step)] if step.kind == "Relu" else OPERATORS[step.kind].run
            try:
                made = run(*given, **step.attributes)
            except NotConverted as problem:
                raise _refusal(step.kind, step.name, problem) from None
            values.update(zip(step.outputs, made if isinstance(made, tuple) else (made,), strict=False))
            for name in spent:
                if name not in self.results:
                    values.pop(name, None)
        return {name: values[name] for name in self.results} if len(self.results) > 1 else values[self.results[0]]


def _key(step: Step) -> str:
    return (step.name or step.outputs[0]).strip("/").replace(".", "_").replace("/", "_") or "relu"


def load_onnx(path: Path, input_size: Sequence[int] | None = None) -> tuple[nn.Module, tuple[int, ...] | None]:
    """The network in an ONNX file, and the (channels, height, width) of its input where the file says them.

    Args:
        input_size: what to try the network with where the file does not say.
    """
    from pathx.models.hubs import library

    onnx = library("onnx")
    try:
        model = onnx.load(str(path))
        network, shape = _network(onnx, model, path)
    except PathxError:
        raise
    except Exception as error:  # of protobuf, of onnx, of files that lie beside, of names that are no text
        raise PathxError(
            f"{path} is damaged or no ONNX file ({reason_of(error)}): export it again", usage=True
        ) from error
    size = tuple(shape[1:]) if len(shape) == 4 and all(shape[1:]) else None
    if size or input_size:
        _try(path, model, network, (shape[0] if size and shape[0] else 1, *(size or input_size or ())))
    return network, size


def external_files(path: Path) -> list[Path]:
    """The files beside an ONNX file that hold some of its tensors."""
    from pathx.models.hubs import library

    onnx = library("onnx")
    helper = onnx.external_data_helper
    tensors = helper._get_all_tensors(onnx.load(str(path), load_external_data=False))
    names = {helper.ExternalDataInfo(tensor).location for tensor in tensors if helper.uses_external_data(tensor)}
    return [path.parent / name for name in sorted(names)]


def _network(onnx: Any, model: Any, path: Path) -> tuple[OnnxNetwork, list[int]]:
    """The network, and the shape of its input with 0 for sides that the file leaves open."""
    graph = model.graph
    versions = {item.domain or "ai.onnx": item.version for item in model.opset_import}
    opset = versions.get("ai.onnx", 1)
    if opset not in OPSETS:
        problem = f"{path} is of ONNX's opset {opset}, and pathx knows {OPSETS[0]} to {OPSETS[-1]}"
        raise PathxError(f"{problem}: export it again, from torch with opset_version=18", usage=True)
    constants = {tensor.name: _tensor(onnx, tensor) for tensor in graph.initializer}
    unknown = sorted({_kind(node) for node in graph.node} - set(OPERATORS))
    unknown += [f"function {one.name}" for one in model.functions if one.domain in ("", "ai.onnx")]
    if unknown:
        names = ", ".join(unknown[:5]) + (f" and {len(unknown) - 5} more" if len(unknown) > 5 else "")
        raise PathxError(f"{path} has operators that pathx cannot convert ({names}): {_ADVICE}", usage=True)
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = model.ir_version, {"": opset}
    steps = [_step(onnx, node, opset, context) for node in graph.node]
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or not graph.output:
        found = f"{path} has {len(inputs)} inputs and {len(graph.output)} outputs"
        raise PathxError(f"{found}: pathx explains networks of one image and one output", usage=True)
    kind = inputs[0].type.tensor_type
    if kind.elem_type not in _REAL:
        raise PathxError(f"{path} takes no real numbers: export it with an input of type float32", usage=True)
    steps = list(_with_distinct_names(steps))
    network = OnnxNetwork(steps, constants, inputs[0].name, *(one.name for one in graph.output)).eval()
    return network, [int(side.dim_value) for side in kind.shape.dim]


def _with_distinct_names(steps: Sequence[Step]) -> Iterator[Step]:
    """Names that can be those of modules; exporters leave them out, or give one twice."""
    seen: set[str] = set()
    for step in steps:
        name = _key(step)
        while name in seen or hasattr(nn.ModuleDict, name) or name == "training":
            name += "_"
        seen.add(name)
        yield Step(name, step.kind, step.attributes, step.inputs, step.outputs)


def _kind(node: Any) -> str:
    return str(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")


def _step(onnx: Any, node: Any, opset: int, context: Any) -> Step:
    """A node with all its attributes, those that are left out as its version of the operator has them by default."""
    kind, name = _kind(node), node.name or (node.output[0] if node.output else "")
    operator, schema = OPERATORS[kind], onnx.defs.get_schema(kind, opset, "")
    try:
        if schema.deprecated:
            raise NotConverted(f"opset {opset}, which has it no longer")
        onnx.checker.check_node(node, context)
        given = {item.name: _attribute(onnx, item) for item in node.attribute}
        for key, value in given.items():
            if key not in operator.follows | operator.ignores | operator.only.keys():
                raise NotConverted(f"the attribute {key}")
            if value not in operator.only.get(key, (value,)):
                raise NotConverted(f"{key} {value}")
        if len(node.output) > operator.results:
            raise NotConverted(f"{len(node.output)} results")
    except (NotConverted, onnx.checker.ValidationError) as problem:
        raise _refusal(kind, name, reason_of(problem)) from problem
    usual = {one.default_value.name: one.default_value for one in schema.attributes.values() if one.default_value.name}
    known = {key: _attribute(onnx, value) for key, value in usual.items()} | given
    known |= {"opset": opset, "outputs": len(node.output)}
    attributes = {key: value for key, value in known.items() if key in operator.follows}
    return Step(node.name, kind, attributes, (*node.input,), (*node.output,))


def _attribute(onnx: Any, item: Any) -> Any:
    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, onnx.TensorProto):
        return _tensor(onnx, value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if hasattr(value, "__len__") else value


def _tensor(onnx: Any, proto: Any) -> Tensor:
    array = onnx.numpy_helper.to_array(proto)
    return torch.from_numpy(array.astype("float32") if proto.data_type in _REAL else array.copy())


def _try(path: Path, model: Any, network: OnnxNetwork, shape: Sequence[int]) -> None:
    """Run the network once, and refuse it where onnxruntime is installed and gives other numbers."""
    image = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            found = network(image)
    except PathxError:
        raise
    except Exception as error:  # of torch, for shapes that do not go together
        problem = f"{path} cannot be run on an input of {'x'.join(map(str, shape))} ({reason_of(error)})"
        raise PathxError(f"{problem}: check the input size, or export it again", usage=True) from error
    mine = found if isinstance(found, dict) else {network.results[0]: found}
    for name, theirs in _run_onnxruntime(model, network.source, image, list(mine)).items():
        half = any(one.data_type in (10, 16) for one in model.graph.initializer)
        other, tolerance = torch.from_numpy(theirs), 0.03 if half or theirs.dtype == "float16" else 1e-3
        same = other.shape == mine[name].shape
        if same and not other.is_floating_point():
            continue  # such as the best class, which rounding may change
        limit = tolerance * float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
        if not (same and torch.allclose(mine[name].float(), other.float(), tolerance, limit, equal_nan=True)):
            raise PathxError(f"{path} gives another {name} in onnxruntime than in pathx: {_ADVICE}", usage=True)


def _run_onnxruntime(model: Any, source: str, image: Tensor, results: list[str]) -> dict[str, Any]:
    """What onnxruntime makes of a model; nothing where it is not installed, or cannot run it."""
    try:
        onnxruntime = import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, torch.get_num_threads()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        kind = {"tensor(float16)": torch.float16, "tensor(double)": torch.float64}.get(session.get_inputs()[0].type)
        made = session.run(results, {source: image.to(kind or torch.float32).numpy()})
        return dict(zip(results, made, strict=True))
    except Exception:  # it has no type of its own; a model of 2 GiB cannot be handed over
        return {}


def _numbers(value: Any) -> list[int]:
    """Sizes, axes or steps, which older files give as attributes and newer ones as tensors."""
    return [int(one) for one in (value.flatten().tolist() if isinstance(value, Tensor) else value or ())]


def _along(function: Callable[[Tensor, int], Tensor], x: Tensor, axis: int, opset: int) -> Tensor:
    """A softmax along an axis, and up to opset 12 along all that follow it too."""
    if opset >= 13 or axis % x.dim() == x.dim() - 1:
        return function(x, axis)
    return function(x.flatten(axis), -1).reshape(x.shape)


@operator("Clip")
def _clip(
    x: Tensor, low: Tensor | None = None, high: Tensor | None = None, *, min: Any = None, max: Any = None
) -> Tensor:
    least, most = min if low is None else low.item(), max if high is None else high.item()
    return x if least is most is None else x.clamp(least, most)


@operator("Dropout", ignores="ratio seed", results=2)
def _leave(x: Tensor, ratio: Tensor | None = None, training: Tensor | None = None) -> Tensor:
    if training is not None and bool(training):
        raise NotConverted("training_mode 1")
    return x


_REAL = (1, 10, 11, 16)  # float32, float16, double, bfloat16; all are computed in the precision of the engine
_TYPES = {**dict.fromkeys(_REAL, torch.float32), 6: torch.int32, 7: torch.int64, 9: torch.bool}


@operator("Cast", ignores="saturate round_mode", to=tuple(_TYPES))  # both are for floats of 8 bits
def _cast(x: Tensor, *, to: int) -> Tensor:
    return x if x.is_floating_point() and to in _REAL else x.to(_TYPES[to])


@operator("ArgMax", select_last_index=(0,))
def _argmax(x: Tensor, *, axis: int, keepdims: int) -> Tensor:
    """The predicted class, which some networks give beside the logits."""
    return x.argmax(axis, bool(keepdims))


# Linear operators


def _lay_windows(
    x: Tensor, kernel: Any, value: float, *, strides: Any = None, dilations: Any = None, pads: Any = None, auto_pad: str
) -> tuple[Tensor, list[int], list[int], list[int]]:
    """The input with padding that differs from side to side laid on; steps, what padding is left to torch, dilations."""
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


@operator("BatchNormalization", ignores="momentum", training_mode=(0,), spatial=(1,))
def _normalize(x: Tensor, scale: Tensor, bias: Tensor, mean: Tensor, variance: Tensor, *, epsilon: float) -> Tensor:
    return F.batch_norm(x, mean, variance, scale, bias, False, 0.0, epsilon)


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


@operator("Flatten")
def _flatten(x: Tensor, *, axis: int) -> Tensor:
    if axis == 1:
        return x.flatten(1)
    return x.reshape(1, -1) if axis in (0, -x.dim()) else x.reshape(-1, x.shape[axis:].numel())


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
        else:  # as the older exporter writes padding; torch has no such slices
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


# Of `Resize`, what is the same in torch for some sizes only is not left to torch.
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


@operator("Upsample", mode=("nearest", "linear"))
def _upsample(x: Tensor, *given: Tensor, mode: str, scales: Any = None) -> Tensor:
    resized: Tensor = _resize(x, *given or (torch.tensor(scales),), mode=mode)
    return resized


def _take(x: Tensor, axis: int, at: Tensor) -> Tensor:
    return x.index_select(axis, at.clamp(0, x.shape[axis] - 1).to(x.device, torch.int64))


@operator("Gather")
def _gather(x: Tensor, index: Tensor, *, axis: int) -> Tensor:
    if index.dim() == 0:
        return x.select(axis, int(index))
    index = torch.where(index < 0, index + x.shape[axis], index)
    return x.index_select(axis, index.flatten()).reshape(*x.shape[:axis], *index.shape, *x.shape[axis:][1:])


@operator("GatherND", batch_dims=(0,))
def _gather_nd(x: Tensor, index: Tensor) -> Tensor:
    return x[tuple(index.unbind(-1))]


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


@operator("ConstantOfShape")
def _fill(shape: Tensor, *, value: Tensor | None = None) -> Tensor:
    return (torch.zeros(1) if value is None else value).expand(_numbers(shape)).clone()


@operator("DepthToSpace", mode=("DCR", "CRD"))
def _depth_to_space(x: Tensor, *, blocksize: int, mode: str = "DCR") -> Tensor:
    if mode == "CRD":
        return F.pixel_shuffle(x, blocksize)
    images, channels, rows, columns = x.shape
    parts = x.reshape(images, blocksize, blocksize, channels // blocksize**2, rows, columns)
    parts = parts.permute(0, 3, 4, 1, 5, 2)
    return parts.reshape(images, channels // blocksize**2, rows * blocksize, columns * blocksize)


# What takes one line

for _name, _run in {
    "MatMul": lambda a, b: a @ b,
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": lambda a, b: a / b if a.is_floating_point() else torch.div(a, b, rounding_mode="trunc"),
    "Neg": lambda x: -x,
    "Sum": lambda *parts: sum(parts[1:], parts[0]),
    "Identity": lambda x: x,
    "Sqrt": lambda x: x.sqrt(),
    "Reciprocal": lambda x: x.reciprocal(),
    "Floor": lambda x: x.floor(),
    "Ceil": lambda x: x.ceil(),
    "Equal": lambda a, b: a == b,
    "Less": lambda a, b: a < b,
    "Greater": lambda a, b: a > b,
    "Mod": lambda a, b, *, fmod: torch.fmod(a, b) if fmod else torch.remainder(a, b),
    "Max": lambda *parts: reduce(torch.maximum, parts),
    "Min": lambda *parts: reduce(torch.minimum, parts),
    # Units. Those that are not piecewise linear are converted too: the engine says what it makes of them.
    "Relu": lambda x: F.relu(x),  # a network has modules for it, to give layers their names
    "LeakyRelu": lambda x, *, alpha: F.leaky_relu(x, alpha),
    "PRelu": lambda x, slope: torch.where(x > 0, x, x * slope),
    "ThresholdedRelu": lambda x, *, alpha: F.threshold(x, alpha, 0.0),
    "Abs": lambda x: x.abs(),
    "Sigmoid": lambda x: x.sigmoid(),
    "Tanh": lambda x: x.tanh(),
    "Erf": lambda x: x.erf(),
    "Exp": lambda x: x.exp(),
    "HardSigmoid": lambda x, *, alpha, beta: (x * alpha + beta).clamp(0, 1),
    "HardSwish": lambda x: F.hardswish(x),
    "Elu": lambda x, *, alpha: F.elu(x, alpha),
    "Gelu": lambda x, *, approximate: F.gelu(x, approximate=approximate),
    "Softmax": lambda x, *, axis, opset: _along(torch.softmax, x, axis, opset),
    "LogSoftmax": lambda x, *, axis, opset: _along(torch.log_softmax, x, axis, opset),
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
    "Where": lambda condition, a, b: torch.where(condition, a, b),
    "Tile": lambda x, repeats: x.repeat(_numbers(repeats)),
}.items():
    operator(_name)(_run)
