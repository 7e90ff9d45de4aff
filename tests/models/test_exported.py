"""Archives of torch.export are rebuilt before torch sees them, and hold nothing but the network."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import torch
from support.attacks import GRAPH, Trap, changed, exported, packed, pickled, records_of

from pathx.models.exported import rebuild_archive
from pathx.models.files import Archive, Unsafe
from pathx.models.load import load_model


@pytest.fixture(scope="module")
def genuine() -> bytes:
    return exported()


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
    fresh = records_of(rebuild_archive(Archive(io.BytesIO(packed(records)))))
    assert "extra/evil.pkl" not in fresh
    assert fresh["data/sample_inputs/model.pt"] == b""
    graph = json.loads(fresh[GRAPH])
    assert graph["guards_code"] == []
    assert {key for node in graph["graph_module"]["graph"]["nodes"] for key in node["metadata"]} == {"nn_module_stack"}
    assert changed(records) == records


def test_a_record_has_the_name_it_was_asked_by_and_fits_its_file(genuine: bytes) -> None:
    archive = Archive(io.BytesIO(genuine))
    assert GRAPH in archive.names and GRAPH.upper() not in archive.names
    with pytest.raises(Unsafe, match="it has no"):
        archive.read(GRAPH.upper())  # torch's own reader would not mind
