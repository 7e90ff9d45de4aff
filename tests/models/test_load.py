"""Model files: several forms of one network, their sidecars, files that are no models, and what `load_model` gives."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.utils.prune
from PIL import Image
from safetensors.torch import save_file
from support.attacks import GRAPH, Trap, packed, pickled, records_of
from support.attacks import exported as genuine_export
from support.command_line import Pathx, check_document, picture, refused
from support.refusal import refusal
from support.small import loaded as small_model
from torch import Tensor, nn
from torch.testing import assert_close

from pathx.errors import PathxError
from pathx.models.exported import rebuild_archive
from pathx.models.files import Archive
from pathx.models.load import load_model

pytestmark = pytest.mark.usefixtures("here")
SIDECAR = {"input_size": [3, 8, 8], "mean": [0.5, 0.4, 0.3], "std": [0.1, 0.2, 0.3], "labels": ["cat", "dog", "fox"]}
INPUT = torch.linspace(-1, 1, 192).view(1, 3, 8, 8)


def network(channels: int = 3, classes: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        first = nn.Conv2d(channels, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout()
        return nn.Sequential(*first, nn.Flatten(), nn.Linear(144, classes)).eval()


def scripted(module: nn.Module, file: str, extra: dict[str, str] | None = None) -> None:
    torch.jit.save(torch.jit.script(module), file, _extra_files=extra)


def traced(module: nn.Module, file: str, extra: dict[str, str] | None = None) -> None:
    program: Any = torch.jit.trace(module, INPUT)  # type: ignore[no-untyped-call]
    torch.jit.save(program, file, _extra_files=extra)


def frozen(module: nn.Module, file: str, extra: dict[str, str] | None = None) -> None:
    torch.jit.save(torch.jit.freeze(torch.jit.script(module)), file, _extra_files=extra)


def exported(module: nn.Module, file: str, extra: dict[str, str] | None = None) -> None:
    with open(file, "wb") as stream:
        torch.export.save(torch.export.export(module, (INPUT,)), stream, extra_files=extra)


FORMS = (scripted, traced, frozen, exported)
Save = Callable[..., None]


# What a file holds


@pytest.mark.parametrize(
    ("save", "name"), list(zip(FORMS, ["model.pt2", "model", "model.pt", "model.pt"], strict=True))
)
def test_files_are_told_apart_by_content(save: Save, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    module = network()
    save(module, name)
    Path("model.json").write_text(json.dumps(SIDECAR))
    loaded = load_model(Path(name))
    assert_close(loaded.module(INPUT), module(INPUT))  # freezing folds the batch norm
    assert not any(part.training for part in loaded.module.modules())
    assert (loaded.name, loaded.weights) == (name, name)
    assert loaded.sha256 == hashlib.sha256(Path(name).read_bytes()).hexdigest()
    assert loaded.labels == ("cat", "dog", "fox")
    assert (loaded.preprocessing.input_size, loaded.preprocessing.mean) == ((3, 8, 8), (0.5, 0.4, 0.3))
    assert capfd.readouterr() == ("", "")


def test_a_grey_model_gets_a_grey_image(pathx_: Pathx) -> None:
    module = network(channels=1)
    scripted(module, "model.pt", {"pathx.json": json.dumps({"input_size": [1, 8, 8], "mean": 0.5, "std": 0.25})})
    options = ("--model", "model.pt", "--target", 0, "--format", "json")
    (made,) = pathx_("explain", picture(size=(8, 8)), *options).documents
    check_document(made)
    with Image.open("photo.png") as image:
        grey = torch.tensor(list(image.convert("L").tobytes()), dtype=torch.float32).view(1, 1, 8, 8)
    assert made["target"]["logit"] == pytest.approx(float(module((grey / 255 - 0.5) / 0.25)[0, 0].detach()), rel=1e-5)


def test_real_files(shared_data: Path) -> None:
    for name in ("cifar10-toycnn", "cifar10-resnet20"):
        loaded = load_model(shared_data / "models" / f"{name}.pt")
        files = sorted((shared_data / "cifar10").glob("*/000*.png"))[:20]
        inputs = torch.stack([loaded.preprocessing(Image.open(file)) for file in files])
        labels = [loaded.labels_for(10)[index] for index in loaded.module(inputs).argmax(1).tolist()]
        assert sum(label == file.parent.name for label, file in zip(labels, files, strict=True)) >= 16


# Sidecars and options


@pytest.mark.parametrize("save", [scripted, exported])
def test_options_win_over_the_sidecar_which_wins_over_the_archive(save: Save) -> None:
    save(network(), "model.pt", {"pathx.json": json.dumps(SIDECAR)})
    assert load_model("model.pt").labels == ("cat", "dog", "fox")
    Path("model.json").write_text('{"labels": {"0": "a", "1": "b", "2": "c"}, "std": 0.25, "note": "mine"}')
    assert load_model("model.pt").labels == ("a", "b", "c")
    Path("model.pt.json").write_text('{"resize": 10, "std": [0.25]}')
    loaded = load_model("model.pt", mean=0.75, labels=["x", "y", "z"])
    assert loaded.labels == ("x", "y", "z")
    assert loaded.preprocessing.mean == (0.75, 0.75, 0.75)
    assert (loaded.preprocessing.std, loaded.preprocessing.resize) == ((0.25, 0.25, 0.25), 10)
    assert load_model("model.pt", input_size=[1, 5, 7], mean=[0], std=[1]).preprocessing.input_size == (1, 5, 7)


def test_options_alone_are_enough() -> None:
    scripted(network(), "model.pt")
    Path("labels.txt").write_text("cat\nred fox\ndog\n")
    options: dict[str, Any] = {"input_size": (3, 8, 8), "mean": (0, 0, 0), "std": (1, 1, 1)}
    assert load_model("model.pt", **options).labels_for(3) == ("class 0", "class 1", "class 2")
    assert load_model("model.pt", **options).labels_for(1) == ("negative", "positive")
    loaded = load_model("model.pt", **options, labels="labels.txt")
    assert loaded.labels_for(3) == ("cat", "red fox", "dog")
    problem = r"^3 labels were given, but model.pt has 5 classes: give one label per class$"
    with pytest.raises(PathxError, match=problem):
        loaded.labels_for(5)


def test_a_file_without_a_description_shows_the_sidecar_to_write() -> None:
    scripted(network(), "model.pt")
    error = refusal("model.pt", mean=0.5)
    assert error.startswith("model.pt does not say its input_size, std: give them as options or write ")
    sidecar, text = error.rpartition("write ")[2].split(" such as ")
    Path(sidecar).write_text(text)  # the advice works
    assert load_model("model.pt").preprocessing.input_size == (3, 32, 32)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "model.json is not valid JSON (Expecting property name"),
        ("[]", 'model.json must hold an object such as {"input_size"'),
        ('{"lables": []}', "model.json has the unknown key 'lables': did you mean 'labels'?"),
        ('{"mean": "x"}', "mean in model.json must be a list of numbers such as [0.5, 0.5, 0.5], not 'x'"),
        ('{"input_size": 8}', "input_size in model.json must be a list of numbers such as [3, 32, 32], not 8"),
        ('{"labels": [1]}', "label 0 in model.json must be a text that is not empty, not 1"),
        ('{"input_size": [3, 8], "mean": 0, "std": 1}', "model.pt: input_size must be three whole numbers above 0"),
        ('{"input_size": [3, 8, 8], "mean": 0, "std": 0}', "model.pt: std must be 3 numbers above 0, one per channel"),
    ],
)
def test_sidecars_that_are_wrong(content: str, message: str) -> None:
    scripted(network(), "model.pt")
    Path("model.json").write_text(content)
    assert refusal("model.pt").startswith(message)


# Pickles and other things that are no models


def test_a_pickle_is_refused_with_the_way_to_save_it(here: Path) -> None:
    """That none of them is run is tried by `test_attacks.py`."""
    torch.save({"features.0.weight": Trap(here / "executed")}, "model.pt")
    ways = "export the model with torch.export.save, or for a state dict use `model` NAME `weights` model.pt"
    assert refusal("./model.pt") == f"model.pt is a pickle, a program that pathx never runs: {ways}"
    assert "model.pt is damaged or holds more than tensors" in refusal("squeezenet1_1", weights="model.pt")


def test_files_that_are_no_models() -> None:
    scripted(network(), "model.pt")
    whole, file = Path("model.pt").read_bytes(), Path("model.pt")
    for content in (b"", b"a picture, perhaps", whole[:1000], b"PK\x03\x04"):
        file.write_bytes(content)
        assert refusal(file).startswith("model.pt is damaged or not a model file: save the model with ")
        assert refusal("resnet18", weights=file).startswith("model.pt is not a state dict: ")
    middle = whole.index(b"PK\x03\x04", 1)
    file.write_bytes(whole[:middle] + b"garbage." + whole[middle + 8 :])
    assert refusal(file).startswith(f"model.pt cannot be loaded by torch {torch.__version__} (")
    Path("folder").mkdir()
    assert (
        refusal("folder") == "folder is a folder without the config.json of save_pretrained: name the one that it wrote"
    )
    assert refusal("./no.pt") == "there is no model file no.pt: check the path, or give a torchvision name"
    Path("small.py").write_text("def build(): ...")
    assert refusal("small.py").startswith("small.py is Python code: name the function in it that builds the model")


@pytest.mark.filterwarnings("ignore")
def test_what_was_made_for_one_processor_has_no_weights_to_load() -> None:
    torch.jit.save(torch.jit.optimize_for_inference(torch.jit.script(network())), "model.pt")
    made = "model.pt was made by torch.jit.optimize_for_inference and holds no weights"
    assert refusal("model.pt") == f"{made}: save the module that it was made from"


def test_weights_and_models_are_not_mixed_up(pathx_: Pathx) -> None:
    save_file(network().state_dict(), "weights")
    scripted(network(), "model")
    assert refusal("./weights") == "weights holds weights only: use `model` NAME `weights` weights"
    assert refusal("./model", weights="DEFAULT") == "./model brings its own weights: leave `weights` out"
    assert "is a whole model, not a state dict" in refusal("resnet18", weights="model")
    refused(pathx_("explain", picture(), "--model", "no.pt"), "there is no model file no.pt: check the path")


# torch.export: archives are rebuilt before torch sees them


def test_the_rebuilt_archive_holds_nothing_but_the_network(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    mark = here / "mark"
    records = {
        **records_of(genuine_export()),
        "extra/evil.pkl": b"x",
        "data/sample_inputs/model.pt": pickled(Trap(mark)),
    }
    fresh = records_of(rebuild_archive(Archive(io.BytesIO(packed(records)))))
    assert "extra/evil.pkl" not in fresh and fresh["data/sample_inputs/model.pt"] == b""
    graph = json.loads(fresh[GRAPH])
    assert graph["guards_code"] == []
    assert {key for node in graph["graph_module"]["graph"]["nodes"] for key in node["metadata"]} == {"nn_module_stack"}
    Path("model.pt2").write_bytes(packed(records))
    assert load_model("model.pt2").labels == ("cat", "red fox", "dog")
    assert not mark.exists()
    Path("model.pt2").write_bytes(packed({**records, GRAPH: b"{}"}))
    assert refusal("model.pt2").startswith("model.pt2 ")
    assert capfd.readouterr() == ("", "")


def test_results_may_be_dictionaries_of_tensors() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            with torch.no_grad():
                scaled = x * 2
            return {"logits": scaled.relu().flatten(1), "other": x.flatten(1)}

    torch.export.save(torch.export.export(Two(), (torch.ones(1, 1, 2, 2),)), "two.pt2")
    module = load_model("two.pt2", input_size=(1, 2, 2), mean=0, std=1).module
    assert module(torch.ones(1, 1, 2, 2))["logits"].tolist() == [[2, 2, 2, 2]]


# On other devices


def normed() -> nn.Module:
    """torch's own copy refuses weights that hang on others."""
    return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(300, 4)), nn.ReLU(), nn.Linear(4, 3))


def pruned() -> nn.Module:
    module = nn.Sequential(nn.Flatten(), nn.Linear(300, 4), nn.ReLU(), nn.Linear(4, 3))
    torch.nn.utils.prune.l1_unstructured(module[1], "weight", 0.5)  # type: ignore[no-untyped-call]
    return module


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make", [network, normed, pruned])
def test_elsewhere_it_is_a_copy_and_the_network_stays_where_it_is(make: Callable[[], nn.Module]) -> None:
    model = replace(small_model(), module=make().eval())
    elsewhere = model.on(torch.device("meta"))
    assert {one.device.type for one in elsewhere.parameters()} == {"meta"}
    assert {one.device.type for one in model.module.parameters()} == {"cpu"}
    assert model.on(torch.device("cpu")) is model.module


class Alone(nn.Flatten):
    def __deepcopy__(self, memo: Any) -> None:
        raise RuntimeError("one is enough")


def test_what_cannot_be_copied_stays_on_the_cpu() -> None:
    said = r"cannot be copied to another device \(one is enough\): use `device` cpu, or save"
    with pytest.raises(PathxError, match=said):
        replace(small_model(), module=Alone().eval()).on(torch.device("meta"))
