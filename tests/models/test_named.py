"""torchvision's models by name: names that are nearly right, weights by name, and their preprocessing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pathx.errors import PathxError
from pathx.models.load import as_name, load_model
from pathx.models.named import architecture, model_names, no_initialisation, weights_file


def refusal(*arguments: Any, **options: Any) -> PathxError:
    with pytest.raises(PathxError) as caught:
        load_model(*arguments, **options)
    return caught.value


def test_names_are_forgiving_and_near_misses_are_suggested() -> None:
    assert load_model("SqueezeNet1-1").name == "squeezenet1_1"
    assert str(refusal("resnet19")).startswith("there is no model called 'resnet19': did you mean resnet1")
    assert str(refusal("xyz")) == "there is no model called 'xyz': `pathx models` lists the names, or give a file"
    for name, kind in [
        ("fcn_resnet50", "segmentation"),
        ("ssd300_vgg16", "detection"),
        ("r3d_18", "video"),
        ("quantized_resnet18", "quantization"),
        ("raft_small", "optical flow"),
    ]:
        message = f"{name} is one of torchvision's {kind} models, and pathx explains classifiers of single images: wrap it in a"
        assert str(refusal(name)).startswith(message)


def test_untrained_weights_are_reproducible_and_leave_the_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    first, second = (load_model("shufflenet_v2_x0_5", weights="none") for _ in range(2))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert first.weights == "none"
    assert first.sha256 == second.sha256
    for name, value in first.module.state_dict().items():
        assert torch.equal(value, second.module.state_dict()[name])
    assert first.labels[1] == "goldfish"


def test_options_change_torchvisions_preprocessing() -> None:
    theirs = load_model().preprocessing
    assert load_model(input_size=[3, 224, 224]).preprocessing == theirs
    ours = load_model(input_size=[3, 96, 160], mean=0.5).preprocessing
    assert (ours.input_size, ours.mean, ours.std, ours.resize) == ((3, 96, 160), (0.5, 0.5, 0.5), theirs.std, None)


def test_unknown_weights_list_the_known_ones() -> None:
    assert str(refusal("resnet50", weights="V3")) == (
        "resnet50 has no weights called 'V3', nor is that a file: give one of IMAGENET1K_V1, IMAGENET1K_V2, DEFAULT, "
        "none, or a state dict (.safetensors or .pth)"
    )


def test_a_structure_needs_no_weights() -> None:
    module, size = architecture("squeezenet1_1")
    assert size == (3, 224, 224) and not module.training
    assert module(torch.zeros(1, *size)).shape == (1, 1000)
    with no_initialisation():
        for draw in (
            torch.nn.init.normal_,
            torch.nn.init.uniform_,
            torch.nn.init.kaiming_uniform_,
            torch.nn.init.trunc_normal_,
        ):
            assert not draw(torch.ones(3, 3)).any()
    assert torch.nn.init.normal_(torch.zeros(30)).any()  # outside of it torch does as it always does


def test_names_and_files_are_torchvisions() -> None:
    assert as_name(" ResNet-18 ") == "resnet_18" and "resnet18" in model_names()
    assert weights_file("resnet18") == "resnet18-f37072fd.pth"
