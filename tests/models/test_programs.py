"""TorchScript programs that would do more than compute are refused before any of them runs; all others are let in."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from support.attacks import packed, records_of
from support.command_line import Pathx, network, picture
from torch import Tensor, nn

from pathx.errors import PathxError
from pathx.models.files import load_network
from pathx.models.load import load_model
from pathx.models.torchvision import torchvision

pytestmark = pytest.mark.usefixtures("here")
SIZE = {"input_size": (3, 8, 8), "mean": 0.5, "std": 0.5}


class Saves(nn.Module):
    """Writes a file whenever it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        torch.save(x, "mark")
        return self.layer(torch.relu(x).mean((2, 3)))


class SavesWhenLoaded(nn.Module):
    @torch.jit.export
    def __getstate__(self) -> tuple[Tensor, bool]:
        return torch.zeros(1), self.training

    @torch.jit.export
    def __setstate__(self, state: tuple[Tensor, bool]) -> None:
        torch.save(state[0], "mark")
        self.training = state[1]

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x).mean((2, 3))


class MapsAFile(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        shared = torch.from_file("mark", True, 4)
        return torch.relu(x).mean((2, 3)) + shared.fill_(1.0).sum()


def saved(module: nn.Module) -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(module.eval()), buffer)
    return buffer.getvalue()


def edited(old: str, new: str, module: nn.Module | None = None) -> bytes:
    """The first of these networks, or another, with another spelling of a part of its program."""
    records = records_of(saved(module or Saves()))
    (file,) = (name for name, content in records.items() if name.endswith(".py") and old.encode() in content)
    return packed({**records, file: records[file].replace(old.encode(), new.encode())})


CALL = "torch.save("
SPELLINGS = {
    "by operator": "ops.aten.save(",
    "spaces": "torch . save (",
    "two lines": "torch.\\\n    save(",
    "brackets": "(torch).save(",
    "another name for torch": "t = torch\n    t.save(",
    "another name for it": "t = torch.save\n    t(",
    "by its name": 'getattr(torch, "save")(',
    "by its name, with escapes": 'getattr(torch, "\\163ave")(',
    "by its name, in the quotes of another": "getattr(torch, 's\\x61ve')(",
    "by a name in a name": 'getattr(getattr(torch, "ops").aten, "\\163ave")(',
}


OPENED = 'torch.from_file("mark", True, 4)'
ARGUMENT, CLASS = "    x: Tensor", "class GivesPair(Module):\n"
WHILE_LOADED = {
    "as a default": (ARGUMENT, f"{ARGUMENT}, y: Tensor={OPENED}"),
    "as a default behind a text": (ARGUMENT, f'{ARGUMENT}, y: str=")", z: Tensor={OPENED}'),
    "as a default behind a tuple": (ARGUMENT, f"{ARGUMENT}, y: Tuple[int, int]=(1, 2), z: Tensor={OPENED}"),
    "as a default in a tuple": (ARGUMENT, f"{ARGUMENT}, y: Tuple[int, Tensor]=(1, {OPENED})"),
    "as a default behind a device": (ARGUMENT, f'{ARGUMENT}, y: Device=torch.device("cpu"), z: Tensor={OPENED}'),
    "as a default in brackets": (ARGUMENT, f"{ARGUMENT}, y: List[Tensor]=[{OPENED}]"),
    "as a constant": (CLASS, f"{CLASS}  y : Final[Tensor] = {OPENED}\n"),
    "as a constant in brackets": (CLASS, f"{CLASS}  y : Final[List[Tensor]] = [{OPENED}]\n"),
    "as a constant with spaces": (CLASS, f"{CLASS}  y : Final [ Tensor ] = {OPENED}\n"),
    "as a constant in two lines": (CLASS, f"{CLASS}  y : Final[List[Tensor]] = [\n  {OPENED}]\n"),
    "as an index of a constant": (CLASS, f"{CLASS}  y : Final[Tensor] = [{OPENED[:-1]},\n)][0]\n"),
    "as a default of a tuple": (
        "second : Tensor",
        f"second : {OPENED} = Tensor",
    ),  # torch takes them the wrong way round
    "as a default of a tuple in two lines": ("second : Tensor", f"second : [\n{OPENED}][0] = Tensor"),
}


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


CPU = torch.device("cpu")


class GivesPair(nn.Module):
    def forward(
        self,
        x: Tensor,
        size: tuple[int, int] = (1, 1),
        mode: str = "a-b",
        bias: Tensor | None = None,
        device: torch.device = CPU,
    ) -> Pair:
        return Pair(torch.relu(x).mean((2, 3)), x)


def attacks() -> dict[str, bytes]:
    records = records_of(saved(Saves()))
    upper = {name.replace("code/", "CODE/"): content for name, content in records.items()}
    return {
        "when called": saved(Saves()),
        "when loaded": saved(SavesWhenLoaded()),
        "in a part": saved(nn.Sequential(nn.Identity(), Saves())),
        "a file as memory": saved(MapsAFile()),
        "a folder in capitals": packed(upper, ("code/other.py", b"")),
        **{name: edited(CALL, spelling) for name, spelling in SPELLINGS.items()},
        **{name: edited(*change, GivesPair()) for name, change in WHILE_LOADED.items()},
    }


def test_a_program_that_reaches_for_files_is_not_run(pathx_: Pathx) -> None:
    picture()
    for name, content in attacks().items():
        Path("model.pt").write_bytes(content)
        with pytest.raises(PathxError, match=r"program in model\.pt is not run|cannot be loaded by torch") as caught:
            load_model("model.pt", **SIZE)
        assert caught.value.usage, name
        assert not Path("mark").exists(), name
    Path("model.pt").write_bytes(saved(Saves()))
    done = pathx_(
        "explain", "photo.png", "--model", "model.pt", "--input-size", "3,8,8", "--mean", "0.5", "--std", "0.5"
    )
    assert (done.status, done.err.count("\n")) == (2, 1)
    assert "aten::save" in done.err and "torch.jit.trace" in done.err


def test_the_attacks_are_real() -> None:
    """torch itself, given the same files, writes one, whatever the spelling."""
    wrote = set()
    for name, content in attacks().items():
        with contextlib.suppress(Exception):  # after the deed, or a spelling that torch does not know
            torch.jit.load(io.BytesIO(content))(torch.zeros(2, 3, 8, 8))
        if Path("mark").exists():
            wrote.add(name)
            Path("mark").unlink()
    assert {"when called", "when loaded", "in a part", "by operator", "by its name", "another name for it"} <= wrote
    assert "by its name, with escapes" in wrote
    assert {*WHILE_LOADED} <= wrote


class Named(nn.Module):
    """Parts that no identifier can name, one inside another, and texts with escapes."""

    def __init__(self) -> None:
        super().__init__()
        inner = nn.ModuleDict({"0": nn.ModuleDict({"1": nn.Linear(3, 2)})})
        self.parts = nn.ModuleDict({"save_mean": nn.ReLU(), "7": inner})

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 4:
            raise ValueError("images,\n\tplease")
        return self.parts["7"]["0"]["1"](self.parts["save_mean"](x).mean((2, 3)))


def small_networks() -> Iterator[nn.Module]:
    yield from (network(), Named(), GivesPair())
    yield nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), nn.ReLU(), nn.Flatten())


def large_networks() -> Iterator[nn.Module]:
    yield torchvision.models.VisionTransformer(64, 16, 2, 2, 8, 16, num_classes=3)
    yield torchvision.models.resnet18(num_classes=3)
    yield torchvision.models.densenet121(num_classes=3)
    yield torchvision.models.mobilenet_v2(num_classes=3)
    yield torchvision.models.googlenet(num_classes=3, init_weights=False)


@pytest.mark.parametrize("modules", [small_networks, pytest.param(large_networks, marks=pytest.mark.slow)])
@pytest.mark.parametrize("scripted", [True, False])
def test_a_plain_network_is_let_in(scripted: bool, modules: Callable[[], Iterator[nn.Module]], tmp_path: Path) -> None:
    images = torch.rand(2, 3, 64, 64)
    for module in modules():
        module.eval()
        inputs = images[:, :, :8, :8] if isinstance(module, nn.Sequential | Named) else images
        program = torch.jit.script(module) if scripted else torch.jit.trace(module, inputs, check_trace=False)
        torch.jit.save(program, tmp_path / "model.pt")
        loaded, _ = load_network(tmp_path / "model.pt")
        expected, given = module(inputs), loaded(inputs)
        given = (
            given[0] if isinstance(given, tuple) and isinstance(expected, Tensor) else given
        )  # as scripted GoogLeNet
        torch.testing.assert_close(given, expected)
