"""Depths that nobody asked for: enough layers of maps, and never more layers than there are."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn_networks import networks
from support.networks import Network
from torch import nn

import pathx
from pathx.detail import DEFAULT, DETAILS, Detail
from pathx.engine.explain import check_depth
from pathx.engine.freeze import freeze

pytestmark = pytest.mark.usefixtures("one_thread")


@settings(max_examples=60)
@given(networks(), st.integers(1, 4))
def test_a_depth_has_its_maps_if_the_network_has_them(network: Network, count: int) -> None:
    traced = freeze(network.module(), network.images(1, 0)).network
    depth, placed = check_depth(f"maps:{count}", traced), traced.placed
    assert 1 <= depth <= traced.depth == len(placed)
    if any(placed):
        assert sum(placed[:depth]) == min(count, sum(placed)) and placed[depth - 1]
    assert traced.depth <= 2 * check_depth("half", traced) <= traced.depth + 1


@settings(max_examples=20)
@given(networks(), st.sampled_from(list(DETAILS.values())))
def test_every_point_suits_every_network(network: Network, detail: Detail) -> None:
    settings = {"depth": detail.depth, "width": detail.width, "skips": detail.skips}
    (found,) = pathx.explain(network.module(), network.images(1, 0), **settings)
    assert found.depth == len(found.path) <= found.hidden_layers


def test_vectors_are_run_through() -> None:
    body = [nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Conv2d(2, 2, 3), nn.ReLU(), nn.Flatten()]
    head = [nn.Linear(32, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3)]
    model, images = nn.Sequential(*body, *head).eval(), torch.randn(1, 1, 8, 8)
    assert freeze(model, images).network.placed == (False, False, False, True, True)
    (found,) = pathx.explain(model, images, depth=DEFAULT.depth, width=64)
    assert found.depth == 5 and found.mapped == (2, 1)
    flat = nn.Sequential(nn.Flatten(), *[nn.Linear(64, 32), *head]).eval()
    assert check_depth(DEFAULT.depth, freeze(flat, images).network) == 3


@pytest.mark.parametrize("depth", ["maps:0", "maps:", "maps:-1", "halves", "maps:1.5"])
def test_what_is_no_depth_is_refused(depth: str) -> None:
    with pytest.raises(pathx.PathxError, match="is out of range"):
        pathx.explain(
            nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval(),
            torch.randn(1, 1, 2, 2),
            depth=depth,
        )
