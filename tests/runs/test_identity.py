"""A run goes on with results of the same network alone: whatever these depend on, if it changes they are made again."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.many import photos
from torch import nn

from pathx.models.load import load_model
from pathx.runs.run import Settings, State, explain_files

pytestmark = pytest.mark.usefixtures("here")

SIDECAR = {"input_size": [3, 8, 8], "mean": [0.5] * 3, "std": [0.25] * 3, "labels": ["cat", "dog", "fox"]}
SETTINGS = Settings(depth=1, width=2, batch_size=2, pictures=False)


@dataclass
class Source:
    """A model, and the changes after which it is another.

    Args:
        given: for `load_model`.
        changes: by name; each changes files or what is given.
    """

    given: dict[str, Any]
    changes: dict[str, Callable[[Source], object]] = field(default_factory=dict)


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()


def sidecar(file: str = "model.json", **other: Any) -> None:
    Path(file).write_text(json.dumps(SIDECAR | other))


BESIDE: dict[str, Callable[[Source], object]] = {
    "mean in the sidecar": lambda source: sidecar(mean=[0.4] * 3),
    "labels in the sidecar": lambda source: sidecar(labels=["lynx", "dog", "fox"]),
    "labels of the call": lambda source: source.given.update(labels=["x", "y", "z"]),
}


def torchscript(seed: int = 0) -> Source:
    torch.jit.trace(network(seed), torch.rand(1, 3, 8, 8)).save("model.pt")  # type: ignore[no-untyped-call]
    sidecar()
    return Source({"name_or_file": "model.pt"}, {"the file": lambda source: torchscript(1), **BESIDE})


def exported(seed: int = 0) -> Source:
    batch = {0: torch.export.Dim("batch")}
    torch.export.save(torch.export.export(network(seed), (torch.rand(2, 3, 8, 8),), dynamic_shapes=(batch,)), "m.pt2")
    sidecar("m.json")
    return Source({"name_or_file": "m.pt2"}, {"the file": lambda source: exported(1)})


def onnx(seed: int = 0) -> Source:
    library = pytest.importorskip("onnx")
    from onnx import TensorProto, helper, numpy_helper

    state = network(seed).state_dict()
    weights = [numpy_helper.from_array(value.numpy(), name) for name, value in state.items()]
    nodes = [
        helper.make_node("Conv", ["x", "0.weight", "0.bias"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Flatten", ["r"], ["f"]),
        helper.make_node("Gemm", ["f", "3.weight", "3.bias"], ["y"], transB=1),
    ]
    shapes = {"x": ["n", 3, 8, 8], "y": ["n", 3]}
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items())
    graph = helper.make_graph(nodes, "net", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    Path("weights.bin").unlink(missing_ok=True)
    library.save(model, "m.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    sidecar("m.json")
    return Source({"name_or_file": "m.onnx"}, {"the external data": _other_external_data})


def _other_external_data(source: Source) -> None:
    before = Path("m.onnx").read_bytes()
    onnx(1)
    assert Path("m.onnx").read_bytes() == before


def named(seed: int = 0) -> Source:
    module = load_model("squeezenet1_1", weights="none").module
    torch.manual_seed(seed)
    state = {name: value + 0.01 * torch.randn_like(value) for name, value in module.state_dict().items()}
    save_file(state, "weights.safetensors")
    given = {"name_or_file": "squeezenet1_1", "weights": "weights.safetensors", "input_size": (3, 48, 48)}
    return Source(
        given, {"the weights": lambda source: named(1), "none": lambda source: source.given.update(weights="none")}
    )


CODE = """
import json, pathlib
from layers import activation
from torch import nn

def build(scale=1.0):
    import deeper.down
    power = json.loads((pathlib.Path(__file__).parent / "config.json").read_text())["power"]
    first = nn.Sequential(nn.Conv2d(3, 4, 3), activation())
    return nn.Sequential(*first, deeper.down.Scale(scale * power), nn.Flatten(), nn.Linear(144, 3))
"""


def factory() -> Source:
    Path("code/deeper").mkdir(parents=True)
    Path("code/net.py").write_text(CODE)
    Path("code/layers.py").write_text("from torch import nn\ndef activation():\n    return nn.ReLU()\n")
    Path("code/deeper/down.py").write_text(
        "from torch import nn\nclass Scale(nn.Module):\n    def __init__(self, by):\n        super().__init__()\n"
        "        self.by = by\n    def forward(self, x):\n        return x * self.by\n"
    )
    Path("code/config.json").write_text('{"power": 1}')
    sidecar("code/pathx.json")
    state = network().state_dict()
    torch.save({name.replace("3.", "4."): value for name, value in state.items()}, "weights.pth")
    changes: dict[str, Callable[[Source], object]] = {
        "its own code": lambda source: _edit("code/net.py", "activation())", "nn.ReLU6())"),
        "a module that it imports": lambda source: _edit("code/layers.py", "ReLU", "LeakyReLU"),
        "a module that it imports later": lambda source: _edit("code/deeper/down.py", "x * self.by", "x * self.by * 3"),
        "a file that it reads": lambda source: _edit("code/config.json", "1", "-10"),
        "its arguments": lambda source: source.given.update(arguments={"scale": 2.0}),
        "the checkpoint": _other_checkpoint,
        "the sidecar": lambda source: sidecar("code/pathx.json", std=[0.5] * 3),
    }
    return Source({"name_or_file": "code/net.py:build", "weights": "weights.pth"}, changes)


def _edit(file: str, old: str, new: str) -> None:
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


def _other_checkpoint(source: Source) -> None:
    state = torch.load("weights.pth", weights_only=True)
    torch.save({name: value * 2 for name, value in state.items()}, "weights.pth")


def pretrained() -> Source:
    transformers = pytest.importorskip("transformers")
    sizes = {"embedding_size": 4, "hidden_sizes": [4, 4], "depths": [1, 1], "layer_type": "basic", "num_labels": 3}
    torch.manual_seed(0)
    transformers.ResNetForImageClassification(transformers.ResNetConfig(**sizes)).save_pretrained("folder")
    Path("folder/preprocessor_config.json").write_text(
        json.dumps({"size": 32, "image_mean": [0.5] * 3, "image_std": [0.5] * 3})
    )
    changes: dict[str, Callable[[Source], object]] = {
        "config.json": lambda source: _edit("folder/config.json", '"relu"', '"relu6"'),
        "the weights": _other_safetensors,
        "preprocessor_config.json": lambda source: _edit("folder/preprocessor_config.json", "32", "48"),
    }
    return Source({"name_or_file": "./folder"}, changes)


def _other_safetensors(source: Source) -> None:
    file = "folder/model.safetensors"
    save_file({name: value * 1.5 for name, value in load_file(file).items()}, file, {"format": "pt"})


def timm() -> Source:
    pytest.importorskip("timm")
    given = {"name_or_file": "timm:resnet10t", "weights": "none", "input_size": (3, 64, 64)}
    return Source(given, {"arguments": lambda source: source.given.update(arguments={"output_stride": 16})})


SOURCES = (torchscript, exported, onnx, named, factory, pretrained, timm)


@pytest.fixture(autouse=True)
def imported_anew() -> Iterator[None]:
    """As in a process of its own."""
    before = set(sys.modules)
    yield
    _forget_modules(before)


def _forget_modules(before: set[str]) -> None:
    importlib.invalidate_caches()
    for name in {"layers", "deeper", "deeper.down", "net"} & {*sys.modules}:
        del sys.modules[name]


def states(source: Source, out: str = "out", notes: list[str] | None = None) -> set[State]:
    _forget_modules(set())
    model = load_model(**source.given)
    note = (lambda text: None) if notes is None else notes.append
    results = list(explain_files(model, ["photos"], out, settings=SETTINGS, note=note))
    assert len(results) == 3 and not any(result.failed for result in results), [result.error for result in results]
    return {result.state for result in results}


@pytest.mark.parametrize("make", SOURCES, ids=lambda make: make.__name__)
def test_results_are_kept_until_something_changes_that_they_depend_on(make: Callable[[], Source]) -> None:
    photos(3)
    source = make()
    assert states(source) == {State.done}
    assert states(source) == {State.kept}
    for name, change in source.changes.items():
        change(source)
        assert states(source) == {State.done}, name
    assert states(source) == {State.kept}


@pytest.mark.parametrize("make", [torchscript, factory, onnx], ids=lambda make: make.__name__)
def test_a_model_that_was_moved_is_the_same(make: Callable[[], Source], tmp_path_factory: Any) -> None:
    """Shards of a run may have it in other places."""
    photos(3)
    source = make()
    assert states(source) == {State.done}
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    shutil.copytree(".", elsewhere, dirs_exist_ok=True, ignore=shutil.ignore_patterns("out", "photos", "__pycache__"))
    for key in ("name_or_file", "weights"):
        if key in source.given:
            source.given[key] = str(elsewhere / source.given[key])
    assert states(source) == {State.kept}


# The last check


HIDDEN = """
import os
from torch import nn

class Scale(nn.Module):
    def forward(self, x):
        return x * float(os.environ.get("PATHX_TEST_SCALE", 1))

def build():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), Scale(), nn.Flatten(), nn.Linear(144, 3))
"""


def test_what_nobody_could_know_shows_in_a_logit(monkeypatch: pytest.MonkeyPatch) -> None:
    source = factory()
    Path("code/net.py").write_text(HIDDEN)
    photos(3)
    said: list[str] = []
    assert states(source, notes=said) == {State.done}
    assert states(source, notes=said) == {State.kept} and not said
    monkeypatch.setenv("PATHX_TEST_SCALE", "3")
    assert states(source, notes=said) == {State.done}
    (line,) = said
    assert line.startswith("the network gives ") and line.endswith("than it did then: what is in out is made again")
    assert states(source, notes=said) == {State.kept} and len(said) == 1


def test_a_run_that_is_stopped_after_that_keeps_nothing_older(monkeypatch: pytest.MonkeyPatch) -> None:
    source = factory()
    Path("code/net.py").write_text(HIDDEN)
    photos(3)
    assert states(source) == {State.done}
    monkeypatch.setenv("PATHX_TEST_SCALE", "3")
    model = load_model(**source.given)
    run = explain_files(model, ["photos"], "out", settings=SETTINGS)
    next(run)
    run.close()
    again = {
        result.file: result.document["target"] for result in explain_files(model, ["photos"], "out", settings=SETTINGS)
    }
    fresh = {
        result.file: result.document["target"] for result in explain_files(model, ["photos"], "new", settings=SETTINGS)
    }
    assert again == fresh
