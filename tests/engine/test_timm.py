"""Networks that others wrote, tried against the laws. All of them: `python -m support.timm_networks FILE`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from support.timm_networks import trace, try_laws

WORK = ["test_resnet", "mobilenetv2_050", "dla46_c", "mnasnet_050", "regnetx_002", "mobilenet_edgetpu_100"]
WORK += [
    "test_byobnet",
    "lcnet_035",
    "test_convnext",
    "test_efficientnet",
    "test_vit",
    "swin_s3_tiny_224",
]  # at the image
REFUSED = {"coat_tiny": "multiplies two values", "sequencer2d_s": "mkldnn_rnn_layer"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WORK, *REFUSED])
def test_a_network_of_timm_keeps_the_laws_or_is_refused_for_a_reason(name: str) -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    found = trace(name)
    if name in REFUSED:
        assert REFUSED[name] in (found.refused or "")
    else:
        assert found.refused is None and (found.hidden_layers or 0) > 5
        assert try_laws(found).laws == "hold"
