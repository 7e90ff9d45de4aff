"""torch.export archives, rebuilt before torch sees them.

torch's own loader unpickles sample inputs and constants, evaluates symbolic sizes and guards as Python, imports modules
that a file names and writes names from the file into code that it runs. So pathx reads the archive with one reader,
checks every name in the graph, takes weights and constants as plain tensors, and lets torch load a fresh archive that
holds nothing else: no sample inputs, guards, stack traces or other records.
"""

from __future__ import annotations

import ast
import io
import json
import logging
import math
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from pathx.compat import export_reader
from pathx.errors import parse_json
from pathx.models.files import EMBEDDED, Archive, Unsafe, check_operations

_GRAPH = "models/model.json"
_WEIGHTS, _CONSTANTS = ("data/weights", "model_weights_config.json"), ("data/constants", "model_constants_config.json")
_COMPILED = "data/aotinductor/"


def load_export(archive: Archive) -> tuple[nn.Module, str]:
    """The network of a torch.export archive and the sidecar in it; raises anything if the file is damaged or unsafe."""
    load_pt2 = export_reader()
    fresh = rebuild_archive(archive)
    with _silent("torch.export"), _silent("torch._export"):
        # Not torch.export.load, which would go on to read an older layout with another reader.
        program = load_pt2(io.BytesIO(fresh)).exported_programs["model"]
        module = program.module(check_guards=False)
    for part in module.modules():
        part.training = False  # an exported module refuses eval(): its graph is what it was at export
    embedded = f"extra/{EMBEDDED}"
    return module.cpu(), archive.read(embedded).decode("utf-8") if embedded in archive.names else ""


def rebuild_archive(archive: Archive) -> bytes:
    """A fresh archive with only the checked graph, the weights and the constants of a file."""
    if any(name.startswith(_COMPILED) for name in archive.names):
        raise Unsafe("it is compiled, and compiled code cannot be checked")
    graph = _check_program(parse_json(archive.read(_GRAPH)))
    buffer = io.BytesIO()
    writer: Any = torch._C.PyTorchFileWriter(buffer)  # type: ignore[call-arg, arg-type, unused-ignore]
    writer.set_min_version(6)

    def write(name: str, content: bytes) -> None:
        writer.write_record(name, content, len(content))

    write("archive_format", b"pt2")
    write("archive_version", archive.read("archive_version"))
    write(_GRAPH, json.dumps(graph).encode())
    for folder, config in (_WEIGHTS, _CONSTANTS):
        _copy_tensors(archive, folder, config, write)
    write("data/sample_inputs/model.pt", b"")
    writer.write_end_of_file()
    return buffer.getvalue()


def _copy_tensors(archive: Archive, folder: str, config: str, write: Callable[[str, bytes], None]) -> None:
    """Weights or constants, as raw tensors."""
    if f"{folder}/model.pt" in archive.names:
        raise Unsafe("it holds a pickle, as torch 2.8 wrote them")
    listed = parse_json(archive.read(f"{folder}/{config}"))
    entries: dict[str, Any] = {}
    copied: set[str] = set()
    for name, entry in _as_mapping(listed, "config").items():
        record = entry["path_name"]
        if not isinstance(record, str) or not re.fullmatch(r"(weight_|tensor_)\d+", record):
            raise Unsafe(f"{_clip_text(record)} is no plain tensor")
        if entry["use_pickle"] is not False:
            raise Unsafe(f"{_clip_text(name)} is a pickle, and pathx never runs one")
        entries[_dotted_name(name)] = {
            "path_name": record,
            "is_param": bool(entry["is_param"]),
            "use_pickle": False,
            "tensor_meta": _tensor_meta(entry["tensor_meta"], archive.read(f"{folder}/{record}")),
        }
        if record not in copied:
            write(f"{folder}/{record}", archive.read(f"{folder}/{record}"))
            copied.add(record)
    write(f"{folder}/{config}", json.dumps({"config": entries}).encode())


def _tensor_meta(meta: Any, content: bytes) -> Any:
    """The description of a tensor, if the tensor has that many bytes."""
    _check(meta, "tensor_meta")
    sizes = [size["as_int"] for size in meta["sizes"]]
    if not content and math.prod(sizes) > 0:  # torch would make zeros of that size out of nothing
        raise Unsafe("a tensor has no bytes")
    if any(size > len(content) for size in sizes):
        raise Unsafe("a tensor claims to be larger than its bytes")
    return meta


# The graph


def _check_program(program: Any) -> dict[str, Any]:
    """The program of an export, every name in it checked, reduced to what a network needs."""
    module = _as_mapping(program, "graph_module")
    for node in _nodes(module["graph"]):
        node["metadata"] = {key: str(text) for key, text in node["metadata"].items() if key == "nn_module_stack"}
    for entry in module["module_call_graph"]:
        signature = entry["signature"] or {}
        for key in ("in_spec", "out_spec"):
            if key in signature:
                signature[key] = _tree(signature[key])
        for name in signature.get("forward_arg_names") or ():
            _identifier(name)
    kept = {
        "graph": module["graph"],
        "signature": module["signature"],
        "module_call_graph": module["module_call_graph"],
        "metadata": {},
        "treespec_namedtuple_fields": {},
    }
    checked = {key: program[key] for key in _FACTS if key in program}
    checked |= {"graph_module": kept, "guards_code": []}
    _check(checked, "")
    return checked


_FACTS = ("opset_version", "range_constraints", "schema_version", "torch_version", "verifiers")


def _nodes(graph: Any) -> Iterator[dict[str, Any]]:
    """The nodes of a graph and of the graphs inside its nodes."""
    for node in _as_mapping({"graph": graph}, "graph")["nodes"]:
        yield node
        for given in node["inputs"]:
            if isinstance(given["arg"], dict) and "as_graph" in given["arg"]:
                yield from _nodes(given["arg"]["as_graph"]["graph"])


def _check(value: Any, key: str) -> None:
    """Check a part of the program: every text by the rule for the key that it stands under."""
    if isinstance(value, dict):
        for name, part in value.items():
            _dotted_name(name)
            if name in ("as_custom_obj", "custom_obj"):
                raise Unsafe("it holds an object that is no tensor")
            if key in ("tensor_values", "sym_int_values", "sym_bool_values", "sym_float_values", "range_constraints"):
                _identifier(name)
            _check(part, name)
    elif isinstance(value, list):
        for part in value:
            _check(part, key)
    elif isinstance(value, str):
        rule: Callable[[str], Any] = _RULES.get(key, _dotted_name)
        rule(value)


def _dotted_name(name: Any) -> str:
    """The name of a parameter or module, or other plain text; torch writes it into code only inside quotes."""
    if not isinstance(name, str) or not re.fullmatch(r"[^\"'\\\x00-\x1f]*", name):
        raise Unsafe(f"{_clip_text(name)} is not plain text")
    return name


def _identifier(name: Any) -> None:
    """The name of a value in the graph: a variable of the code that torch generates and runs."""
    if not isinstance(name, str) or not re.fullmatch(r"([A-Za-z_]\w*)?", name, re.ASCII):
        raise Unsafe(f"{_clip_text(name)} is not a name")


def _operation(text: str) -> None:
    """An operation on tensors or sizes that a file may name; torch would call whatever it finds by that name."""
    if text in _ON_SIZES or text in _NESTING:
        return
    named = re.fullmatch(r"torch\.ops\.aten\.(\w+)\.(\w+)", text, re.ASCII)
    packet: Any = getattr(torch.ops.aten, named[1], None) if named else None
    if named is None or not isinstance(getattr(packet, named[2], None), torch._ops.OpOverload):
        raise Unsafe(f"{_clip_text(text)} is not an operation on tensors")
    check_operations([f"aten::{named[1]}"])


_COMPARISONS = ("eq", "ne", "le", "ge", "lt", "gt", "and_", "or_")
_ARITHMETIC_OPERATORS = ("neg", "pos", "mul", "add", "sub", "floordiv", "mod", "pow", "truediv", "lshift", "rshift")
_ON_SIZES = {
    *(f"_operator.{name}" for name in ("getitem", *_COMPARISONS, *_ARITHMETIC_OPERATORS)),
    *(f"torch.sym_{name}" for name in ("not", "int", "float", "ite", "max", "min", "sqrt")),
    "math.trunc",
}
_NESTING = {f"torch.ops.higher_order.{name}" for name in ("wrap_with_set_grad_enabled", "wrap_with_autocast")}

_FUNCTIONS = {
    *("Symbol", "Integer", "Float", "Rational", "Add", "Mul", "Pow", "Max", "Min", "Mod", "Where", "Identity"),
    *("FloorDiv", "CeilDiv", "CleanDiv", "PythonMod", "ModularIndexing", "LShift", "RShift", "FloatTrueDiv"),
    *("IntTrueDiv", "CeilToInt", "FloorToInt", "TruncToFloat", "TruncToInt", "RoundToInt", "ToFloat", "PowByNatural"),
    *("FloatPow", "Eq", "Ne", "Gt", "Ge", "Lt", "Le", "Equality", "Unequality", "StrictGreaterThan", "GreaterThan"),
    *("StrictLessThan", "LessThan", "And", "Or", "Not"),
}
_GROWING = ("Pow", "PowByNatural", "FloatPow", "LShift")
_SYMBOL = r"[a-z_]{1,4}\d{1,6}"
_LONGEST_EXPRESSION, _MOST_POWERS, _MOST_DIGITS = 10_000, 3, 19


def _expression(text: str) -> None:
    """A symbolic size. torch evaluates it as Python, so it may only be sums and products of numbers and symbols."""
    try:
        if len(text) > _LONGEST_EXPRESSION or text.count("**") + text.count("Pow") > _MOST_POWERS:
            raise ValueError
        if re.search(rf"\d{{{_MOST_DIGITS + 1},}}", text):
            raise ValueError
        nodes = list(ast.walk(ast.parse(text, mode="eval")))
        texts = sum(isinstance(node, ast.Constant) and isinstance(node.value, str) for node in nodes)
        names = re.findall(r"\b(?:Symbol|Float)\((['\"])[^'\"]*\1[,)]", text)  # elsewhere a text could be multiplied
        allowed = texts == len(names) and all(map(_is_arithmetic, nodes))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        allowed = False
    if not allowed:
        raise Unsafe(f"{_clip_text(text)} is not a size")


_ARITHMETIC = (
    *(ast.Expression, ast.BinOp, ast.UnaryOp, ast.Compare, ast.operator, ast.unaryop, ast.cmpop, ast.Load),
    *(ast.BoolOp, ast.boolop),
)


def _is_arithmetic(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Pow, ast.LShift)):
        return _is_small(node.right)
    if isinstance(node, ast.Call):
        named = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS
        return named and (ast.unparse(node.func) not in _GROWING or all(map(_is_small, node.args[1:])))
    if isinstance(node, ast.Name):
        return node.id in _FUNCTIONS | {"oo", "int_oo"} or re.fullmatch(_SYMBOL, node.id, re.ASCII) is not None
    if isinstance(node, ast.keyword):
        return node.arg in ("positive", "integer", "nonnegative", "real", "precision", "evaluate")
    if isinstance(node, ast.Constant):
        is_symbol = (
            isinstance(node.value, str) and re.fullmatch(rf"{_SYMBOL}|\d+\.\d+", node.value, re.ASCII) is not None
        )
        return is_symbol or isinstance(node.value, (int, float))
    return isinstance(node, _ARITHMETIC)


def _is_small(exponent: ast.AST) -> bool:
    """Whether a power or a shift stays small: its exponent is a number of two digits."""
    return re.fullmatch(r"(Integer\(|Float\()?-?[\d.]{1,3}\)?", ast.unparse(exponent)) is not None


def _tree(text: Any) -> str:
    """The nesting of arguments or results: tuples, lists and dictionaries. torch would import other types."""
    protocol, spec = parse_json(text)
    return json.dumps([int(protocol), _check_tree(spec)])


def _check_tree(spec: Any) -> dict[str, Any]:
    kind, context, children = spec["type"], spec["context"], spec["children_spec"]
    if kind not in (None, "builtins.tuple", "builtins.list", "builtins.dict", "collections.OrderedDict"):
        raise Unsafe(f"its results are a {_clip_text(kind)}, not tensors in tuples, lists or dictionaries")
    names = parse_json(context) if context is not None else None
    for name in names if isinstance(names, list) else ():
        _identifier(name)
    if names is not None and not isinstance(names, list):
        raise Unsafe("the names of its arguments are not a list")
    return {"type": kind, "context": context, "children_spec": [_check_tree(child) for child in children]}


_RULES: dict[str, Callable[[str], Any]] = {
    **dict.fromkeys(("target", "as_operator"), _operation),
    **dict.fromkeys(("name", "as_name", "user_input_name", "verifiers"), _identifier),
    "expr_str": _expression,
    # Checked elsewhere, or passed on by torch as quoted arguments:
    **dict.fromkeys(("in_spec", "out_spec", "as_string", "as_strings", "nn_module_stack"), lambda text: None),
}


def _as_mapping(value: Any, key: str) -> dict[str, Any]:
    part = value[key] if isinstance(value, dict) else None
    if not isinstance(part, dict):
        raise Unsafe(f"it has no {key}")
    return part


def _clip_text(text: object) -> str:
    return repr(text)[:60]


@contextmanager
def _silent(logger: str) -> Iterator[None]:
    log = logging.getLogger(logger)
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before
