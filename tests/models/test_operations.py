"""A model file names operations from one list or is refused by name, before anything of it runs."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.attacks import GRAPH, changed, exported, packed, records_of
from support.command_line import SIDECAR, Pathx, network, picture, process, scripted
from torch import Tensor, nn

from pathx.engine.rules.table import OPERATIONS
from pathx.errors import PathxError
from pathx.models.exported import rebuild_archive
from pathx.models.files import Archive, Unsafe, check_operations, load_network

pytestmark = pytest.mark.usefixtures("here")
REASON = "is not one that pathx allows in a file"


def schemas() -> dict[str, Any]:
    """An overload of every operation that torch has, whatever family it is of."""
    return {schema.name: schema for schema in torch._C._jit_get_all_schemas()}


def is_refused(name: str) -> bool:
    try:
        check_operations([name])
    except Unsafe:
        return True
    return False


def test_what_does_more_than_compute_is_not_on_the_list() -> None:
    """By what torch says of its operations: they take a file or a stream, or show memory that is not the tensor's."""
    known = schemas()
    for name, schema in known.items():
        words = [argument.name.lower() for argument in schema.arguments]
        kinds = [str(argument.type) for argument in schema.arguments]
        telling = any("filename" in word or "filepath" in word for word in words)
        shows = "stride" in words and "Tensor" in kinds and name not in _STEPS
        if telling or shows or any(kind in ("Storage", "Stream", "Generator", "Future(t)") for kind in kinds):
            assert is_refused(name), name
        if name.partition("::")[0] not in ("aten", "prim"):
            assert is_refused(name), name
    for name in (
        "aten::_print",
        "aten::warn",
        "prim::Print",
        "prim::PythonOp",
        "aten::set_",
        "aten::resize_",
        "aten::wait",
    ):
        assert name in known
        assert is_refused(name), name
    for name in ("aten::_reshape_alias", "aten::as_strided", "aten::as_strided_", "aten::manual_seed", "prim::fork"):
        assert is_refused(name), name


_STEPS = {  # `stride` is how far a kernel moves
    *(f"aten::{name}" for name in OPERATIONS if re.search("pool|im2col|col2im|conv|new_empty_strided", name)),
    *(f"aten::conv{rest}" for rest in ("1d", "2d", "3d", "_transpose1d", "_transpose2d", "_transpose3d")),
    *(f"aten::{name}" for name in ("_convolution", "_convolution_mode", "max_pool1d", "max_pool2d", "max_pool3d")),
    *("aten::max_pool1d_with_indices", "aten::_assert_tensor_metadata"),
}


def test_what_networks_are_made_of_is_on_the_list() -> None:
    check_operations(f"aten::{name}" for name in OPERATIONS)
    for names in (
        "relu relu_ add_ silu gelu hardswish layer_norm softmax scaled_dot_product_attention group_norm sigmoid tanh",
        "einsum matmul conv2d batch_norm max_pool2d adaptive_avg_pool2d linear dropout_ cat size __getitem__ format to",
    ):
        check_operations(f"aten::{name}" for name in names.split())
    check_operations(f"prim::{name}" for name in ("If", "Loop", "GetAttr", "CallMethod", "Constant", "RaiseException"))


@pytest.mark.parametrize("step", [32, pytest.param(1, marks=pytest.mark.slow)])
def test_no_export_may_name_another_operation(step: int) -> None:
    """An overload of every operation of torch itself, written into a real file."""
    records = records_of(exported())

    def naming(target: str) -> Callable[[Any], None]:
        def change(program: Any) -> None:
            program["graph_module"]["graph"]["nodes"][0]["target"] = target

        return change

    refused = 0
    for name in sorted({name.partition("::")[2] for name in schemas() if name.startswith("aten::")})[::step]:
        packet = getattr(torch.ops.aten, name, None)
        if packet is None:
            continue
        file = packed(changed(records, graph=naming(f"torch.ops.aten.{name}.{packet.overloads()[0]}")))
        if is_refused(f"aten::{name}"):
            with pytest.raises(Unsafe, match=f"aten::{name}' {REASON}|is not an operation on tensors"):
                rebuild_archive(Archive(io.BytesIO(file)))
            refused += 1
        else:
            rebuild_archive(Archive(io.BytesIO(file)))
    assert refused > 700 / step


@pytest.mark.parametrize("step", [64, pytest.param(1, marks=pytest.mark.slow)])
def test_no_program_may_name_another_operation(step: int) -> None:
    """The same for TorchScript: a method that calls it with values of the right types, and returns what it gives."""
    records = records_of(Path(scripted(network())).read_bytes())
    main = next(name for name, content in records.items() if name.endswith(".py") and b"  def forward(" in content)
    start, end = re.split(r"(?=  def forward)", records[main].decode(), maxsplit=1)
    owner = re.match(r"  def forward\((self: [\w.]+)", end)
    assert owner is not None
    listed = list(schemas().items())
    by_name = 0
    for name, schema in [*listed[::step], ("prim::PythonOp", schemas()["prim::PythonOp"])]:
        family, _, operation = name.partition("::")
        if not operation.isidentifier():
            continue
        given = ", ".join(
            f"{f'{one.name}=' if one.kwarg_only else ''}uninitialized({one.type.annotation_str})"
            for one in schema.arguments
        )
        kinds = [one.type.annotation_str for one in schema.returns]
        kind = kinds[0] if len(kinds) == 1 else f"Tuple[{', '.join(kinds)}]" if kinds else "NoneType"
        call = f"{'return ' if kinds else ''}ops.{family}.{operation}({given})\n{'' if kinds else '    return None'}"
        method = f"  def attack({owner[1]}) -> {kind}:\n    {call}\n"
        Path("model.pt").write_bytes(packed({**records, main: (start + method + end).encode()}))
        loaded, problem = None, ""
        try:
            loaded, _ = load_network(Path("model.pt"))
        except PathxError as error:
            problem = str(error)
        by_name += REASON in problem
        assert is_refused(name) or REASON not in problem, problem
        if loaded is not None:  # or torch leaves it out, as nobody would notice, or calls it by another name
            compiled = {node.kind() for node in loaded._c._get_method("attack").graph.nodes()}
            assert not any(map(is_refused, compiled)), name
    assert by_name > 700 / step  # torch does not compile some of the others in the first place


# The real thing


class Overwrites(nn.Module):
    """Writes far beyond a tensor of eight bytes."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.layer, self.size = nn.Linear(3, 2), size

    def forward(self, x: Tensor) -> Tensor:
        torch.ops.aten._reshape_alias(self.layer.bias.detach(), [self.size], [1]).fill_(1.0)
        return self.layer(torch.relu(x).mean((2, 3)))  # type: ignore[no-any-return]


FAR = 400_000_000


class Prints(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        print("\x1b[2J owned")
        return torch.relu(x).mean((2, 3))


class Warns(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("\x1b[2J owned", stacklevel=2)
        return torch.relu(x).mean((2, 3))


def save_export(module: nn.Module, *printed: str) -> str:
    """A real export; of what prints, the exporter itself would leave the printing out."""
    program = torch.export.export(module.eval(), (torch.zeros(1, 3, 8, 8),))
    end = next(node for node in program.graph.nodes if node.op == "output")
    with program.graph.inserting_before(end):
        for text in printed:
            program.graph.call_function(torch.ops.aten._print.default, (text,))
    torch.export.save(program, "small.pt2", extra_files={"pathx.json": json.dumps(SIDECAR)})
    records = records_of(Path("small.pt2").read_bytes())
    records[GRAPH] = records[GRAPH].replace(b'{"as_ints": [2]}', b'{"as_ints": [%d]}' % FAR)
    Path("model.pt2").write_bytes(packed(records))
    return "model.pt2"


FILES = {
    "export that overwrites": (lambda: save_export(Overwrites(2)), "aten::_reshape_alias"),
    "program that overwrites": (lambda: scripted(Overwrites(FAR)), "aten::_reshape_alias"),
    "export that prints": (lambda: save_export(nn.ReLU(), "\x1b[2J owned"), "aten::_print"),
    "program that prints": (lambda: scripted(Prints()), "prim::Print"),
}


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_refused_by_a_command(name: str, pathx_: Pathx) -> None:
    make, operation = FILES[name]
    done = pathx_("explain", picture(), "--format", "json", "--quiet", "--model", make())
    assert (done.status, done.out, done.err.count("\n")) == (2, "", 1)
    assert operation in done.err and "\x1b" not in done.err


def test_warnings_of_a_program_are_not_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Functions of torch itself warn, so a file may."""
    load_network(Path(scripted(Warns())))[0](torch.zeros(1, 3, 8, 8))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_the_hostile_files_are_real(name: str) -> None:
    """torch itself prints, or is killed by a signal."""
    file = FILES[name][0]()
    load = f"torch.export.load({file!r}).module()" if file.endswith(".pt2") else f"torch.jit.load({file!r})"
    done = process("-W", "ignore", "-c", f"import torch; {load}(torch.zeros(1, 3, 8, 8))")
    assert "\x1b[2J owned" in done.out if "prints" in name else done.status < 0
