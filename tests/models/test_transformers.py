"""Every image classifier of transformers, built small: explained by the laws, or refused by name."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

import pytest
import torch
from support.twins import frozen_weight
from torch import Tensor, nn

import pathx
from pathx import PathxError
from pathx.models.hubs import library

CLASSES = 5
SMALL: dict[str, Any] = {
    **{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48},
    **{"image_size": 64, "patch_size": 16, "num_labels": CLASSES},
}
STAGES = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 2, 1]}
PYRAMID = {**STAGES, "num_attention_heads": [1, 2, 2, 4], "mlp_ratios": [2, 2, 2, 2]}
WINDOWS = {"patch_size": 4, "embed_dim": 8, "depths": [1, 2, 1, 1], "num_heads": [1, 2, 2, 4], "window_size": 2}
VISION = {"vision_config": {key: SMALL[key] for key in SMALL if key != "num_labels"}}
OWN: dict[str, dict[str, Any]] = {
    "bit": {**STAGES, "embedding_size": 8, "num_groups": 4},
    "clip": VISION,
    "convnext": {**STAGES, "patch_size": 4},
    "convnextv2": {**STAGES, "patch_size": 4},
    "cvt": {"embed_dim": [8, 16, 24], "num_heads": [1, 2, 3], "depth": [1, 2, 3]},
    "donut-swin": WINDOWS,
    "efficientnet": {
        **{"in_channels": [32, 16], "out_channels": [16, 24], "kernel_sizes": [3, 5], "strides": [1, 2]},
        **{"expand_ratios": [1, 6], "num_block_repeats": [1, 2], "hidden_dim": 1280},
        **{"width_coefficient": 1.0, "depth_coefficient": 1.0},
    },
    "focalnet": {**WINDOWS, "hidden_sizes": [8, 16, 32, 64]},
    "hgnet_v2": {
        **{"stem_channels": [3, 8, 8], "stage_in_channels": [8, 8, 16, 16], "stage_mid_channels": [8, 8, 8, 8]},
        **{
            "stage_out_channels": [8, 16, 16, 32],
            "hidden_sizes": [8, 16, 16, 32],
            "stage_numb_of_layers": [2, 2, 2, 2],
        },
    },
    "hiera": {
        "image_size": [64, 64],
        "patch_size": [7, 7],
        "embed_dim": 8,
        "depths": [1, 1, 2, 1],
        "num_heads": [1, 2, 2, 4],
    },
    "imagegpt": {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 9, "n_positions": 64},
    "levit": {
        "hidden_sizes": [16, 32, 48],
        "num_attention_heads": [1, 2, 3],
        "depths": [1, 1, 1],
        "key_dim": [8, 8, 8],
    },
    "metaclip_2": VISION,
    "mobilenet_v1": {"depth_multiplier": 0.25},
    "mobilenet_v2": {"depth_multiplier": 0.25},
    "mobilevit": {"patch_size": 2, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 16, 16, 16, 32]},
    "mobilevitv2": {"patch_size": 2, "width_multiplier": 0.25},
    "perceiver": {
        **{"num_latents": 8, "d_latents": 16, "num_self_attends_per_block": 2, "image_size": 64, "d_model": 16},
        **{"num_self_attention_heads": 2, "num_cross_attention_heads": 1},
    },
    "poolformer": {**STAGES, "patch_size": 4},
    "pp_lcnet": {"scale": 0.25},
    "pvt": {**PYRAMID, "patch_size": 4},
    "pvt_v2": PYRAMID,
    "regnet": {**STAGES, "embedding_size": 8, "groups_width": 8},
    "resnet": {**STAGES, "embedding_size": 8},
    "segformer": PYRAMID,
    "shieldgemma2": {
        "vision_config": VISION["vision_config"],
        "text_config": {
            **{"hidden_size": 16, "num_hidden_layers": 1, "intermediate_size": 16, "num_attention_heads": 2},
            **{"num_key_value_heads": 1, "head_dim": 8, "vocab_size": 262_150},
        },
    },
    "siglip": VISION,
    "siglip2": VISION,
    "swiftformer": {"depths": [1, 1, 1, 1], "embed_dims": [8, 16, 24, 32]},
    "swin": WINDOWS,
    "swinv2": WINDOWS,
    "textnet": {
        **{"hidden_sizes": [8, 8, 8, 16, 16], "stem_out_channels": 8, "image_size": [64, 64]},
        **{"depths": [1, 1, 1, 1], "conv_layer_strides": [[2], [2], [2], [2]]},
        **{"conv_layer_kernel_sizes": [[[3, 3]], [[3, 3]], [[3, 3]], [[3, 3]]]},
    },
    "timm_wrapper": {"architecture": "test_resnet"},
}
TWO = "multiplies two values that it computed from the image"
TOKENS = "looks its input up in an embedding"
REFUSED = {
    "focalnet": TWO,
    "imagegpt": TOKENS,
    "shieldgemma2": TOKENS,
    "siglip2": "cannot run on an input of shape",  # takes patches, and where they were
    "swiftformer": TWO,
}
NOT_BUILT = {
    "dinat": "natten",  # needs a library of compiled kernels
}
IN_A_REGION = {"hgnet_v2", "mobilenet_v1", "mobilenet_v2", "resnet", "textnet", "timm_wrapper"}


PLAIN = {"beit", "data2vec-vision", "deit", "dinov2", "dinov2_with_registers", "ijepa", "vit", "vit_msn"}
KINDS = sorted({*OWN, *PLAIN, *NOT_BUILT})


def classifiers() -> dict[str, tuple[str, ...]]:
    """The classes of image classifiers that transformers has, by the type of their configuration."""
    pytest.importorskip("transformers")
    library("transformers")
    named = import_module("transformers.models.auto.modeling_auto").MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    return {kind: (names,) if isinstance(names, str) else tuple(names) for kind, names in named.items()}


def test_all_of_them_are_tried() -> None:
    assert {*classifiers()} == {*KINDS}


def build(kind: str, name: str) -> nn.Module:
    transformers = library("transformers")
    config_class = transformers.CONFIG_MAPPING[kind]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        known = config_class().to_dict()
    own = OWN.get(kind, {})
    settings = {key: value for key, value in SMALL.items() if key in known or key == "num_labels"} | own
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return getattr(transformers, name)(config_class(**settings)).double().eval()


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_classifier_keeps_the_laws_or_is_refused_by_name(kind: str) -> None:
    images = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1)).double()
    for name in classifiers()[kind]:
        if kind in NOT_BUILT:
            with pytest.raises(ImportError, match=NOT_BUILT[kind]):
                build(kind, name)
        elif kind in REFUSED:
            with pytest.raises(PathxError, match=REFUSED[kind]):
                pathx.explain(build(kind, name), images)
        else:
            keeps_the_laws(build(kind, name), images, kind)


def keeps_the_laws(module: nn.Module, images: Tensor, kind: str) -> None:
    (few,) = pathx.explain(module, images, target=1, width=3)
    (whole,) = pathx.explain(module, images, target=1, depth=1, width="all", alpha=0.0)
    for found in (few, whole):
        scale = max(float(found.attribution.abs().sum()), abs(found.bias), abs(found.score))
        assert abs(float(found.attribution.sum()) + found.bias - found.score) <= 1e-10 * scale
    assert whole.exact == ("region" if kind in IN_A_REGION else "image")
    rounding = 1e-5 if kind == "perceiver" else 1e-8  # norms cancel all but 1e-8 of what comes down to its pixels
    weight = frozen_weight(module, images[0], 1)
    assert float((whole.weight - weight).abs().max()) <= rounding * float(weight.abs().max())
    with torch.no_grad():
        torch.testing.assert_close(module(images)[0][0], whole.logits, rtol=rounding, atol=rounding)
