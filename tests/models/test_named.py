"""The bundled network, and torchvision's models by name: nearly right names, weights by name or file, downloads."""

from __future__ import annotations

import hashlib
import inspect
import subprocess
import sys
import urllib.error
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from support.attacks import Trap
from support.command_line import network, picture, process, scripted
from support.refusal import refusal
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.models.load import load_model
from pathx.models.named import WEIGHTS, SqueezeNet
from pathx.models.preprocessing import Preprocessing
from pathx.models.torchvision import torchvision

IMAGE = torch.rand(2, 3, 96, 128, generator=torch.Generator().manual_seed(0))


# The bundled network


def test_the_bundled_network_is_torchvisions() -> None:
    theirs, loaded = torchvision.models.squeezenet1_1(weights=None).eval(), load_model()
    theirs.load_state_dict(load_file(WEIGHTS))
    assert [(name, type(module).__name__) for name, module in SqueezeNet().named_modules()] == [
        (name, type(module).__name__) for name, module in theirs.named_modules()
    ]
    assert_close(loaded.module(IMAGE), theirs(IMAGE))
    weights = torchvision.models.SqueezeNet1_1_Weights.IMAGENET1K_V1
    assert (loaded.name, loaded.weights) == ("squeezenet1_1", "bundled")
    assert loaded.labels == tuple(weights.meta["categories"])
    assert loaded.preprocessing == Preprocessing.of_preset(weights.transforms())
    assert not any(part.training for part in loaded.module.modules())


def test_the_bundled_network_is_right(shared_data: Path) -> None:
    loaded = load_model()
    assert loaded.sha256 == hashlib.sha256((shared_data / "models/squeezenet1_1.safetensors").read_bytes()).hexdigest()
    for name, label in {"goldfish": "goldfish", "castle": "castle", "red_fox": "dingo"}.items():
        (file,) = (shared_data / "imagenet").glob(f"*_{name}.JPEG")
        with Image.open(file) as photo:
            logits = loaded.module(loaded.preprocessing(photo)[None])
        assert loaded.labels[int(logits.argmax())] == label


@pytest.mark.slow
@pytest.mark.skipif(
    "from torch._dynamo import" in inspect.getsource(torch.vmap),
    reason="torch.vmap of this release imports the compiler",
)
def test_a_first_command_imports_no_more_than_it_needs(here: Path) -> None:
    scripted(network(), "model.pt")
    heavy = ["torchvision", "torch._dynamo", "torch._inductor", "sympy", "matplotlib", "captum", "timm", "transformers"]
    script = (
        "import sys; from pathx.cli import run\n"
        "for options in ([], ['--model', 'model.pt']):\n"
        f"    try: run(['explain', {picture()!r}, '--quiet', '--no-pictures', *options])\n"
        f"    except SystemExit as ended: print(ended.code or 0, [name for name in {heavy} if name in sys.modules])"
    )
    done = process("-c", script)
    assert [line for line in done.out.splitlines() if line.endswith("]")] == ["0 []", "0 []"], done.err


# Names


def test_names_are_forgiving_and_near_misses_are_suggested() -> None:
    assert load_model("SqueezeNet1-1").name == "squeezenet1_1"
    assert refusal("resnet19").startswith("there is no model called 'resnet19': did you mean resnet1")
    assert refusal("xyz") == "there is no model called 'xyz': `pathx models` lists the names, or give a file"
    for name, kind in [("fcn_resnet50", "segmentation"), ("ssd300_vgg16", "detection"), ("raft_small", "optical flow")]:
        message = f"{name} is one of torchvision's {kind} models, and pathx explains classifiers of single images: wrap it in a"
        assert refusal(name).startswith(message)
    quantised = "quantized_resnet18 is quantised: explain resnet18, the network it was made from"
    assert refusal("quantized_resnet18") == quantised
    assert refusal("resnet50", weights="V3") == (
        "resnet50 has no weights called 'V3', nor is that a file: give one of IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, "
        "none, or a state dict (.safetensors or .pth)"
    )


def test_untrained_weights_are_reproducible_and_leave_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = (load_model("shufflenet_v2_x0_5", weights=given) for given in ("none", " None"))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.weights == "none" and first.sha256 == second.sha256
    assert first.labels[1] == "goldfish"


def test_options_change_torchvisions_preprocessing() -> None:
    theirs = load_model().preprocessing
    assert load_model(input_size=[3, 224, 224]).preprocessing == theirs
    ours = load_model(input_size=[3, 96, 160], mean=0.5).preprocessing
    assert (ours.input_size, ours.mean, ours.std, ours.resize) == ((3, 96, 160), (0.5, 0.5, 0.5), theirs.std, None)


# Weights from files


@cache
def checkpoint(name: str, **settings: Any) -> tuple[nn.Module, dict[str, Tensor]]:
    """A torchvision model with weights that no initialisation would give, and its state dict."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module: nn.Module = torchvision.models.get_model(name, weights=None, **settings).eval()
        with torch.no_grad():
            for value in module.state_dict().values():
                if value.is_floating_point():
                    value.uniform_(0.01, 0.02)
    return module, module.state_dict()


@pytest.mark.parametrize("form", ["safetensors", "legacy", "half"])
def test_local_state_dicts(tmp_path: Path, form: str) -> None:
    module, state = checkpoint("shufflenet_v2_x0_5", num_classes=7)
    file = tmp_path / "weights.bin"
    if form == "safetensors":
        save_file(state, file)
    elif form == "half":
        torch.save({key: value.half() if value.is_floating_point() else value for key, value in state.items()}, file)
    else:
        torch.save(state, file, _use_new_zipfile_serialization=False)
    loaded = load_model("shufflenet_v2_x0_5", weights=file)
    assert_close(loaded.module(IMAGE), module(IMAGE), rtol=1e-2 if form == "half" else 0, atol=0)
    assert loaded.weights == "weights.bin"
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert loaded.labels == tuple(f"class {index}" for index in range(7))
    assert loaded.preprocessing.resize == 256
    assert {value.dtype for value in loaded.module.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("googlenet", {"init_weights": False, "aux_logits": True}),
        pytest.param("inception_v3", {"init_weights": False, "aux_logits": True}, marks=pytest.mark.slow),
        ("mnasnet0_5", {}),
        pytest.param("regnet_x_400mf", {}, marks=pytest.mark.slow),
    ],
)
def test_architectures_with_habits(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    extra = {"transform_input": True} if "aux_logits" in settings else {}
    module, state = checkpoint(name, num_classes=4, **settings, **extra)
    save_file(state, tmp_path / "weights")
    loaded = load_model(name, weights=tmp_path / "weights", labels=["a", "b", "c", "d"])
    assert_close(loaded.module(IMAGE), module(IMAGE))
    assert loaded.labels == ("a", "b", "c", "d")


def test_one_logit_has_two_classes(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    save_file(checkpoint("squeezenet1_0", num_classes=1)[1], file)
    assert load_model("squeezenet1_0", weights=file).labels == ("negative", "positive")
    assert load_model("squeezenet1_0", weights=file, labels=["no", "yes"]).labels == ("no", "yes")
    message = "3 labels were given, but squeezenet1_0 has 2 classes: give one label per class"
    assert refusal("squeezenet1_0", weights=file, labels=["a", "b", "c"]) == message


def test_weights_that_do_not_fit_name_the_first_keys(tmp_path: Path) -> None:
    state = dict(load_file(WEIGHTS))
    del state["features.0.bias"], state["features.3.squeeze.bias"]
    state |= {f"extra.{index}": torch.zeros(1) for index in range(5)}
    file = tmp_path / "weights"
    save_file(state, file)
    assert refusal("squeezenet1_1", weights=file) == (
        f"the weights in {file} do not fit squeezenet1_1 (missing features.0.bias, features.3.squeeze.bias; "
        "unexpected extra.0, extra.1, extra.2 and 2 more): give the network that they are of with `model`"
    )
    state["features.0.weight"] = torch.zeros(64, 1, 3, 3)
    save_file(state, file)
    shapes = "; of another shape features.0.weight 64x1x3x3 instead of 64x3x3x3"
    assert "extra.2 and 2 more" + shapes in refusal("squeezenet1_1", weights=file)
    torch.save([1, 2], file)
    assert refusal("resnet18", weights=file).startswith(f"{file} holds no state dict: ")


def test_weights_of_a_file_are_prepared_for_as_it_says_or_else_that_is_said(tmp_path: Path) -> None:
    """mobilenet_v2's two sets of weights take images resized to 256 and to 232."""
    first, second = torchvision.models.MobileNet_V2_Weights
    state = load_model("mobilenet_v2", weights="none").module.state_dict()
    unnamed = tmp_path / "mobile.pth"
    original = tmp_path / first.url.rpartition("/")[2]
    for file in (unnamed, original):
        torch.save(state, file)
    guessed = load_model("mobilenet_v2", weights=unnamed)
    assert (guessed.preprocessing.resize, guessed.origin["preprocessing"]) == (232, second.name)
    assert guessed.notes == (
        "images are prepared as for IMAGENET1K_V2 (resized to 232, cropped to 224), since mobile.pth does not say; "
        f"for other weights: `weights` IMAGENET1K_V1={unnamed}",
    )
    told = load_model("mobilenet_v2", weights=f"IMAGENET1K_V1={unnamed}")
    recognised = load_model("mobilenet_v2", weights=original)
    for loaded in (told, recognised):
        assert (loaded.preprocessing.resize, loaded.origin["preprocessing"], loaded.notes) == (256, first.name, ())
    assert told.weights == "mobile.pth" and told.sha256 == guessed.sha256
    assert load_model("mobilenet_v2", weights=unnamed, input_size=(3, 64, 64)).notes == ()
    assert "nor is that a file" in refusal("mobilenet_v2", weights="IMAGENET1K_V1=nowhere.pth")


@pytest.mark.slow
def test_a_transformer_is_built_for_the_size_of_its_weights(tmp_path: Path) -> None:
    available = torchvision.models.get_model_weights("vit_b_16")
    save_file(checkpoint("vit_b_16", image_size=384)[1], tmp_path / "weights")
    loaded = load_model("vit_b_16", weights=f"{available.IMAGENET1K_SWAG_E2E_V1.name}={tmp_path / 'weights'}")
    assert loaded.preprocessing.input_size == (3, 384, 384)
    assert loaded.module(torch.zeros(1, 3, 384, 384)).shape == (1, 1000)


# Downloads


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))

    def refuse(*arguments: Any, **options: Any) -> None:
        raise urllib.error.URLError("Name or service not known")

    monkeypatch.setattr(torch.hub, "download_url_to_file", refuse)
    return tmp_path / "hub" / "checkpoints"


@pytest.mark.parametrize("weights", [None, "DEFAULT", "imagenet1k_v1", "ResNet18_Weights.IMAGENET1K_V1"])
def test_weights_that_cannot_be_downloaded(offline: Path, weights: str | None) -> None:
    assert refusal("resnet18", weights=weights, usage=False) == (
        "the IMAGENET1K_V1 weights of resnet18 could not be downloaded (<urlopen error Name or service not known>): "
        f"put resnet18-f37072fd.pth into {offline}, give `weights` a local state dict or none (untrained), "
        "or use the bundled model squeezenet1_1"
    )


def test_downloaded_weights_come_from_the_cache_and_are_no_programs(offline: Path, tmp_path: Path) -> None:
    offline.mkdir(parents=True)
    module, state = checkpoint("densenet121")
    old = {key.replace("norm1", "norm.1").replace("conv2", "conv.2"): value for key, value in state.items()}
    torch.save(old, offline / "densenet121-a639ec97.pth")
    loaded = load_model("densenet121")
    assert loaded.weights == "IMAGENET1K_V1"
    assert_close(loaded.module(IMAGE), module(IMAGE))
    torch.save({"x": Trap(tmp_path / "executed")}, offline / "densenet121-a639ec97.pth")
    refusal("densenet121", usage=False)
    assert not (tmp_path / "executed").exists()


# Importing torchvision


@pytest.mark.slow
def test_a_fresh_process_gets_the_models_after_a_failed_import() -> None:
    script = """
try:
    import torchvision  # the failure of a user's own import must not spoil ours
except RuntimeError:
    pass
from pathx.models.torchvision import torchvision
print("resnet18" in torchvision.models.list_models())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True\n", "")
