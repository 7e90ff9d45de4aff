"""Networks that others wrote, tried against the laws. All of them: `python -m support.timm_networks FILE`."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
from support.timm_networks import walk

WORK = ["test_resnet", "mobilenetv2_050", "dla46_c", "mnasnet_050", "regnetx_002", "mobilenet_edgetpu_100"]
WORK += [
    "test_byobnet",
    "lcnet_035",
    "rexnet_100",
    "test_convnext",
    "test_efficientnet",
    "ghostnet_050",
]  # at the image
REFUSED = dict.fromkeys(["coat_tiny", "sequencer2d_s"], "multiplies two values")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WORK, *REFUSED])
def test_a_network_of_timm_keeps_the_laws_or_is_refused_for_a_reason(name: str) -> None:
    if find_spec("timm") is None:
        pytest.skip("timm is not installed")
    found = walk(name)
    assert found.broken == ""
    if name in REFUSED:
        assert REFUSED[name] in (found.refused or "")
    else:
        assert found.refused is None and found.layers > 5
