"""ONNX files: real exports of torch's exporters, of operators one by one, and of networks as a whole."""

from __future__ import annotations

import contextlib
import io
import json
import random
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import Pathx, picture
from support.small import seeded
from torch import Tensor, nn

import pathx
from pathx.errors import PathxError
from pathx.models.load import load_model
from pathx.models.torchvision import torchvision

onnx = pytest.importorskip("onnx")

OPSET = [onnx.helper.make_opsetid("", 18)]
OPTIONS: dict[str, Any] = {"input_size": (3, 16, 16), "mean": 0.5, "std": 0.5}


def exported(module: nn.Module, file: Path, size: tuple[int, ...] = (3, 16, 16), *, current: bool) -> Path:
    """By torch's current exporter (needs onnxscript), or by its older one."""
    if current:
        pytest.importorskip("onnxscript")
    image = torch.zeros(2, *size)
    how: dict[str, Any] = {"dynamo": True, "external_data": False} if current else {"dynamo": False}
    batch: dict[str, Any] = {"dynamic_shapes": ({0: "batch"},)} if current else {"dynamic_axes": {"x": {0: "batch"}}}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(module.eval(), (image,), str(file), input_names=["x"], **how, **batch)
    return file


class Applied(nn.Module):
    """Convolutions around some other operation."""

    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.between = nn.Conv2d(3, 8, 3, padding=1), between
        self.last = nn.LazyLinear(4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.between(self.first(x).relu()).flatten(1))  # type: ignore[no-any-return]


class SelfAttention(nn.Module):
    """Of 8 tokens with 256 features."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.MultiheadAttention(256, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        attended: Tensor = self.part(x, x, x, need_weights=False)[0]
        return x + attended


F = nn.functional
OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "PReLU": nn.PReLU(8),
    "GELU": F.gelu,
    "GLU": lambda x: F.glu(x - 0.3, 1),
    "SwiGLU": lambda x: F.avg_pool2d(x[:, :4], 3, 1, 1) * F.silu(x[:, 4:]),
    "squeeze and excite": lambda x: x * F.hardsigmoid(x.mean((2, 3), keepdim=True) - 0.3),
    "layer norm of channels": lambda x: F.layer_norm(x.permute(0, 2, 3, 1), (8,)).permute(0, 3, 1, 2),
    "L2 norm": lambda x: F.normalize(x, dim=1),
    "global response norm": lambda x: (
        x * (x.norm(dim=(2, 3), keepdim=True) / x.norm(dim=(2, 3), keepdim=True).mean(1, True))
    ),
    "attention": nn.Sequential(nn.Flatten(2), SelfAttention()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations(tmp_path: Path, name: str) -> None:
    """A network that went through a file has the units of the network itself. (`test_onnx_operators.py` tries every operator.)"""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = Applied(OPERATIONS[name])
        module(torch.zeros(1, 3, 16, 16))
    loaded = load_model(exported(module, tmp_path / "net.onnx", current=False), **OPTIONS)
    images = torch.randn(3, 3, 16, 16, generator=seeded(1))
    torch.testing.assert_close(loaded.module(images), module(images), rtol=1e-4, atol=1e-5)
    for given in (images[:1], images):
        assert_the_same_units(loaded.module, module, given, depth="all")


def assert_the_same_units(ours: nn.Module, theirs: nn.Module, images: Tensor, **settings: Any) -> None:
    found, wanted = (pathx.explain(one.double(), images.double(), width=3, **settings) for one in (ours, theirs))
    for one, other in zip(found, wanted, strict=True):
        assert one.target == other.target and one.hidden_layers == other.hidden_layers
        mine, others = (
            [[(unit.index, unit.receptive_field) for unit in layer.units] for layer in made.path]
            for made in (one, other)
        )
        assert mine == others


LARGER = ("efficientnet_b0", "googlenet", "swin_t", "vit_b_16")


@pytest.mark.parametrize("current", [True, False])
@pytest.mark.parametrize("name", ["squeezenet1_1", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGER)])
def test_networks(tmp_path: Path, name: str, current: bool) -> None:
    settings: dict[str, Any] = {
        "googlenet": {"aux_logits": False, "init_weights": False},
        "vit_b_16": {"image_size": 64},
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = torchvision.models.get_model(name, weights=None, **settings.get(name, {}))
    file = exported(module, tmp_path / "net.onnx", (3, 64, 64), current=current)
    loaded = load_model(file, mean=0.5, std=0.5)
    assert loaded.preprocessing.input_size == (3, 64, 64)  # which the file says
    image = torch.randn(1, 3, 64, 64, generator=seeded(2))
    logits = module(image)
    torch.testing.assert_close(loaded.module(image), logits, rtol=1e-4, atol=1e-4 * float(logits.abs().max()))
    (ours,), (theirs,) = (pathx.explain(network, image, depth=2, width=3) for network in (loaded.module, module))
    assert ours.hidden_layers == theirs.hidden_layers
    assert [[unit.index for unit in layer.units] for layer in ours.path] == [
        [unit.index for unit in layer.units] for layer in theirs.path
    ]


def test_the_command_line(here: Path, pathx_: Pathx) -> None:
    picture()
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    exported(module, Path("net.bin"), (3, 8, 8), current=False)  # told by its content
    Path("net.json").write_text(json.dumps({"mean": 0, "std": 1, "labels": ["yes", "no"]}))
    done = pathx_("explain", "photo.png", "--model", "net.bin", "--depth", "1", "--no-pictures")
    assert done.status == 0, done.err
    assert pathx_("models", "net.bin").out.splitlines()[5].split()[3] == "4x6x6"
    assert "is a whole model, not a state dict" in pathx_("explain", "photo.png", "--weights", "net.bin").err


def test_what_cannot_be_converted_is_said_by_operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = onnx.helper.make_node("LSTM", ["x"], ["y"])
    other = onnx.helper.make_node("Fused", ["y"], ["z"], domain="com.microsoft")
    values = [onnx.helper.make_tensor_value_info(name, 1, [1, 3, 8, 8]) for name in "xz"]
    file = tmp_path / "net.onnx"
    graph = onnx.helper.make_graph([node, other], "g", values[:1], values[1:])
    onnx.save(onnx.helper.make_model(graph, opset_imports=OPSET), str(file))
    with pytest.raises(
        PathxError, match=r"has operators that pathx cannot convert \(LSTM, com\.microsoft\.Fused\): export the"
    ):
        load_model(file, **OPTIONS)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(PathxError, match=r"^this needs onnx: pip install 'pathx-relu\[onnx\]'$"):
        load_model(file, **OPTIONS)


def small(relu: str = "r", **about: Any) -> bytes:
    """A network that no exporter of a framework wrote."""
    make, weights = onnx.helper.make_node, torch.randn(4, 3, 3, 3, generator=seeded(0)).numpy()
    nodes = [make("Conv", ["x", "w"], ["c"]), make("Relu", ["c"], [relu], name=relu), make("Flatten", [relu], ["f"])]
    head = torch.randn(144, 3, generator=seeded(1)).numpy()
    constants = [onnx.numpy_helper.from_array(value, name) for name, value in (("w", weights), ("h", head))]
    values = [
        onnx.helper.make_tensor_value_info(name, 1, shape) for name, shape in (("x", [1, 3, 8, 8]), ("y", [1, 3]))
    ]
    graph = onnx.helper.make_graph([*nodes, make("MatMul", ["f", "h"], ["y"])], "g", values[:1], values[1:], constants)
    return bytes(onnx.helper.make_model(graph, opset_imports=OPSET, **about).SerializeToString())


@pytest.mark.parametrize("about", [{}, {"producer_name": "x" * 200}])
def test_a_file_that_names_no_framework(tmp_path: Path, about: dict[str, Any]) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(small(**about))
    assert load_model(file, mean=0.5, std=0.5).module(torch.zeros(2, 3, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("name", ["forward", "training", "a.b", "/a/b", "__class__"])
def test_any_name_of_a_node(tmp_path: Path, name: str) -> None:
    file = tmp_path / "net.onnx"
    file.write_bytes(small(name))
    loaded = load_model(file, mean=0.5, std=0.5)
    (found,) = pathx.explain(loaded.module, torch.randn(1, 3, 8, 8, generator=seeded(3)), depth=1)
    assert found.path[0].units


@pytest.mark.parametrize("side", [-8, 10**8])
@pytest.mark.parametrize("place", [0, 2])
def test_an_input_of_any_size_takes_no_memory(tmp_path: Path, side: int, place: int) -> None:
    file, model = tmp_path / "net.onnx", onnx.load_from_string(small())
    model.graph.input[0].type.tensor_type.shape.dim[place].dim_value = side
    file.write_bytes(model.SerializeToString())
    if (side, place) == (-8, 0):  # as if the file did not say it
        assert load_model(file, mean=0.5, std=0.5)
        return
    with pytest.raises(PathxError, match="more than 1 GiB" if side > 0 else "does not say its input_size"):
        load_model(file, mean=0.5, std=0.5)


@pytest.mark.parametrize("order", [(3, 2, 1, 0), (1, 2, 3), (0, 1, 2)])
def test_nodes_that_read_what_comes_later_or_never_are_damage(tmp_path: Path, order: tuple[int, ...]) -> None:
    file, model = tmp_path / "net.onnx", onnx.load_from_string(small())
    nodes = [*model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes[place] for place in order)
    file.write_bytes(model.SerializeToString())
    with pytest.raises(
        PathxError, match=r"is damaged \(.+ reads '.', which nothing before it gives\): export it again$"
    ):
        load_model(file, mean=0.5, std=0.5)


def test_damaged_files_are_refused_in_one_line(tmp_path: Path) -> None:
    file, chance, whole = tmp_path / "net.onnx", random.Random(0), small()
    for number in range(60):
        data = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            data[chance.randrange(len(data) // 2 if chance.random() < 0.5 else 200)] = chance.randrange(256)
        cut_short = number % 5 == 0
        file.write_bytes(whole[: 40 + number * (len(whole) - 41) // 60] if cut_short else data)
        try:
            load_model(file, input_size=(3, 8, 8), mean=0.5, std=0.5)
            assert not cut_short
        except PathxError as error:
            assert error.usage and "\n" not in str(error)  # noqa: PT017
