"""Model files at the command line: several forms of one network, files that are no models, weights that do not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from PIL import ExifTags, Image
from safetensors.torch import save_file
from support.command_line import (
    SIDECAR,
    Pathx,
    check_document,
    check_schema,
    network,
    picture,
    refused,
    same,
    scripted,
)
from torch import Tensor, nn

from pathx.models.torchvision import torchvision

pytestmark = pytest.mark.usefixtures("one_thread", "here")


# Models


def test_one_network_in_three_forms_gives_one_path(pathx_: Pathx) -> None:
    module = network()
    torch.jit.save(torch.jit.trace(module, torch.zeros(2, 3, 8, 8)), "traced.bin")
    torch.export.save(torch.export.export(module, (torch.zeros(1, 3, 8, 8),)), "exported.pt2")
    options = ("--depth", "all", "--format", "json")
    results = []
    for file in (scripted(module), "traced.bin", "exported.pt2"):
        Path(file).with_suffix(".json").write_text(json.dumps(SIDECAR))
        done = pathx_("explain", picture(), "--model", file, *options, "--out", f"out-{file}")
        assert (done.status, done.err) == (0, ""), file
        (made,) = done.documents
        check_document(made)
        assert (made["model"].pop("name"), made["model"].pop("weights")) == (file, file)
        made["model"].pop("sha256")
        assert made["model"].pop("origin") == {"source": "file", "name": file}
        for layer in made["layers"]:
            layer.pop("tensors")
            for unit in layer["units"]:
                unit.pop("tensor")
        results.append(made)
    assert same(results[0], results[1])
    assert same(results[0], results[2])


def test_a_file_made_for_one_picture_at_a_time_takes_several(pathx_: Pathx) -> None:
    torch.export.save(torch.export.export(network(), (torch.zeros(1, 3, 8, 8),)), "model.pt2")
    Path("model.json").write_text(json.dumps(SIDECAR))
    names = [picture("a.png"), "none.png", picture("b.png", seed=1), picture("c.png", seed=2)]
    arguments = ("explain", *names, "--model", "model.pt2", "--format", "json")
    several = pathx_(*arguments)
    assert several.status == 1
    assert several.err.splitlines()[0] == "pathx: none.png: no such file; check the path"
    assert [made["image"]["file"] for made in several.documents] == ["a.png", "b.png", "c.png"]
    assert several == pathx_(*arguments, "--batch-size", 1, "--overwrite")


@pytest.mark.parametrize("file", ["weights.safetensors", "weights.pth"])
def test_a_name_with_a_state_dict_of_its_own(pathx_: Pathx, file: str) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        state = torchvision.models.get_model("squeezenet1_0", weights=None, num_classes=4).state_dict()
    save_file(state, file) if file.endswith("safetensors") else torch.save(state, file)
    options = ("--model", "squeezenet1_0", "--weights", file, "--input-size", "3,48,48", "--target", 3)
    done = pathx_("explain", picture(), *options, "--format", "json")
    assert (done.status, done.err) == (0, "")
    (made,) = done.documents
    check_document(made, (48, 48))
    assert (made["model"]["name"], made["model"]["weights"]) == ("squeezenet1_0", file)
    assert (made["model"]["classes"], made["target"]["label"]) == (4, "class 3")


def test_a_grey_model_gets_a_grey_picture(pathx_: Pathx) -> None:
    module = network(channels=1)
    model = scripted(module, sidecar={"input_size": [1, 8, 8], "mean": 0.5, "std": 0.25})
    (made,) = pathx_("explain", picture(size=(8, 8)), "--model", model, "--target", 0, "--format", "json").documents
    check_document(made)
    with Image.open("photo.png") as image:
        grey = torch.tensor(list(image.convert("L").tobytes()), dtype=torch.float32).view(1, 1, 8, 8)
    assert made["target"]["logit"] == pytest.approx(float(module((grey / 255 - 0.5) / 0.25)[0, 0].detach()), rel=1e-5)


def test_one_logit_is_two_classes(pathx_: Pathx) -> None:
    sidecar = {key: SIDECAR[key] for key in ("input_size", "mean", "std")}
    arguments = ("explain", picture(), "--model", scripted(network(classes=1), sidecar=sidecar), "--format", "json")
    done = pathx_(*arguments, "--target", "negative", "--target", "positive")
    negative, positive = (made["target"] for made in done.documents)
    assert (negative["index"], positive["index"], negative["logit"]) == (0, 1, 0.0)
    assert positive["probability"] + negative["probability"] == pytest.approx(1)
    assert positive["probability"] == pytest.approx(torch.tensor(positive["logit"]).sigmoid().item(), rel=1e-5)
    for made in done.documents:
        check_schema(made)
        assert (made["alpha"], made["model"]["classes"]) == (0.5, 2)
    (predicted,) = pathx_(*arguments).documents
    assert predicted["target"] == (positive if positive["logit"] > 0 else negative)


def test_a_rotated_photo_is_upright(pathx_: Pathx) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6
    file = picture("photo.jpg", size=(60, 30), exif=exif)
    (made,) = pathx_("explain", file, "--model", scripted(network()), "--target", "cat", "--format", "json").documents
    assert (made["image"]["width"], made["image"]["height"]) == (30, 60)
    with Image.open("pathx-out/photo.jpg/cat/overlay.png") as overlay:
        assert overlay.height == 2 * overlay.width


# Networks that are no ReLU networks


class Gated(nn.Module):
    """A squeeze-and-excitation block, whose sigmoid is at block.1."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(4, 4, 1), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.block(x)  # type: ignore[no-any-return]


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()), Gated())
        self.classifier = nn.Linear(144, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(1))  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["scripted", "traced", "exported"])
def test_a_file_that_is_no_relu_network_is_exact_at_the_image(pathx_: Pathx, form: str) -> None:
    module, example = Network().eval(), torch.zeros(1, 3, 8, 8)
    if form == "scripted":
        torch.jit.save(torch.jit.script(module), "model.pt")
    elif form == "traced":
        torch.jit.save(torch.jit.trace(module, example), "model.pt")
    else:
        with open("model.pt", "wb") as stream:
            torch.export.save(torch.export.export(module, (example,)), stream)
    Path("model.json").write_text(json.dumps(SIDECAR))
    done = pathx_("explain", picture(), "--model", "model.pt", "--format", "json")
    assert done.status == 0 and json.loads(done.out)["model"]["exact"] == "image"


@pytest.mark.parametrize("name", ["regnet_y_400mf", "mobilenet_v3_small"])
def test_a_name_that_is_no_relu_network_is_exact_at_the_image(pathx_: Pathx, name: str) -> None:
    done = pathx_(
        "explain", picture(), "--model", name, "--weights", "none", "--input-size", "3,64,64", "--format", "json"
    )
    assert done.status == 0 and json.loads(done.out)["model"]["exact"] == "image"


# Files that are no models, and weights


def test_models_and_weights_that_are_not_there(pathx_: Pathx) -> None:
    file = picture()
    refused(pathx_("explain", file, "--model", "no.pt"), "there is no model file no.pt: check the path")
    refused(pathx_("explain", file, "--model", "resnet19"), "there is no model called 'resnet19': did you mean resnet1")
    Path("small.py").write_text("def build(): ...")
    refused(
        pathx_("explain", file, "--model", "small.py"),
        "small.py is Python code: name the function in it that builds the",
    )
    refused(pathx_("explain", file, "--model", file), "photo.png is damaged or not a model file: save the model with")
    refused(pathx_("explain", file, "--weights", "V9"), "no weights called 'V9', nor is that a file: give one of")
