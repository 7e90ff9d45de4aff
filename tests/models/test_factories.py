"""`--model file.py:build` and `package.module:build`: the user's own code, with the checkpoints that trainers write."""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.command_line import Pathx, check_document, config, picture, process
from support.refusal import refusal
from torch import nn

from pathx.models.load import load_model

CODE = """
import torch
from torch import nn
print("importing")

class Net(nn.Module):
    def __init__(self, classes=3, hidden=4):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, hidden, 3), nn.BatchNorm2d(hidden), nn.ReLU())
        self.head = nn.Linear(hidden * 36, classes)
    def forward(self, x):
        return self.head(self.features(x).flatten(1))

def build(classes=3):
    print("building")
    import helper
    return Net(classes)

class Holder:
    made = build
    ready = Net()

def needs(size, depth): return Net()
def nothing(): return 3
def broken(): raise ValueError("no such\\ndataset")
def leaves(): raise SystemExit(3)
number = 7
"""
SIDECAR = {"input_size": [3, 8, 8], "mean": 0.5, "std": 0.25, "labels": ["cat", "dog", "fox"]}


@pytest.fixture(autouse=True)
def code(here: Path) -> None:
    Path("nets").mkdir()
    Path("nets/net.py").write_text(CODE)
    Path("nets/helper.py").write_text("")
    Path("nets/pathx.json").write_text(json.dumps(SIDECAR))


def network(classes: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(9)
        module: nn.Module = load_model("nets/net.py:Net", arguments={"classes": classes}, labels=["x"] * classes).module
        for value in module.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.rand(value.shape) + 0.1)
        return module


@pytest.mark.parametrize("name", ["Net", "build", "Holder.made", "Holder.ready"])
def test_functions_classes_and_modules(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    loaded = load_model(f"nets/net.py:{name}")
    assert loaded.labels == ("cat", "dog", "fox")
    assert loaded.preprocessing.std == (0.25, 0.25, 0.25)
    assert loaded.module(torch.zeros(2, 3, 8, 8)).shape == (2, 3)
    assert not loaded.module.training
    assert (loaded.name, loaded.weights) == (f"net.py:{name}", "as built")
    assert loaded.origin["code_sha256"] == hashlib.sha256(CODE.encode()).hexdigest()
    assert capsys.readouterr().out == ""


def test_by_the_name_of_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("nets/__init__.py").write_text("")
    Path("nets/other.py").write_text("from nets.net import Net\ndef make(): return Net(2)\n")
    loaded = load_model("nets.other:make", labels=["a", "b"])
    assert loaded.module(torch.zeros(1, 3, 8, 8)).shape == (1, 2)
    assert loaded.name == "nets.other:make"


def shapes(state: dict[str, Any]) -> dict[str, Any]:
    """A state dict in the shapes that trainers write."""

    def with_prefix(prefix: str) -> dict[str, Any]:
        return {prefix + key: value for key, value in state.items()}

    return {
        "plain": state,
        "state_dict": {"epoch": 3, "state_dict": state, "optimizer": {"state": {}, "param_groups": [{"lr": 0.1}]}},
        "model": {"model": state, "args": argparse.Namespace(lr=0.1, data="x")},
        "ema": {"ema": state, "updates": 9},
        "parallel": {"model_state_dict": with_prefix("module.")},
        "compiled": with_prefix("_orig_mod."),
        "both": {"state_dict": with_prefix("module._orig_mod.")},
        "lightning": {
            "state_dict": with_prefix("net.") | {"criterion.weight": torch.ones(3)},
            "pytorch-lightning_version": "2",
        },
        "lightning-model": {"state_dict": with_prefix("model.") | {"metric.count": torch.zeros(1)}, "epoch": 1},
    }


@pytest.mark.parametrize("shape", shapes({}))
def test_checkpoints_of_trainers(shape: str) -> None:
    module = network()
    torch.save(shapes(dict(module.state_dict()))[shape], "last.ckpt")
    loaded = load_model("nets/net.py:build", weights="last.ckpt")
    image = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(loaded.module(image), module(image))
    assert loaded.weights == "last.ckpt"
    assert loaded.sha256 == hashlib.sha256(Path("last.ckpt").read_bytes()).hexdigest()


def test_what_is_wrong_is_said() -> None:
    where = "nets/net.py"
    assert refusal("nets/no.py:build") == "there is no file nets/no.py: check the path"
    assert refusal("no_such.module:build").startswith("there is no Python module no_such.module: ")
    assert refusal(f"{where}:bild") == f"{where} has no bild: it has Net, build, Holder, needs, nothing, broken, leaves"
    assert refusal(f"{where}:needs").endswith(
        """'size' and 'depth'): give its arguments as `arguments` '{"name": value}'"""
    )
    assert refusal(f"{where}:build", arguments={"clases": 3}).startswith(f"{where}:build cannot be called (")
    assert refusal(f"{where}:nothing") == f"{where}:nothing gave an int, not a torch.nn.Module: return the network"
    assert refusal(f"{where}:number").startswith(f"{where}:number is an int: give a function or a class")
    assert refusal(f"{where}:broken").startswith(f"{where}:broken failed with ValueError: no such")
    assert refusal(f"{where}:leaves").startswith(f"{where}:leaves failed with SystemExit: 3")
    assert refusal("squeezenet1_1", arguments={"x": 1}) == "squeezenet1_1 takes no arguments: leave `arguments` out"
    save_file({"conv.weight": torch.zeros(3)}, "other.safetensors")
    assert "do not fit nets/net.py:build (missing features.0.weight, features.0.bias" in refusal(
        f"{where}:build", weights="other.safetensors"
    )
    Path("nets/bad.py").write_text("import no_such_package\n")
    assert refusal("nets/bad.py:x") == "nets/bad.py needs no_such_package, which is not installed: install it"
    Path("nets/pathx.json").unlink()
    assert refusal(f"{where}:build").startswith(f"{where}:build does not say its input_size, mean, std: ")


def test_json_stays_clean(pathx_: Pathx) -> None:
    picture()
    save_file(network(2).state_dict(), "two.safetensors")
    options = (*config(model_args='{"classes": 2}'), "--weights", "two.safetensors", "--depth", "1", "--format", "json")
    Path("labels.txt").write_text("yes\nno\n")
    done = pathx_("explain", "photo.png", "--model", "nets/net.py:build", *options, "--labels", "labels.txt")
    assert done.status == 0, done.err
    (document,) = done.documents
    check_document(document)
    assert document["model"]["origin"]["source"] == "python"
    assert "importing" in done.err and "building" in done.err
    assert " features.2 " in pathx_("models", "nets/net.py:build", "--input-size", "3,8,8").out
    for text, problem in (("{", "is not valid JSON"), ("[1]", "takes an object"), ('{"a": NaN}', "is not valid JSON")):
        done = pathx_("explain", "photo.png", "--model", "nets/net.py:build", *config(model_args=text))
        assert (done.status, done.err.count("\n")) == (2, 1)
        assert f"--model-args {problem}" in done.err


CHATTY = """
import atexit, os, threading, weakref
import torch
from torch import nn

print("said by the module")
os.system("echo said by a program")
os.write(1, b"said past Python\\n")
atexit.register(print, "said at the exit")

class Talkative(nn.Sequential):
    def forward(self, x):
        print("said by forward")
        return super().forward(x)
    def __del__(self):
        print("said by __del__")

def build():
    net = Talkative(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))
    net.register_forward_hook(lambda module, given, made: print("said by a hook"))
    net.register_forward_pre_hook(lambda module, given: threading.Thread(target=print, args=["said by a thread"]).start())
    weakref.finalize(net, print, "said when it went")
    return net
"""


def test_everything_that_the_code_prints_goes_to_stderr() -> None:
    """Also by other programs, past Python, by hooks and threads, and when the network or the process ends."""
    Path("nets/chatty.py").write_text(CHATTY)
    model = ("--model", "nets/chatty.py:build")
    done = process("-m", "pathx", "explain", picture(), *model, "--depth", "1", "--format", "json", "--no-pictures")
    assert done.status == 0, done.err
    assert [document["image"]["file"] for document in done.documents] == ["photo.png"]
    for said in (
        *("by the module", "by a program", "past Python", "by forward", "by a hook", "by a thread"),
        *("by __del__", "when it went", "at the exit"),
    ):
        assert f"said {said}" in done.err, said


@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ("sys.exit(7)", 1, "the model's own code ended the run (sys.exit with 7): take that out of its forward"),
        ("raise KeyError('embedding')", 2, "KeyError: 'embedding'; it is the model's own code that fails"),
    ],
)
def test_a_forward_that_fails_is_told_apart(fault: str, status: int, message: str, pathx_: Pathx) -> None:
    body = f"import sys\nfrom torch import nn\nclass Net(nn.Module):\n    def forward(self, x):\n        {fault}\n"
    Path("nets/failing.py").write_text(body)
    done = pathx_("explain", picture(), "--model", "nets/failing.py:Net")
    assert (done.status, done.out, done.err.count("\n")) == (status, "", 1) and message in done.err


@pytest.mark.parametrize(
    ("build", "message"),
    [
        ("def build():\n    with torch.device('meta'): return Net()", "holds no numbers (it is on the meta device)"),
        (
            "def build(): return nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))",
            "has no shape yet",
        ),
    ],
)
def test_networks_without_weights_are_refused_in_one_line(build: str, message: str, pathx_: Pathx) -> None:
    Path("nets/empty.py").write_text(f"import torch\nfrom net import Net\nfrom torch import nn\n{build}\n")
    done = pathx_("explain", picture(), "--model", "nets/empty.py:build")
    assert (done.status, done.out) == (2, "") and message in done.err.splitlines()[-1]
    assert not Path("pathx-out").exists() or not any(Path("pathx-out").rglob("path.json"))


def test_classes_of_ones_own_may_give_nothing_and_keep_what_they_like() -> None:
    """`eval` returns nothing; quantised modules keep what is no tensor beside their weights."""
    Path("nets/odd.py").write_text(
        "from net import Net\nclass Odd(Net):\n    def eval(self): self.train(False)\n"
        "    def get_extra_state(self): return (3, 'epochs')\n"
    )
    loaded = load_model("nets/odd.py:Odd", weights="none")
    assert not loaded.module.training and loaded.module.state_dict()["_extra_state"] == (3, "epochs")


def test_untrained_is_what_the_code_builds_and_the_same_every_time() -> None:
    one, other = (load_model("nets/net.py:build", weights="none") for _ in range(2))
    assert one.weights == "none" and one.sha256 == other.sha256
    assert load_model("nets/net.py:build").weights == "as built"


def test_every_folder_has_its_own_modules() -> None:
    """Also where modules are called the same, one imports another, and folders take turns."""
    for folder, channels in (("one", 4), ("two", 5)):
        Path(folder, "parts").mkdir(parents=True)
        Path(folder, "parts", "sizes.py").write_text(f"CHANNELS = {channels}")
        Path(folder, "layers.py").write_text("from parts.sizes import CHANNELS")
        Path(folder, "net.py").write_text(
            "from layers import CHANNELS\nfrom torch import nn\n"
            "class Net(nn.Sequential): ...\n"
            "def build(): return Net(nn.Conv2d(3, CHANNELS, 3), nn.ReLU(), nn.Flatten(), nn.Linear(CHANNELS * 36, 3))"
        )
        Path(folder, "pathx.json").write_text(json.dumps(SIDECAR))
    for folder, channels in (("one", 4), ("two", 5), ("one", 4)):
        module = load_model(f"{folder}/net.py:build").module
        assert module[0].out_channels == channels
        assert pickle.loads(pickle.dumps(module[3])).in_features == channels * 36


@pytest.mark.parametrize("names", [("student", "teacher"), ("net", "ema", "target")])
def test_a_checkpoint_that_holds_the_network_twice_is_asked_about(names: tuple[str, ...]) -> None:
    state = {f"{name}.{key}": value for name in names for key, value in network().state_dict().items()}
    torch.save({**state, "centre": torch.zeros(1)}, "both.pth")
    assert " and ".join(f"{name}.*" for name in names) in refusal("nets/net.py:build", weights="both.pth")
    one = {key: value for key, value in state.items() if key.startswith(names[0])}
    torch.save({**one, "x": torch.zeros(1)}, "one.pth")
    load_model("nets/net.py:build", weights="one.pth")
