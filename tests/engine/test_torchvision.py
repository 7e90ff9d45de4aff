"""Every classifier that torchvision reports is explained: in a region, or at the image where multipliers are held."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.twins import frozen_weight
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
from pathx.engine.freeze import freeze
from pathx.models.catalogue import models
from pathx.models.named import model_names
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
    **dict.fromkeys(["squeezenet1_0", "squeezenet1_1"], 1 + 2 * 8),  # squeeze, then both expand at once, then classes
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
    **{
        f"regnet_y_{size}": 1 + 3 * blocks
        for size, blocks in {
            "400mf": 16, "800mf": 14, "1_6gf": 27, "3_2gf": 21, "8gf": 17, "16gf": 18, "32gf": 20, "128gf": 27,
        }.items()
    },
    **{f"convnext_{size}": 27 + 9 for size in ("small", "base", "large")},  # one GELU to a block
    "convnext_tiny": 9 + 9,
    # stem, blocks that widen nothing, two in every other block, head
    **{
        f"efficientnet_b{number}": 1 + narrow + 2 * (blocks - narrow) + 1
        for number, (blocks, narrow) in enumerate(
            [(16, 1), (23, 2), (23, 2), (26, 2), (32, 2), (39, 3), (45, 3), (55, 4)]
        )
    },
    "efficientnet_v2_s": 1 + (2 + 4 + 4) + 2 * (6 + 9 + 15) + 1,  # one in a fused block
    "efficientnet_v2_m": 1 + (3 + 5 + 5) + 2 * (7 + 14 + 18 + 5) + 1,
    "efficientnet_v2_l": 1 + (4 + 7 + 7) + 2 * (10 + 19 + 25 + 7) + 1,
    "maxvit_t": 1 + 4 * (2 + 2 + 5 + 2) + 1,  # stem; two in the convolutions and one in either MLP; tanh in the head
    "mobilenet_v3_large": 1 + 1 + 2 * 14 + 2,
    "mobilenet_v3_small": 1 + 1 + 2 * 10 + 2,
    **{f"swin_{version}t": 2 + 2 + 6 + 2 for version in ("", "v2_")},  # one GELU to an MLP
    **{f"swin_{version}{size}": 2 + 2 + 18 + 2 for version in ("", "v2_") for size in "sb"},
    **{f"vit_{size}": blocks for size, blocks in {"b_16": 12, "b_32": 12, "l_16": 24, "l_32": 24, "h_14": 32}.items()},
}  # fmt: skip

# Families that multiply by what they compute: exact at the image.
AT_THE_IMAGE = ("convnext", "efficientnet", "maxvit", "mobilenet_v3", "regnet_y", "swin", "vit")

# One of each kind runs every time, `alexnet`, `convnext_tiny` and `vit_b_32` in CI, the others with `pytest -m slow`.
QUICK = {
    "resnet18", "squeezenet1_1", "densenet121", "googlenet", "shufflenet_v2_x0_5", "mobilenet_v2",
    "mobilenet_v3_small", "regnet_y_400mf", "swin_t",
}  # fmt: skip


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


def test_every_name_is_known() -> None:
    """A name that a new torchvision brings fails here until its layers are counted."""
    assert sorted(model_names()) == sorted(HIDDEN_LAYERS)


def test_the_catalogue_says_the_same() -> None:
    entries = {entry.name: entry for entry in models(refused=True)}
    assert {name: entry.hidden_layers for name, entry in entries.items()} == HIDDEN_LAYERS
    assert not [entry.name for entry in entries.values() if entry.refused is not None]


@pytest.mark.parametrize("name", marked(model_names(), QUICK))
def test_a_model_that_is_explained(name: str) -> None:
    """Law 1, the number of layers, and that freezing is running the model."""
    module, images = build(name).double(), picture(name, torch.float64)
    with torch.no_grad():
        frozen = freeze(module, images)
        assert_close(frozen.logits, module(images), rtol=1e-9, atol=1e-12)
    assert frozen.network.reading.exact == ("image" if name.startswith(AT_THE_IMAGE) else "region")

    (found,) = pathx.explain(module, images, target=2, depth=3, width=5, skips="adjacent")
    assert found.hidden_layers == HIDDEN_LAYERS[name]
    parts = [found.attribution.abs().sum().item(), abs(found.bias), abs(found.score)]
    assert abs(found.attribution.sum().item() + found.bias - found.score) <= 1e-10 * max(parts)
    assert found.score == pytest.approx(sum(unit.contribution for unit in found.path[-1].units), rel=1e-9)


UNWRAPPED = {"squeezenet1_1", "mobilenet_v3_small"}


@pytest.mark.parametrize("name", marked(model_names(), UNWRAPPED))
def test_everything_kept_is_the_gradient(name: str) -> None:
    """Law 2."""
    module, images = build(name).double(), picture(name, torch.float64)
    gradient = frozen_weight(module, images[0], 2)  # with every multiplier detached, where there is one
    (whole,) = pathx.explain(module, images, target=2, depth="all", width="all", alpha=0.0, skips="all")
    assert_close(whole.weight, gradient, rtol=1e-7, atol=1e-9 * gradient.abs().max().item())


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


@pytest.mark.parametrize("load", [traced, scripted, exported])
def test_one_model_in_four_forms(load: Callable[[nn.Module, Tensor], nn.Module]) -> None:
    """One path with one set of names, whether the file comes from Python or not."""
    module, images = build("squeezenet1_1").double(), picture("squeezenet1_1", torch.float64)
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
    "squeezenet1_1": [
        *("features.12.expand1x1_activation", "features.12.expand3x3_activation", "features.12.squeeze_activation"),
    ],
    "vit_b_32": [f"encoder.layers.encoder_layer_{number}.mlp.1" for number in (11, 10, 9)],
}


@pytest.mark.parametrize("name", marked(list(NAMES), {"resnet18", "squeezenet1_1"}))
def test_names_are_torchvisions(name: str) -> None:
    """As torchvision's feature extraction calls them, repeated calls numbered."""
    from torchvision.models.feature_extraction import get_graph_node_names

    module = build(name)
    (found,) = pathx.explain(module, picture(name), depth="all", width=1)
    names = [tensor.name for layer in found.path for tensor in layer.tensors]
    assert names[:3] == NAMES[name]
    if name != "mobilenet_v2":  # whose convolution, normalisation and ReLU6 torchvision takes for one
        assert set(names) <= set(get_graph_node_names(module)[1])
