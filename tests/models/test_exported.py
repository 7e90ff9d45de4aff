"""Archives of torch.export are rebuilt before torch sees them, and hold nothing but the network."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from support.attacks import GRAPH, Trap, changed, exported, packed, pickled, records_of

from pathx.models.exported import Archive, Unsafe, _expression, _operation, remade
from pathx.models.load import load_model


@pytest.fixture(scope="module")
def genuine() -> bytes:
    return exported()


@pytest.mark.parametrize(
    "expression", ["Symbol('s0', positive=True, integer=True)", "Add(Integer(2), FloorDiv(s0, 3))"]
)
def test_sizes_that_torch_writes_are_understood(genuine: bytes, expression: str) -> None:
    _expression(expression)
    assert '"expr_str"' in records_of(genuine)[GRAPH].decode()


def test_sample_inputs_are_not_even_read(genuine: bytes, tmp_path: Path) -> None:
    """Where the network itself is sound, what is left behind does no harm."""
    file, mark = tmp_path / "model.pt2", tmp_path / "mark"
    inputs = {**records_of(genuine), "data/sample_inputs/model.pt": pickled(Trap(mark))}
    file.write_bytes(packed(inputs))
    assert load_model(file).labels == ("cat", "red fox", "dog")
    assert not mark.exists()


def test_results_may_be_dictionaries_of_tensors(tmp_path: Path) -> None:
    class Two(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            with torch.no_grad():
                scaled = x * 2
            return {"logits": scaled.relu().flatten(1), "other": x.flatten(1)}

    file = tmp_path / "two.pt2"
    torch.export.save(torch.export.export(Two(), (torch.ones(1, 1, 2, 2),)), file)
    module = load_model(file, input_size=(1, 2, 2), mean=0, std=1).module
    assert module(torch.ones(1, 1, 2, 2))["logits"].tolist() == [[2, 2, 2, 2]]


def test_the_rebuilt_archive_holds_nothing_else(genuine: bytes) -> None:
    records = {**records_of(genuine), "extra/evil.pkl": b"x", "data/sample_inputs/model.pt": b"y"}
    fresh = records_of(remade(Archive(io.BytesIO(packed(records)))))
    assert "extra/evil.pkl" not in fresh
    assert fresh["data/sample_inputs/model.pt"] == b""
    graph = json.loads(fresh[GRAPH])
    assert graph["guards_code"] == []
    assert {key for node in graph["graph_module"]["graph"]["nodes"] for key in node["metadata"]} == {"nn_module_stack"}
    assert changed(records) == records


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "Symbol('s0').__class__",
        "(lambda: 1)()",
        "[s0 for s0 in (1, 2)]",
        "Symbol('x; import os')",
        "s0 ** s1 ** s2 ** s3 ** s4",
        "1" * 20,
        "s0 +",
        "open('/etc/passwd')",
    ],
)
def test_a_size_is_arithmetic_and_nothing_else(expression: str) -> None:
    with pytest.raises(Unsafe, match="is not a size"):
        _expression(expression)


@pytest.mark.parametrize("name", ["torch.ops.aten.relu.default", "_operator.add", "torch.sym_max"])
def test_operations_on_tensors_and_sizes_are_known(name: str) -> None:
    _operation(name)


@pytest.mark.parametrize(
    "name",
    ["torch.load", "torch.ops.aten.from_file.default", "torch.ops.aten.nothing", "os.system", "_operator.attrgetter"],
)
def test_other_names_are_no_operations(name: str) -> None:
    with pytest.raises(Unsafe, match=r"is not (an operation on tensors|one that pathx allows)"):
        _operation(name)


def test_a_record_has_the_name_it_was_asked_by_and_fits_its_file(genuine: bytes) -> None:
    archive = Archive(io.BytesIO(genuine))
    assert archive.has(GRAPH) and not archive.has(GRAPH.upper())
    with pytest.raises(Unsafe, match="it has no"):
        archive.read(GRAPH.upper())  # torch's own reader would not mind


def test_a_network_comes_out_as_it_was_exported(tmp_path: Path) -> None:
    model = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32, 3)
    ).eval()
    images, file = torch.rand(2, 1, 6, 6), tmp_path / "model.pt2"
    torch.export.save(torch.export.export(model, (images,)), file)
    loaded = load_model(file, input_size=(1, 6, 6), mean=0, std=1).module
    assert torch.equal(loaded(images), model(images)) and not loaded.training
