from __future__ import annotations

import hashlib
import json
import pickle
import subprocess
import sys
import urllib.error
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.errors import PathxError
from pathx.models import named
from pathx.models.load import load_model
from pathx.models.preprocessing import Preprocessing
from pathx.models.torchvision import torchvision

SIDECAR = {"input_size": [3, 8, 8], "mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3], "labels": ["cat", "dog", "fox"]}
INPUT = torch.linspace(-1, 1, 192).view(1, 3, 8, 8)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(1)
    layers = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(), nn.Flatten(), nn.Linear(144, 3)
    return nn.Sequential(*layers).eval()


def scripted(network: nn.Module, file: Path, extra: dict[str, str]) -> None:
    torch.jit.save(torch.jit.script(network), file, _extra_files=extra)


def traced(network: nn.Module, file: Path, extra: dict[str, str]) -> None:
    program: Any = torch.jit.trace(network, INPUT)  # type: ignore[no-untyped-call]
    torch.jit.save(program, file, _extra_files=extra)


def frozen(network: nn.Module, file: Path, extra: dict[str, str]) -> None:
    torch.jit.save(torch.jit.freeze(torch.jit.script(network)), file, _extra_files=extra)


def exported(network: nn.Module, file: Path, extra: dict[str, str]) -> None:
    with open(file, "wb") as stream:
        torch.export.save(torch.export.export(network, (INPUT,)), stream, extra_files=extra)


Save = Callable[[nn.Module, Path, dict[str, str]], None]
formats = pytest.mark.parametrize("save", [scripted, traced, frozen, exported])


def refusal(*arguments: Any, **options: Any) -> PathxError:
    with pytest.raises(PathxError) as caught:
        load_model(*arguments, **options)
    assert "\n" not in str(caught.value)
    return caught.value


# Files


@formats
@pytest.mark.parametrize("name", ["model.pt", "model.pt2", "model"])
def test_files_are_told_apart_by_content(
    network: nn.Module, tmp_path: Path, save: Save, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / name
    save(network, file, {})
    (tmp_path / "model.json").write_text(json.dumps(SIDECAR))
    loaded = load_model(str(file))
    assert_close(loaded.module(INPUT), network(INPUT))  # freezing folds the batch norm
    assert not any(part.training for part in loaded.module.modules())
    assert (loaded.name, loaded.weights) == (name, name)
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert loaded.labels == ("cat", "dog", "fox")
    assert loaded.preprocessing.input_size == (3, 8, 8)
    assert loaded.preprocessing.mean == (0.5, 0.4, 0.3)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("save", [scripted, exported])
def test_options_win_over_the_sidecar_which_wins_over_the_archive(
    network: nn.Module, tmp_path: Path, save: Save
) -> None:
    file = tmp_path / "model.pt"
    save(network, file, {"pathx.json": json.dumps(SIDECAR)})
    assert load_model(file).labels == ("cat", "dog", "fox")
    (tmp_path / "model.json").write_text('{"labels": {"0": "a", "1": "b", "2": "c"}, "std": 0.25, "note": "mine"}')
    assert load_model(file).labels == ("a", "b", "c")
    (tmp_path / "model.pt.json").write_text('{"resize": 10, "std": [0.25]}')
    loaded = load_model(file, mean=0.75, labels=["x", "y", "z"])
    assert loaded.labels == ("x", "y", "z")
    assert loaded.preprocessing.mean == (0.75, 0.75, 0.75)
    assert loaded.preprocessing.std == (0.25, 0.25, 0.25)
    assert loaded.preprocessing.resize == 10
    assert load_model(file, input_size=[1, 5, 7], mean=[0], std=[1]).preprocessing.input_size == (1, 5, 7)


def test_options_alone_are_enough(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    scripted(network, file, {})
    (tmp_path / "labels.txt").write_text("cat\nred fox\ndog\n")
    options: dict[str, Any] = {"input_size": (3, 8, 8), "mean": (0, 0, 0), "std": (1, 1, 1)}
    assert load_model(file, **options).labels_for(3) == ("class 0", "class 1", "class 2")
    assert load_model(file, **options).labels_for(1) == ("negative", "positive")
    loaded = load_model(file, **options, labels=tmp_path / "labels.txt")
    assert loaded.labels_for(3) == ("cat", "red fox", "dog")
    with pytest.raises(
        PathxError, match=r"^3 labels were given, but model.pt has 5 classes: give one label per class$"
    ):
        loaded.labels_for(5)


def test_a_file_without_a_description_shows_the_sidecar_to_write(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    scripted(network, file, {})
    error = refusal(file, mean=0.5)
    assert error.usage
    assert str(error).startswith(f"{file} does not say its input_size, std: give them as options or write ")
    sidecar, text = str(error).rpartition("write ")[2].split(" such as ")
    Path(sidecar).write_text(text)  # the advice works
    assert load_model(file).preprocessing.input_size == (3, 32, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "{sidecar} is not valid JSON (Expecting property name"),
        ("[]", '{sidecar} must hold an object such as {{"input_size"'),
        ('{"lables": []}', "{sidecar} has the unknown key 'lables': did you mean 'labels'?"),
        ('{"mean": "x"}', "mean in {sidecar} must be a list of numbers such as [0.5, 0.5, 0.5], not 'x'"),
        ('{"input_size": 8}', "input_size in {sidecar} must be a list of numbers such as [3, 32, 32], not 8"),
        ('{"labels": [1]}', "label 0 in {sidecar} must be a text that is not empty, not 1"),
        ('{"input_size": [3, 8], "mean": 0, "std": 1}', "{model}: input_size must be three whole numbers above 0"),
        ('{"input_size": [3, 8, 8], "mean": 0, "std": 0}', "{model}: std must be 3 numbers above 0, one per channel"),
    ],
)
def test_sidecars_that_are_wrong(network: nn.Module, tmp_path: Path, content: str, message: str) -> None:
    model, sidecar = tmp_path / "model.pt", tmp_path / "model.json"
    scripted(network, model, {})
    sidecar.write_text(content)
    error = refusal(model)
    assert str(error).startswith(message.format(model=model, sidecar=sidecar))
    assert error.usage


def test_real_files(shared_data: Path) -> None:
    for name in ("cifar10-toycnn", "cifar10-resnet20"):
        loaded = load_model(shared_data / "models" / f"{name}.pt")
        files = sorted((shared_data / "cifar10").glob("*/000*.png"))[:20]
        inputs = torch.stack([loaded.preprocessing(Image.open(file)) for file in files])
        labels = [loaded.labels_for(10)[index] for index in loaded.module(inputs).argmax(1).tolist()]
        assert sum(label == file.parent.name for label, file in zip(labels, files, strict=True)) >= 16


# Pickles and other things that are no models


class Trap:
    """A pickle that leaves a mark where it is executed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("form", ["zip", "legacy", "bare"])
def test_no_pickle_is_executed(tmp_path: Path, form: str) -> None:
    mark, file = tmp_path / "executed", tmp_path / "model.pt"
    content = {"features.0.weight": Trap(mark)}
    if form == "bare":
        file.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, file, _use_new_zipfile_serialization=form == "zip")
    for error in (refusal(file), refusal("squeezenet1_1", weights=file)):
        assert error.usage
        assert str(file) in str(error)
    assert not mark.exists()
    pickle.loads(pickle.dumps(content))
    assert mark.exists()  # the trap would have worked


def rewrite(archive: Path, changes: dict[str, Callable[[bytes], bytes]]) -> None:
    with zipfile.ZipFile(archive) as old:
        records = {name: old.read(name) for name in old.namelist()}
    with zipfile.ZipFile(archive, "w") as new:
        for name, content in records.items():
            new.writestr(name, changes.get(name.partition("/")[2], bytes)(content))


def test_a_whole_model_as_a_pickle_is_refused_with_the_ways_out(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.save(network, file)
    ways = f"export the model with torch.export.save, or for a state dict use `model` NAME `weights` {file}"
    assert str(refusal(file)) == f"{file} is a pickle, a program that pathx never runs: {ways}"
    assert "holds more than tensors" in str(refusal("resnet18", weights=file))


def test_weights_of_a_file_are_prepared_for_as_it_says_or_else_that_is_said(tmp_path: Path) -> None:
    """mobilenet_v2's two sets of weights take images resized to 256 and to 232."""
    from pathx.models.torchvision import torchvision

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
    assert "nor is that a file" in str(refusal("mobilenet_v2", weights="IMAGENET1K_V1=nowhere.pth"))


def test_files_that_are_no_models(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    scripted(network, file, {})
    whole = file.read_bytes()
    for content in (b"", b"a picture, perhaps", whole[:1000], b"PK\x03\x04"):
        file.write_bytes(content)
        assert str(refusal(file)).startswith(f"{file} is damaged or not a model file: save the model with ")
        assert str(refusal("resnet18", weights=file)).startswith(f"{file} is not a state dict: ")
    middle = whole.index(b"PK\x03\x04", 1)
    file.write_bytes(whole[:middle] + b"garbage." + whole[middle + 8 :])
    assert str(refusal(file)).startswith(f"{file} cannot be loaded by torch {torch.__version__} (")
    assert str(refusal(tmp_path)).startswith(f"{tmp_path} cannot be read: Is a directory without the config.json")
    assert str(refusal("./no.pt")) == "there is no model file no.pt: check the path, or give a torchvision name"


@pytest.mark.filterwarnings("ignore")
def test_what_was_made_for_one_processor_has_no_weights_to_load(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    torch.jit.save(torch.jit.optimize_for_inference(torch.jit.script(network.eval())), file)
    made = f"{file} was made by torch.jit.optimize_for_inference and holds no weights"
    assert str(refusal(file)) == f"{made}: save the module that it was made from"


def test_a_damaged_export_is_refused_quietly(
    network: nn.Module, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.pt2"
    exported(network, file, {})
    rewrite(file, {"models/model.json": lambda _: b"{}"})
    assert str(refusal(file)).startswith(f"{file} cannot be loaded by torch {torch.__version__} (")
    assert capfd.readouterr() == ("", "")


def test_weights_and_models_are_not_mixed_up(network: nn.Module, tmp_path: Path) -> None:
    weights, model = tmp_path / "weights", tmp_path / "model"
    save_file(network.state_dict(), weights)
    scripted(network, model, {})
    assert str(refusal(weights)) == f"{weights} holds weights only: use `model` NAME `weights` {weights}"
    assert str(refusal(model, weights="DEFAULT")) == f"{model} brings its own weights: leave `weights` out"
    assert "is a whole model, not a state dict" in str(refusal("resnet18", weights=model))


# Names


def test_the_default_is_bundled_and_right(shared_data: Path) -> None:
    loaded = load_model()
    assert (loaded.name, loaded.weights) == ("squeezenet1_1", "bundled")
    assert loaded.sha256 == hashlib.sha256((shared_data / "models/squeezenet1_1.safetensors").read_bytes()).hexdigest()
    expected = {"goldfish": "goldfish", "castle": "castle", "red_fox": "dingo"}
    for name, label in expected.items():
        (file,) = (shared_data / "imagenet").glob(f"*_{name}.JPEG")
        with Image.open(file) as photo:
            logits = loaded.module(loaded.preprocessing(photo)[None])
        assert loaded.labels[int(logits.argmax())] == label


def test_the_default_has_torchvisions_preprocessing_and_categories() -> None:
    loaded = load_model()
    weights = torchvision.models.SqueezeNet1_1_Weights.IMAGENET1K_V1
    assert loaded.labels == tuple(weights.meta["categories"])
    assert loaded.preprocessing == Preprocessing.of_preset(weights.transforms())
    assert not any(part.training for part in loaded.module.modules())
    assert not any(tensor.is_meta for tensor in loaded.module.state_dict().values())
    for key, value in load_file(named.WEIGHTS).items():
        assert torch.equal(loaded.module.state_dict()[key], value)


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


@pytest.mark.parametrize("form", ["safetensors", "pth", "legacy", "wrapped", "parallel", "half"])
def test_local_state_dicts(tmp_path: Path, form: str) -> None:
    module, state = checkpoint("shufflenet_v2_x0_5", num_classes=7)
    file = tmp_path / "weights.bin"
    tolerance = 0.0
    if form == "safetensors":
        save_file(state, file)
    elif form == "wrapped":
        wrapped = {f"module.{key}": value for key, value in state.items()}
        torch.save({"epoch": 3, "state_dict": wrapped, "optimizer": {"lr": 0.1}}, file)
    elif form == "parallel":
        save_file({f"module.{key}": value for key, value in state.items() if "tracked" not in key}, file)
    elif form == "half":
        torch.save({key: value.half() if value.is_floating_point() else value for key, value in state.items()}, file)
        tolerance = 1e-2
    else:
        torch.save(state, file, _use_new_zipfile_serialization=form == "pth")
    loaded = load_model("shufflenet_v2_x0_5", weights=file)
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert_close(loaded.module(image), module(image), rtol=tolerance, atol=0)
    assert loaded.weights == "weights.bin"
    assert loaded.sha256 == hashlib.sha256(file.read_bytes()).hexdigest()
    assert loaded.labels == tuple(f"class {index}" for index in range(7))
    assert loaded.preprocessing.resize == 256
    assert {value.dtype for value in loaded.module.parameters()} == {torch.float32}


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("googlenet", {"init_weights": False, "aux_logits": True}),
        pytest.param("googlenet", {"init_weights": False, "aux_logits": False}, marks=pytest.mark.slow),
        pytest.param("inception_v3", {"init_weights": False, "aux_logits": True}, marks=pytest.mark.slow),
        ("mnasnet0_5", {}),
        pytest.param("regnet_x_400mf", {}, marks=pytest.mark.slow),
        pytest.param("densenet121", {}, marks=pytest.mark.slow),
        pytest.param("mobilenet_v2", {}, marks=pytest.mark.slow),
    ],
)
def test_architectures_with_habits(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    extra = {"transform_input": True} if "aux_logits" in settings else {}
    module, state = checkpoint(name, num_classes=4, **settings, **extra)
    file = tmp_path / "weights"
    save_file(state, file)
    loaded = load_model(name, weights=str(file), labels=["a", "b", "c", "d"])
    image = torch.rand(1, 3, 96, 96, generator=torch.Generator().manual_seed(0))
    output = loaded.module(image)
    assert isinstance(output, Tensor)
    assert_close(output, module(image))
    assert loaded.labels == ("a", "b", "c", "d")


def test_one_logit_has_two_classes(tmp_path: Path) -> None:
    file = tmp_path / "weights"
    save_file(checkpoint("squeezenet1_0", num_classes=1)[1], file)
    assert load_model("squeezenet1_0", weights=file).labels == ("negative", "positive")
    assert load_model("squeezenet1_0", weights=file, labels=["no", "yes"]).labels == ("no", "yes")
    message = "3 labels were given, but squeezenet1_0 has 2 classes: give one label per class"
    assert str(refusal("squeezenet1_0", weights=file, labels=["a", "b", "c"])) == message


def test_weights_that_do_not_fit_name_the_first_keys(tmp_path: Path) -> None:
    state = dict(load_file(named.WEIGHTS))
    del state["features.0.bias"], state["features.3.squeeze.bias"]
    state |= {f"extra.{index}": torch.zeros(1) for index in range(5)}
    file = tmp_path / "weights"
    save_file(state, file)
    assert str(refusal("squeezenet1_1", weights=file)) == (
        f"the weights in {file} do not fit squeezenet1_1: missing features.0.bias, features.3.squeeze.bias; "
        "unexpected extra.0, extra.1, extra.2 and 2 more"
    )
    state["features.0.weight"] = torch.zeros(64, 1, 3, 3)
    save_file(state, file)
    shapes = "; of another shape features.0.weight 64x1x3x3 instead of 64x3x3x3"
    error = refusal("squeezenet1_1", weights=file)
    assert str(error).endswith("extra.2 and 2 more" + shapes)
    assert error.usage
    torch.save([1, 2], file)
    assert str(refusal("resnet18", weights=file)).startswith(f"{file} holds no state dict: ")


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
    error = refusal("resnet18", weights=weights)
    assert not error.usage
    assert str(error) == (
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
    image = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert_close(loaded.module(image), module(image))
    old["classifier.bias"][0] += 1
    torch.save(old, offline / "densenet121-a639ec97.pth")
    assert load_model("densenet121").sha256 != loaded.sha256
    torch.save({"x": Trap(tmp_path / "executed")}, offline / "densenet121-a639ec97.pth")
    refusal("densenet121")
    assert not (tmp_path / "executed").exists()


def test_model_files_need_no_torchvision(network: nn.Module, tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    scripted(network, file, {"pathx.json": json.dumps(SIDECAR)})
    script = f"import sys, pathx; pathx.load_model({str(file)!r}); print('torchvision' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("False\n", "")
