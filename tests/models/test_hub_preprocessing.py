"""Images are prepared as the hubs' own libraries prepare them, or the network is refused with the key that is not followed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import pathx.models.torchvision  # noqa: F401  (before timm and transformers, which import torchvision)
from pathx.errors import PathxError
from pathx.models.hubs import preprocessing_of, timm_preprocessing

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def photos() -> list[Image.Image]:
    """Wide and high, with sides that are odd and even."""
    cat = Image.open(EXAMPLES / "cat.png").convert("RGB")
    return [cat, cat.crop((50, 50, 150, 181))]


# transformers

YES_AND_NO = (True, False)
EDGES = ({"shortest_edge": 77}, {"height": 77, "width": 77}, {"height": 65, "width": 80})
CROPS = (64, {"height": 61, "width": 64}, {"height": 90, "width": 95})
SIZES: tuple[Any, ...] = (
    *(64, {"height": 65, "width": 65}, *EDGES, {"shortest_edge": 400}, {"longest_edge": 70}),
    *({"shortest_edge": 60, "longest_edge": 70}, {"max_height": 60, "max_width": 70}),
)
FLAGS = ("rescale", "resize", "normalize", "center_crop", "flip_channel_order", "pad", "convert_rgb")
CHANGES: list[dict[str, Any]] = [
    *({}, {"do_rescale": False, "do_normalize": False}, {"rescale_offset": True, "do_normalize": False}),
    *({key: value} for key in (*(f"do_{flag}" for flag in FLAGS), "mine") for value in YES_AND_NO),
    *({"rescale_factor": value} for value in (1 / 127.5, 0.5)),
    *({"rescale_offset": value, "include_top": top} for value in YES_AND_NO for top in YES_AND_NO),
    *({"resample": value} for value in range(6)),
    *({"size": value} for value in SIZES),
    *({"size": size, "crop_size": crop, "do_center_crop": True} for size in EDGES for crop in CROPS),
    *({"crop_pct": value, "size": {"shortest_edge": edge}} for value in (0.875, 0.6, 1.0) for edge in (63, 64, 384)),
    {"image_mean": [0.1, 0.2, 0.3], "image_std": [0.4, 0.5, 0.6]},
    {"image_mean": 0.4, "image_std": 0.3},
]


def processors() -> list[str]:
    """The image processors of transformers that classifiers use."""
    auto = pytest.importorskip("transformers.models.auto")
    used = auto.modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES
    known = auto.image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES
    classes = (known.get(name) for name in used)
    return sorted({one["torchvision"] for one in classes if isinstance(one, dict) and one.get("torchvision")})


FOLLOWED = {
    *("BeitImageProcessor", "BitImageProcessor", "CLIPImageProcessor", "ConvNextImageProcessor", "DeiTImageProcessor"),
    *("EfficientNetImageProcessor", "LevitImageProcessor", "MobileNetV1ImageProcessor", "MobileNetV2ImageProcessor"),
    *("MobileViTImageProcessor", "PvtImageProcessor", "SiglipImageProcessor", "ViTImageProcessor"),
}


def test_processors_of_transformers(photos: list[Image.Image]) -> None:
    transformers = pytest.importorskip("transformers")
    wrong, followed, compared = [], set(), 0
    for name in processors():
        for change in CHANGES:
            try:
                processor = getattr(transformers, name)(**change)
                ours = preprocessing_of(processor)
                wanted = [processor(photo, return_tensors="pt")["pixel_values"][0].float() for photo in photos]
            except Exception:  # refused, or transformers does not take it, so nobody has it
                continue
            followed.add(name)
            compared += 1
            # Pillow and torchvision's tensors round some resized pixels to levels (of 255) that lie beside each other;
            # a crop that starts one pixel off is several levels away on average.
            levels = [
                ((ours(photo) - one).abs() * 255 * torch.tensor(ours.std).view(-1, 1, 1)).mean()
                if ours(photo).shape == one.shape
                else torch.tensor(torch.inf)
                for photo, one in zip(photos, wanted, strict=True)
            ]
            if max(levels) > 0.25:
                wrong.append(f"{name}({change}): {[round(float(level), 2) for level in levels]} levels")
    assert not wrong, "\n".join([f"{len(wrong)} of {compared}", *wrong])
    assert followed == FOLLOWED


# timm


def configurations(step: int) -> list[dict[str, Any]]:
    """The ways of preparing images of every so many-th pretrained network of timm, and a few that none has."""
    timm = pytest.importorskip("timm")
    found = {}
    for name in timm.list_pretrained()[::step]:
        own = timm.get_pretrained_cfg(name).to_dict()
        for test in (False, True):
            config = timm.data.resolve_data_config(pretrained_cfg=own, use_test_size=test)
            found[str(sorted(config.items()))] = config
    plain = timm.data.resolve_data_config(pretrained_cfg=timm.get_pretrained_cfg("resnet18").to_dict())
    changes = [
        {"crop_mode": mode, "crop_pct": crop} for mode in ("center", "squash", "border") for crop in (1.0, 0.9, 0.3)
    ]
    changes += [{"input_size": (3, 160, 224)}, {"input_size": (3, 160, 224), "crop_mode": "squash", "crop_pct": 1.0}]
    return [*found.values(), *({**plain, **change} for change in changes)]


@pytest.mark.parametrize("step", [10, pytest.param(1, marks=pytest.mark.slow)])
def test_configurations_of_timm(photos: list[Image.Image], step: int) -> None:
    timm = pytest.importorskip("timm")
    wrong, compared, refused = [], 0, 0
    for config in configurations(step):
        try:
            ours = timm_preprocessing(config)
        except PathxError:
            refused += 1
            continue
        theirs = timm.data.create_transform(**config, is_training=False)
        compared += 1
        for photo in photos:
            if not torch.allclose(ours(photo), theirs(photo), atol=1e-5):
                wrong.append(str(config))
                break
    assert not wrong, "\n".join([f"{len(wrong)} of {compared}", *wrong])
    assert compared > 20 * refused or step > 1
