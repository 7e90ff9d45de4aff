"""Every classifier that torchvision reports is explained, or refused for a reason that names operation and module."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx import PathxError
from pathx.engine.freeze import freeze
from pathx.models.catalogue import catalogue
from pathx.models.load import model_names
from pathx.models.torchvision import torchvision

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec.*:FutureWarning")

# The number of hidden layers, counted in the papers and in torchvision's code. In branches the longest one counts.
HIDDEN_LAYERS = {
    "alexnet": 5 + 2,
    **{f"vgg{depth}{bn}": depth - 1 for depth in (11, 13, 16, 19) for bn in ("", "_bn")},
    "resnet18": 1 + 2 * 8,
    "resnet34": 1 + 2 * 16,
    **dict.fromkeys(["resnet50", "resnext50_32x4d", "wide_resnet50_2"], 1 + 3 * 16),
    **dict.fromkeys(["resnet101", "resnext101_32x8d", "resnext101_64x4d", "wide_resnet101_2"], 1 + 3 * 33),
    "resnet152": 1 + 3 * 50,
    **dict.fromkeys(["squeezenet1_0", "squeezenet1_1"], 1 + 2 * 8 + 1),  # squeeze, then both expand at once
    "densenet121": 1 + 2 * (6 + 12 + 24 + 16) + 3 + 1,
    "densenet161": 1 + 2 * (6 + 12 + 36 + 24) + 3 + 1,
    "densenet169": 1 + 2 * (6 + 12 + 32 + 32) + 3 + 1,
    "densenet201": 1 + 2 * (6 + 12 + 48 + 32) + 3 + 1,
    "googlenet": 3 + 2 * 9,  # reduce and 3x3
    "inception_v3": 5 + 3 * 3 + 3 + 4 * 5 + 4 + 2 * 3,  # stem, A, B, C, D, E
    **{f"shufflenet_v2_x{width}": 1 + 2 * (4 + 8 + 4) + 1 for width in ("0_5", "1_0", "1_5", "2_0")},
    **{f"mnasnet{width}": 2 + 2 * (3 + 3 + 3 + 2 + 4 + 1) + 1 for width in ("0_5", "0_75", "1_0", "1_3")},
    "mobilenet_v2": 1 + 1 + 2 * 16 + 1,
    **{
        f"regnet_x_{size}": 1 + 3 * blocks
        for size, blocks in {
            "400mf": 22, "800mf": 16, "1_6gf": 18, "3_2gf": 25, "8gf": 23, "16gf": 22, "32gf": 23,
        }.items()
    },
}  # fmt: skip

# What rules a family out: the operation that comes first, and the kind of module it is in.
REFUSED = {
    "convnext": "native_layer_norm in features.0.1",
    "efficientnet": "silu in features.0.2",
    "maxvit": "gelu in stem.0.2",
    "mobilenet_v3": "hardswish in features.0.2",
    "regnet_y": "sigmoid in trunk_output.block1.block1-0.f.se.scale_activation",
    "swin": "native_layer_norm in features.0.2",
    "vit": "native_layer_norm in encoder.layers.encoder_layer_0.ln_1",
}

# One of each kind runs every time, the others with `pytest -m slow`.
QUICK = {
    "alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "squeezenet1_0", "squeezenet1_1", "densenet121",
    "googlenet", "inception_v3", "shufflenet_v2_x0_5", "mnasnet0_5", "mobilenet_v2", "regnet_x_400mf",
    "convnext_tiny", "efficientnet_b0", "mobilenet_v3_small", "regnet_y_400mf", "swin_t", "vit_b_32",
}  # fmt: skip


def family(name: str) -> str | None:
    """Of those that are refused."""
    return next((start for start in REFUSED if name.startswith(start)), None)


def marked(names: list[str], quick: set[str]) -> list[Any]:
    return [pytest.param(name, marks=[] if name in quick else pytest.mark.slow) for name in names]


def build(name: str, **settings: Any) -> nn.Module:
    """A small-headed, untrained network with batch statistics that do something."""
    if name in ("googlenet", "inception_v3"):
        settings |= {"aux_logits": False, "init_weights": False}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        module: nn.Module = torchvision.models.get_model(name, weights=None, num_classes=4, **settings).eval()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d):
                part.running_mean.normal_(0, 0.1)  # type: ignore[union-attr]
                part.running_var.uniform_(0.7, 1.3)  # type: ignore[union-attr]
    return module


def picture(name: str, dtype: torch.dtype = torch.float32, count: int = 1) -> Tensor:
    size = {"inception_v3": (75, 80), "alexnet": (63, 70)}.get(name, (32, 40))
    if name.startswith(("vit", "maxvit")):
        size = (224, 224)
    return torch.randn(count, 3, *size, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", model_names())
def test_every_name_is_classified(name: str) -> None:
    """A name that a new torchvision brings fails here until it is known to work or to be refused."""
    assert (name in HIDDEN_LAYERS) != (family(name) is not None)


def test_the_catalogue_says_the_same() -> None:
    entries = {entry.name: entry for entry in catalogue(refused=True)}
    assert sorted(entries) == sorted(model_names())
    assert {name: e.hidden_layers for name, e in entries.items() if e.refused is None} == HIDDEN_LAYERS
    reasons = {name: e.refused for name, e in entries.items() if e.refused is not None}
    assert reasons == {name: REFUSED[family(name) or ""] for name in reasons}


@pytest.mark.parametrize("name", marked([name for name in model_names() if name in HIDDEN_LAYERS], QUICK))
def test_a_model_that_is_explained(name: str) -> None:
    """Law 1, the number of layers, and that freezing is running the model."""
    module, images = build(name).double(), picture(name, torch.float64)
    with torch.no_grad():
        assert_close(freeze(module, images).logits, module(images), rtol=1e-9, atol=1e-12)

    (found,) = pathx.explain(module, images, target=2, depth=3, width=5)
    assert found.hidden_layers == HIDDEN_LAYERS[name]
    parts = [found.attribution.abs().sum().item(), abs(found.bias), abs(found.score)]
    assert abs(found.attribution.sum().item() + found.bias - found.score) <= 1e-10 * max(parts)
    assert found.score == pytest.approx(sum(unit.contribution for unit in found.path[-1].units), rel=1e-9)


UNWRAPPED = {"alexnet", "vgg11_bn", "resnet18", "squeezenet1_0", "squeezenet1_1", "shufflenet_v2_x0_5", "mnasnet0_5"}


@pytest.mark.parametrize("name", marked([name for name in model_names() if name in HIDDEN_LAYERS], UNWRAPPED))
def test_everything_kept_is_the_gradient(name: str) -> None:
    """Law 2."""
    module, images = build(name).double(), picture(name, torch.float64).requires_grad_()
    (gradient,) = torch.autograd.grad(module(images)[0, 2], images)
    (whole,) = pathx.explain(module, images, target=2, depth="all", width="all", alpha=0.0, skips="all")
    assert_close(whole.weight, gradient[0], rtol=1e-7, atol=1e-9 * gradient.abs().max().item())


@pytest.mark.parametrize("name", marked([name for name in model_names() if family(name)], QUICK))
def test_a_model_that_is_refused(name: str) -> None:
    module = build(name)
    with pytest.raises(PathxError) as caught:
        pathx.explain(module, picture(name))
    found = re.fullmatch(r"the model is not a ReLU network: (\w+ in (\S+)) is not linear .*", str(caught.value))
    assert found is not None
    assert found[1] == REFUSED[family(name) or ""]
    module.get_submodule(found[2])


# Law 6 for torchvision's models


def traced(module: nn.Module, example: Tensor) -> nn.Module:
    return saved(torch.jit.trace(module, example))


def scripted(module: nn.Module, example: Tensor) -> nn.Module:
    return saved(torch.jit.script(module))


def saved(module: torch.jit.ScriptModule) -> nn.Module:
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def exported(module: nn.Module, example: Tensor) -> nn.Module:
    file = io.BytesIO()
    torch.export.save(torch.export.export(module, (example,)), file)
    file.seek(0)
    return torch.export.load(file).module()


FAMILIES = [
    "alexnet", "vgg11", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2", "squeezenet1_1",
    "densenet121", "googlenet", "inception_v3", "shufflenet_v2_x0_5", "mnasnet0_5", "mobilenet_v2", "regnet_x_400mf",
]  # fmt: skip


@pytest.mark.parametrize("load", [traced, scripted, exported])
@pytest.mark.parametrize("name", marked(FAMILIES, {"alexnet", "resnet18", "squeezenet1_1", "shufflenet_v2_x0_5"}))
def test_one_model_in_four_forms(name: str, load: Callable[[nn.Module, Tensor], nn.Module]) -> None:
    """One path with one set of names, whether the file comes from Python or not."""
    module, images = build(name).double(), picture(name, torch.float64)
    (expected,) = pathx.explain(module, images, target=1, depth="all", width=3, skips="all")
    (found,) = pathx.explain(load(module, images), images, target=1, depth="all", width=3, skips="all")
    assert [layer.tensors for layer in found.path] == [layer.tensors for layer in expected.path]
    for layer, other in zip(found.path, expected.path, strict=True):
        assert [(u.tensor, u.index) for u in layer.units] == [(u.tensor, u.index) for u in other.units]
    scale = expected.weight.abs().max().item()
    assert_close(found.weight, expected.weight, rtol=1e-8, atol=1e-10 * scale)


NAMES = {
    "vgg11": ["classifier.4", "classifier.1", "features.19"],
    "resnet18": ["layer4.1.relu_1", "layer4.1.relu", "layer4.0.relu_1"],
    "resnet50": ["layer4.2.relu_2", "layer4.2.relu_1", "layer4.2.relu"],
    "mobilenet_v2": ["features.18.2", "features.17.conv.1.2", "features.17.conv.0.2"],
    "squeezenet1_1": ["classifier.2", "features.12.expand1x1_activation", "features.12.expand3x3_activation"],
}


@pytest.mark.parametrize("name", marked(list(NAMES), {"resnet18", "resnet50", "mobilenet_v2", "squeezenet1_1"}))
def test_names_are_torchvisions(name: str) -> None:
    """As torchvision's feature extraction calls them, repeated calls numbered."""
    from torchvision.models.feature_extraction import get_graph_node_names

    module = build(name)
    (found,) = pathx.explain(module, picture(name), depth="all", width=1)
    names = [tensor.name for layer in found.path for tensor in layer.tensors]
    assert names[:3] == NAMES[name]
    if name != "mobilenet_v2":  # whose convolution, normalisation and ReLU6 torchvision takes for one
        assert set(names) <= set(get_graph_node_names(module)[1])
