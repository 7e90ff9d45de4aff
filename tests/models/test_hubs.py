"""`timm:NAME`, `hf:NAME` and folders of `save_pretrained`: real loading code on real files made here, without a network."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from support.command_line import Pathx, document, picture
from support.refusal import refusal
from support.small import seeded

import pathx.models.torchvision  # noqa: F401  (before timm and transformers, which import torchvision)
from pathx.models.load import load_model

IMAGE = torch.rand(1, 3, 64, 64, generator=seeded(0))


@pytest.fixture
def cache(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub, and no network."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(here / "hub"))
    return here / "hub"


def cached(cache: Path, repository: str, files: dict[str, bytes], revision: str = "a" * 40) -> None:
    """Files as a download leaves them in the hub's cache."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    (folder / "snapshots" / revision).mkdir(parents=True)
    for name, content in files.items():
        (folder / "snapshots" / revision / name).write_bytes(content)


# timm


def checkpoint(name: str, **settings: Any) -> tuple[Any, dict[str, Any]]:
    timm = pytest.importorskip("timm")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        module = timm.create_model(name, pretrained=False, **settings).eval()
    return module, module.state_dict()


def test_timm_by_name_from_the_cache(cache: Path) -> None:
    module, state = checkpoint("resnet10t")
    save_file(state, "model.safetensors")
    content = Path("model.safetensors").read_bytes()
    cached(cache, "timm/resnet10t.c3_in1k", {"model.safetensors": content})
    loaded = load_model("timm:resnet10t.c3_in1k")
    torch.testing.assert_close(loaded.module(IMAGE), module(IMAGE))
    assert loaded.sha256 == hashlib.sha256(content).hexdigest()
    assert loaded.origin == {
        "source": "timm",
        "name": "resnet10t.c3_in1k",
        "repository": "timm/resnet10t.c3_in1k",
        "revision": "a" * 40,
    }
    assert (loaded.name, loaded.weights) == ("timm:resnet10t.c3_in1k", "c3_in1k")
    config = module.pretrained_cfg
    assert loaded.preprocessing.input_size == tuple(config["input_size"])
    assert loaded.preprocessing.resize == int(config["input_size"][1] / config["crop_pct"])
    assert loaded.preprocessing.interpolation == config["interpolation"]
    assert loaded.labels[1] == "goldfish"


def test_timm_with_a_file(here: Path, pathx_: Pathx) -> None:
    module, state = checkpoint("resnet18", num_classes=7)
    torch.save({"state_dict_ema": {f"module.{key}": value for key, value in state.items()}}, "last.pth")
    loaded = load_model("timm:resnet18", weights="last.pth")
    torch.testing.assert_close(loaded.module(IMAGE), module(IMAGE))
    assert loaded.labels_for(7)[6] == "class 6"
    picture()
    options = ("--weights", "last.pth", "--input-size", "3,64,64", "--depth", "1", "--no-pictures")
    assert pathx_("explain", "photo.png", "--model", "timm:resnet18", *options).status == 0
    (folder,) = Path("pathx-out/photo.png").iterdir()
    assert document(folder)["model"]["origin"] == {"source": "file", "name": "last.pth"}
    assert "layer4.1.act2" in pathx_("models", "timm:resnet18").out
    seven = pathx_("models", "timm:resnet18", "--model-args", '{"width": 8}')
    assert seven.status == 2
    assert "timm cannot build resnet18" in seven.err
    features = refusal("timm:resnet18", weights="none", arguments={"features_only": True})
    assert "timm's resnet18 is an encoder without a classifier" in features


def test_timm_names_and_weights_that_are_not_there(cache: Path) -> None:
    pytest.importorskip("timm")
    assert refusal("timm:resnet1").startswith("timm has no model called 'resnet1': did you mean resnet1")
    assert refusal("timm:resnet18.x").startswith("timm has no weights 'x' of resnet18: it has ")
    assert refusal("timm:resnet18.a1_in1k", usage=False) == (
        "resnet18.a1_in1k is not in the cache and cannot be downloaded (LocalEntryNotFoundError): "
        "go online, or give `weights` FILE, or none for an untrained network"
    )
    for name in (
        "vit_small_patch14_dinov2.lvd142m",
        "resnet50_clip.openai",
        "fastvit_mci0.apple_mclip",
    ):  # features; CLIP's
        message = f"timm's weights of {name} are of an encoder without a classifier, such as CLIP's"
        assert refusal(f"timm:{name}").startswith(message)
    for name in ("resnet10t.c3_in1k", "convnext_nano.in12k", "mobilenetv3_large_100.miil_in21k"):
        assert "is not in the cache" in refusal(f"timm:{name}", usage=False)


# transformers


@pytest.fixture
def folder(here: Path) -> str:
    transformers = pytest.importorskip("transformers")
    names = {0: "cat", 1: "dog", 2: "fox"}
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 8], depths=[1, 1], layer_type="basic", num_labels=3, id2label=names
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        transformers.ResNetForImageClassification(config).save_pretrained("net")
    processor = {
        "image_processor_type": "ConvNextImageProcessor",
        "size": {"shortest_edge": 64},
        "crop_pct": 0.875,
        "image_mean": [0.1, 0.2, 0.3],
        "image_std": [0.4, 0.5, 0.6],
        "resample": 3,
    }
    Path("net/preprocessor_config.json").write_text(json.dumps(processor))
    return "net"


def test_a_folder_of_save_pretrained(folder: str, pathx_: Pathx) -> None:
    transformers = pytest.importorskip("transformers")
    module = transformers.AutoModelForImageClassification.from_pretrained(folder).eval()
    loaded = load_model(folder)
    torch.testing.assert_close(loaded.module(IMAGE).logits, module(IMAGE).logits)
    assert loaded.labels == ("cat", "dog", "fox")
    assert loaded.preprocessing.input_size == (3, 64, 64)
    assert (loaded.preprocessing.resize, loaded.preprocessing.interpolation) == (73, "bicubic")
    assert loaded.preprocessing.mean == (0.1, 0.2, 0.3)
    picture()
    assert pathx_("explain", "photo.png", "--model", folder, "--depth", "1", "--no-pictures").status == 0
    assert "resnet.encoder" in pathx_("models", "./net").out


def test_by_name_from_the_cache(folder: str, cache: Path) -> None:
    files = {file.name: file.read_bytes() for file in Path(folder).iterdir()}
    cached(cache, "someone/net", files, revision="b" * 40)
    loaded = load_model("hf:someone/net")
    assert loaded.origin.items() >= {"source": "transformers", "name": "someone/net", "revision": "b" * 40}.items()
    assert loaded.labels == ("cat", "dog", "fox")
    assert loaded.sha256 == load_model(folder).sha256
    assert refusal("hf:someone/else", usage=False).startswith(
        "someone/else is not in the cache and cannot be downloaded ("
    )


def test_no_pickle_and_no_code_of_others(folder: str, here: Path) -> None:
    state = load_model(folder).module.state_dict()
    Path("net/model.safetensors").unlink()
    torch.save(state, "net/pytorch_model.bin")
    assert refusal(folder).startswith("net has no model.safetensors, and pathx reads no pickles: ")
    torch.testing.assert_close(load_model(folder, weights="net/pytorch_model.bin").module.state_dict(), state)
    config = json.loads(Path("net/config.json").read_text())
    mark = here / "mark"
    Path("net/code.py").write_text(f"open({str(mark)!r}, 'w')")
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "code.C", "AutoModelForImageClassification": "code.M"}}
    Path("net/config.json").write_text(json.dumps(config))
    assert refusal(folder, weights="none")
    assert not mark.exists()


WRAPPED = {"model_type": "timm_wrapper", "architecture": "resnet18", "num_classes": 2, "label_names": ["a", "b"]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (WRAPPED | {"architecture": "hf-hub:evil/net"}, "(architecture)"),
        (WRAPPED | {"architecture": "local-dir:/tmp"}, "(architecture)"),
        (WRAPPED | {"model_args": {"checkpoint_path": "evil.pt"}}, "(checkpoint_path)"),
        (WRAPPED | {"model_args": {"pretrained_cfg": {"url": "https://evil.example/x"}}}, "(pretrained_cfg)"),
        ({"quantization_config": {"quant_method": "bitsandbytes"}}, "(quantization_config)"),
        ({"attn_implementation": "evil/kernel"}, "(attn_implementation)"),
        ({"num_labels": 10**12}, "holds a number that no network has"),  # transformers would name every one of them
        ({"depths": [10**6, 1]}, "holds a number that no network has"),
        ({"hidden_sizes": [2**40, 8]}, "holds a number that no network has"),
        ({"num_labels": 10**400}, "too large a number"),
    ],
)
def test_a_config_leads_to_nothing_else(folder: str, here: Path, change: dict[str, Any], reason: str) -> None:
    from support.attacks import Trap

    torch.save({"x": Trap(here / "mark")}, "evil.pt")
    file = Path(folder, "config.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    assert reason in refusal(folder)
    assert not Path("mark").exists()


@pytest.mark.parametrize("shard", ["evil.pt", "../evil.safetensors", "/etc/passwd", "a/b.safetensors"])
def test_weights_in_several_files_are_all_safetensors_of_the_folder(folder: str, here: Path, shard: str) -> None:
    Path(folder, "model.safetensors").rename(Path(folder, "first.safetensors"))
    index = Path(folder, "model.safetensors.index.json")
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": "first.safetensors", "b": shard}}))
    assert f"leads to other files or code ({shard} in" in refusal(folder)


def test_folders_that_are_wrong(folder: str, here: Path) -> None:
    Path("empty").mkdir()
    assert (
        refusal("./empty")
        == "./empty is a folder without the config.json of save_pretrained: name the one that it wrote"
    )
    for path in ("./nett", "some/where/net", str(here / "nett"), "~/net"):  # none of these is looked for on the hub
        assert refusal(f"hf:{path}") == f"there is no folder {path}: check the path"
    Path("net/preprocessor_config.json").write_text("{")
    assert refusal(folder).startswith("the preprocessor_config.json of net cannot be read (")
    Path("net/config.json").write_text("{")
    assert "net" in refusal(folder)


def test_folders_of_what_is_no_classifier(folder: str) -> None:
    """transformers would give an encoder a classifier of random weights."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    vision = sizes | {"image_size": 32, "patch_size": 16}
    clip = transformers.CLIPConfig(vision_config=vision, text_config=sizes | {"vocab_size": 9})
    others = {
        "encoder": (transformers.ViTModel(transformers.ViTConfig(**vision)), "is no whole image classifier (ViTModel)"),
        "clip": (
            transformers.CLIPModel(clip),
            "is no whole image classifier (CLIPModel), its weights lack classifier.",
        ),
        "texts": (
            transformers.BertForMaskedLM(transformers.BertConfig(**sizes, vocab_size=9)),
            "is not an image classifier of transformers but BertForMaskedLM",
        ),
    }
    for name, (module, message) in others.items():
        module.save_pretrained(name)
        Path(name, "preprocessor_config.json").write_text(Path(folder, "preprocessor_config.json").read_text())
        assert message in refusal(f"./{name}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"do_resize": False}, "do_resize false"),
        ({"mine": 3}, "mine 3"),
        ({"image_processor_type": "PerceiverImageProcessor"}, "PerceiverImageProcessor"),
    ],
)
def test_preprocessing_that_is_not_followed(folder: str, change: dict[str, Any], said: str) -> None:
    file = Path(folder, "preprocessor_config.json")
    processor = {key: value for key, value in json.loads(file.read_text()).items() if key != "crop_pct"}
    file.write_text(json.dumps(processor | change))
    assert f"prepared in a way that pathx does not support ({said}" in refusal(folder)
    assert load_model(folder, input_size=(3, 64, 64), mean=0.5, std=0.5).preprocessing.mean == (0.5, 0.5, 0.5)


def test_a_missing_library_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    for name in ("timm", "transformers"):
        monkeypatch.setitem(sys.modules, name, None)
        assert refusal(f"{'hf' if name == 'transformers' else name}:x") == (
            f"this needs {name}: pip install 'pathx-relu[{name}]'"
        )
