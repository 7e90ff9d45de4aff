"""ONNX files as networks: a module per node of the graph, and one torch function per operator (`onnx_operators.py`).

The usual converter (onnx2torch 1.5) knows none of the versions that torch's own exporter writes today: it converted 0 of
18 exports of ten torchvision models. `docs/models.md` lists the operators.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from pathx.errors import PathxError, reason_of
from pathx.models.hubs import library
from pathx.models.onnx_operators import OPERATORS, REAL, NotConverted
from pathx.models.preprocessing import LARGEST_INPUT
from pathx.regular import damage_errors

OPSETS = range(7, 27)
"""The versions of ONNX whose operators were compared with onnxruntime, one by one (`tests/models/test_onnx_operators.py`)."""

_ADVICE = "export the network from torch with torch.export.save instead, or to ONNX without that"


def _refusal(kind: str, name: str, problem: object) -> PathxError:
    return PathxError(f"{kind} with {problem} (node {name}) cannot be converted: {_ADVICE}", usage=True)


class OnnxNode(nn.Module):
    """One node of the graph: a module, so that layers and refusals have its name."""

    def __init__(
        self, kind: str, name: str, attributes: Mapping[str, Any], inputs: Sequence[str], outputs: Sequence[str]
    ) -> None:
        super().__init__()
        self.kind, self.name, self.attributes = kind, name, attributes
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)

    def forward(self, *given: Any) -> tuple[Any, ...]:
        try:
            made = OPERATORS[self.kind].run(*given, **self.attributes)
        except NotConverted as problem:
            raise _refusal(self.kind, self.name, problem) from None
        return made if isinstance(made, tuple) else (made,)


class OnnxNetwork(nn.Module):
    """A network that runs the nodes of an ONNX graph in order; its weights are buffers.

    It returns several results by name, and the engine finds the logits among them.
    """

    def __init__(self, nodes: Sequence[OnnxNode], constants: Mapping[str, Tensor], source: str, *results: str) -> None:
        super().__init__()
        self.source, self.results = source, results
        self.weights = {name: f"weight_{number}" for number, name in enumerate(constants)}
        for name, tensor in constants.items():
            self.register_buffer(self.weights[name], tensor)
        for node in nodes:
            name = re.sub(r"[./]", "_", node.name.strip("/")) or "node"
            while hasattr(self, name):  # exporters omit or repeat names
                name += "_"
            self.add_module(name, node)
        last_use = {name: number for number, node in enumerate(nodes) for name in node.inputs if name not in results}
        self._spent = [[name for name, last in last_use.items() if last == number] for number in range(len(nodes))]

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        values: dict[str, Any] = {name: getattr(self, key) for name, key in self.weights.items()}
        values[self.source] = x
        for node, spent in zip(cast("Iterator[OnnxNode]", self.children()), self._spent, strict=True):
            made = node(*(values[name] if name else None for name in node.inputs))
            values.update(zip(node.outputs, made, strict=False))
            for name in spent:
                values.pop(name, None)
        return {name: values[name] for name in self.results} if len(self.results) > 1 else values[self.results[0]]


def load_onnx(
    path: Path, input_size: Sequence[int] | None = None
) -> tuple[nn.Module, tuple[int, ...] | None, list[Path]]:
    """The network in an ONNX file, the (channels, height, width) of its input, and the files beside it that hold tensors.

    Args:
        input_size: for a trial run, if the file does not say it.
    """
    onnx = library("onnx")
    helper = onnx.external_data_helper
    with damage_errors(path, "no ONNX file", "export it again", usage=True):
        model = onnx.load(str(path), load_external_data=False)
        apart = filter(helper.uses_external_data, helper._get_all_tensors(model))
        beside = sorted({path.parent / helper.ExternalDataInfo(tensor).location for tensor in apart})
        helper.load_external_data_for_model(model, str(path.parent))
        network, shape = _network(onnx, model, path)
    size = tuple(shape[1:]) if len(shape) == 4 and min(shape[1:]) > 0 else None
    if size or input_size:
        _try(path, model, network, (max(shape[0], 1) if size else 1, *(size or input_size or ())))
    return network, size, beside


def _network(onnx: Any, model: Any, path: Path) -> tuple[OnnxNetwork, list[int]]:
    """The network, and the shape of its input with 0 for sides that the file does not fix."""
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
    nodes = [_node(onnx, node, opset, context) for node in graph.node]
    constants |= {node.outputs[0]: node()[0] for node in nodes if node.kind == "Constant"}
    nodes = [node for node in nodes if node.kind != "Constant"]
    inputs = [value for value in graph.input if value.name not in constants]
    if len(inputs) != 1 or not graph.output:
        found = f"{path} has {len(inputs)} inputs and {len(graph.output)} outputs"
        raise PathxError(f"{found}: pathx explains networks of one image and one output", usage=True)
    kind = inputs[0].type.tensor_type
    if kind.elem_type not in REAL:
        raise PathxError(f"{path} takes no real numbers: export it with an input of type float32", usage=True)
    results = [one.name for one in graph.output]
    known = {"", inputs[0].name, *constants}
    for node in nodes:
        _check_known(path, f"node {node.name}", node.inputs, known)
        known.update(node.outputs)
    _check_known(path, "the result", results, known)
    network = OnnxNetwork(nodes, constants, inputs[0].name, *results).eval()
    return network, [int(side.dim_value) for side in kind.shape.dim]


def _check_known(path: Path, reader: str, names: Sequence[str], known: set[str]) -> None:
    if missing := {*names} - known:
        problem = f"{reader} reads {min(missing)!r}, which nothing before it gives"
        raise PathxError(f"{path} is damaged ({problem}): export it again", usage=True)


def _kind(node: Any) -> str:
    return str(node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}")


def _node(onnx: Any, node: Any, opset: int, context: Any) -> OnnxNode:
    """A node with all its attributes; omitted ones have the default of the file's opset."""
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
    return OnnxNode(kind, name, attributes, node.input, node.output)


def _attribute(onnx: Any, item: Any) -> Any:
    value = onnx.helper.get_attribute_value(item)
    if isinstance(value, onnx.TensorProto):
        return _tensor(onnx, value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return list(value) if hasattr(value, "__len__") else value


def _tensor(onnx: Any, proto: Any) -> Tensor:
    array = onnx.numpy_helper.to_array(proto)
    return torch.from_numpy(array.astype("float32") if proto.data_type in REAL else array.copy())


def _try(path: Path, model: Any, network: OnnxNetwork, shape: Sequence[int]) -> None:
    """Run the network once. Refuse it if onnxruntime is installed and gives other numbers."""
    sides = "x".join(map(str, shape))
    if 4 * prod(shape) > LARGEST_INPUT:
        needed = f"takes an input of {sides}, of more than {LARGEST_INPUT >> 30} GiB"
        raise PathxError(f"{path} {needed}: export it for smaller or fewer images", usage=True)
    image = torch.randn(*shape, generator=torch.Generator().manual_seed(0))
    try:
        with torch.no_grad():
            found = network(image)
    except PathxError:
        raise
    except Exception as error:  # torch's, for shapes that do not fit together
        problem = f"{path} cannot be run on an input of {sides} ({reason_of(error)})"
        raise PathxError(f"{problem}: check the input size, or export it again", usage=True) from error
    mine = found if isinstance(found, dict) else {network.results[0]: found}
    for name, theirs in _run_onnxruntime(model, network.source, image, list(mine)).items():
        half = any(one.data_type in (10, 16) for one in model.graph.initializer)
        other, tolerance = torch.from_numpy(theirs), 0.03 if half or theirs.dtype == "float16" else 1e-3
        same = other.shape == mine[name].shape
        if same and not other.is_floating_point():
            continue  # such as the best class, which may change by rounding
        largest = float(other.nan_to_num(0.0, 0.0, 0.0).abs().max()) if other.numel() else 0.0
        limit = max(tolerance * largest, 1e-6)  # onnxruntime's sigmoid alone is off by that much
        if not (same and torch.allclose(mine[name].float(), other.float(), tolerance, limit, equal_nan=True)):
            raise PathxError(f"{path} gives another {name} in onnxruntime than in pathx: {_ADVICE}", usage=True)


def _run_onnxruntime(model: Any, source: str, image: Tensor, results: list[str]) -> dict[str, Any]:
    """The results of onnxruntime; empty if it is not installed or cannot run the model."""
    try:
        onnxruntime = import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, torch.get_num_threads()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
        kind = {"tensor(float16)": torch.float16, "tensor(double)": torch.float64}.get(session.get_inputs()[0].type)
        made = session.run(results, {source: image.to(kind or torch.float32).numpy()})
        return dict(zip(results, made, strict=True))
    except Exception:  # it has no error type of its own; models of 2 GiB cannot be passed
        return {}
