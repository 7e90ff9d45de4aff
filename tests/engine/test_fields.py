"""Receptive fields and places, by hand and against gradients: maps, tokens, windows of tokens."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from support.small import RELUS, images, network
from torch import Tensor, nn
from torch.testing import assert_close

import pathx
import pathx.maps
from pathx.engine.fields import boxes, extent, find_places
from pathx.engine.freeze import freeze
from pathx.engine.network import Gate, Network
from pathx.engine.units import unit_maps
from pathx.engine.window import unravel
from pathx.explanation import Grid, LayerTensor

SIZE = (3, 32, 32)


def units(*index: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(torch.tensor(one) for one in zip(*index, strict=True))


def test_the_fields_of_a_network_are_multiplied_out() -> None:
    """Convolution of 3 with stride 2 and padding 1, pooling of 2, convolution of 3: 3, 5, 13 wide, in steps of 2, 4, 4."""
    layers = nn.Conv2d(1, 2, 3, 2, 1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(2, 2, 3), nn.ReLU()
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * 4 * 4, 2)).eval()
    network = freeze(model, torch.zeros(1, 1, 24, 24)).network
    below, above = (network.fields[gate.source] for layer in network.layers for gate in layer)
    assert [extent(field, (1, 24, 24)) for field in (below, above)] == [(3, 3), (13, 13)]
    assert boxes(above, units((0, 0, 0), (1, 3, 2)), (1, 24, 24)).tolist() == [[0, 0, 12, 12], [7, 11, 20, 24]]
    assert find_places(below, (2, 12, 12), (1, 24, 24)) == (((0.5, 2.0), (0.5, 2.0)), None)  # no border moves them
    assert find_places(above, (2, 4, 4), (1, 24, 24)) == (((5.5, 4.0), (5.5, 4.0)), None)


def test_what_is_no_image_has_no_box_and_no_place() -> None:
    model = nn.Sequential(nn.Linear(12, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    network = freeze(model, torch.zeros(1, 12)).network
    assert network.fields == {} and network.placed == (False,)
    assert boxes(None, units((4,), (5,)), (12,)).tolist() == [[], []]
    assert extent(None, (12,)) == ()


# --- networks of tokens -----------------------------------------------------------------------------------------------


class Block(nn.Module):
    """A transformer's block over tokens (B, N, C)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 6), nn.GELU(), nn.Linear(6, width))

    def attend(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        return self.out((q @ k.transpose(-2, -1)).softmax(-1).matmul(v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attend(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Windows(Block):
    """The same within windows of 2 x 2 tokens of a map (B, H, W, C), moved by `shift`."""

    def __init__(self, width: int, shift: int) -> None:
        super().__init__(width)
        self.shift = shift

    def attend(self, x: Tensor) -> Tensor:
        x = x.roll((-self.shift, -self.shift), (1, 2))
        batch, height, width, channels = x.shape
        windows = x.view(batch, height // 2, 2, width // 2, 2, channels).transpose(2, 3).reshape(-1, 4, channels)
        windows = super().attend(windows).view(batch, height // 2, width // 2, 2, 2, channels)
        return windows.transpose(2, 3).reshape(x.shape).roll((self.shift, self.shift), (1, 2))


class Tokens(nn.Module):
    """A small network of tokens: patches of 8 x 8 pixels, two blocks, a head.

    Args:
        kind: "class" and "registers" have tokens beside the patches, in front or behind; "windows" works in windows.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.patches = nn.Conv2d(3, 8, 8, 8)
        self.first = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
        self.extra = nn.Parameter(torch.randn(1, 2, 8))
        self.blocks = nn.ModuleList([Windows(8, 0), Windows(8, 1)] if kind == "windows" else [Block(8), Block(8)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x)
        x = x.permute(0, 2, 3, 1) if self.kind == "windows" else x.flatten(2).transpose(1, 2)
        if self.kind in ("class", "registers"):
            extra = self.extra.expand(len(x), -1, -1)
            x = torch.cat([extra, x] if self.kind == "class" else [x, extra], 1)
        x = x + self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0] if self.kind == "class" else x.flatten(1, -2).mean(1))


class Merging(nn.Module):
    """Swin's patch merging, in either of its spellings, between two layers of maps with their channels last."""

    def __init__(self, spelling: str) -> None:
        super().__init__()
        self.spelling = spelling
        self.patches, self.merge, self.head = nn.Conv2d(3, 4, 4, 4), nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.patches(x).permute(0, 2, 3, 1))
        if self.spelling == "slices":
            x = torch.cat([x[:, a::2, b::2] for b in (0, 1) for a in (0, 1)], -1)
        else:
            x = x.unflatten(1, (-1, 2)).unflatten(3, (-1, 2)).permute(0, 1, 3, 4, 2, 5).flatten(3)
        return self.head(F.gelu(self.merge(x)).mean((1, 2)))


class Mixer(nn.Module):
    """MLP-Mixer: an MLP over the tokens of every channel, and one over the channels of every token."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.tokens, self.back = nn.Conv2d(3, 4, 8, 8), nn.Linear(16, 5), nn.Linear(5, 16)
        self.channels, self.out, self.head = nn.Linear(4, 6), nn.Linear(6, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2)
        x = x + self.back(F.gelu(self.tokens(x)))
        x = x.transpose(1, 2)
        return self.head((x + self.out(F.gelu(self.channels(x)))).mean(1))


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{kind: lambda kind=kind: Tokens(kind) for kind in ("plain", "class", "registers", "windows")},
    **{f"merging, {spelling}": lambda spelling=spelling: Merging(spelling) for spelling in ("slices", "views")},
    "mixer": Mixer,
}


def seeded(make: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return make().eval()


def network_of(model: nn.Module) -> Network:
    return freeze(model, torch.randn(1, *SIZE, generator=torch.Generator().manual_seed(3))).network


def gates_of(network: Network) -> list[Gate]:
    return [gate for layer in network.layers for gate in layer]


def cell_of(network: Network, gate: Gate) -> Tensor:
    """For every unit, (top, left, bottom, right) of the pixels that its cell of the grid covers; NaN for none."""
    tensor = network.tensor(gate)
    cells, (_, width) = tensor.cells(torch.arange(gate.units))
    assert tensor.places is not None
    (top, down), (left, across) = tensor.places
    y, x = top + down * (cells // width), left + across * (cells % width)
    corners = torch.stack([y - down / 2, x - across / 2, y + down / 2, x + across / 2], 1)
    return corners.masked_fill(cells[:, None] < 0, torch.nan).reshape(*gate.shape, 4)


def patches(count: int) -> Tensor:
    """(count, count, 4) the pixels that patches cover which cut the image into as many rows and columns."""
    side = SIZE[1] // count
    y, x = torch.meshgrid(torch.arange(count) * side, torch.arange(count) * side, indexing="ij")
    return torch.stack([y, x, y + side, x + side], -1).float()


@pytest.mark.parametrize("kind", ["plain", "class", "registers", "windows"])
def test_tokens_are_where_their_patches_are(kind: str) -> None:
    network = network_of(seeded(lambda: Tokens(kind)))
    gates = gates_of(network)
    assert len(gates) == 3 and all(network.placed)
    expected = patches(4).reshape(16, 1, 4)
    nowhere = torch.full((2, 1, 4), torch.nan)
    if kind in ("class", "registers"):
        expected = torch.cat([nowhere, expected] if kind == "class" else [expected, nowhere])
    for gate in gates:
        found = cell_of(network, gate).reshape(len(expected), -1, 4)
        torch.testing.assert_close(found, expected.expand_as(found), equal_nan=True)


@pytest.mark.parametrize("spelling", ["slices", "views"])
def test_merged_patches_are_larger_patches(spelling: str) -> None:
    network = network_of(seeded(lambda: Merging(spelling)))
    for gate, count in zip(gates_of(network), (8, 4), strict=True):
        found = cell_of(network, gate)
        torch.testing.assert_close(found, patches(count)[:, :, None].expand_as(found))


def test_a_mixers_hidden_tokens_have_no_place() -> None:
    network = network_of(seeded(Mixer))
    assert [network.tensor(gate).places is not None for gate in gates_of(network)] == [False, True]
    assert network.placed == (True, False)
    (above,) = network.layers[1]
    assert network.tensor(above).grid == Grid(4, 4, 6)


@pytest.mark.parametrize("name", MODELS)
def test_nothing_is_seen_beside_the_field(name: str) -> None:
    """Law 12, for every unit of every layer: what the pixels add to it is zero outside."""
    model = seeded(MODELS[name]).double()
    image = torch.randn(1, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    frozen = freeze(model, image)
    for gate in gates_of(frozen.network):
        wanted = [(0, gate.name, [int(i) for i in unravel(unit, gate.shape)]) for unit in range(0, gate.units, 7)]
        seen = unit_maps(frozen, wanted).abs().sum(1)
        index = unravel(torch.arange(0, gate.units, 7), gate.shape)
        found = boxes(frozen.network.fields[gate.source], index, SIZE)
        for pixels, (left, top, right, bottom) in zip(seen, found.tolist(), strict=True):
            inside = pixels[top:bottom, left:right].clone()
            assert pixels.count_nonzero() == inside.count_nonzero()
            if inside.numel():  # and it is no larger than it must be
                assert all(edge.any() for edge in (inside[0], inside[-1], inside[:, 0], inside[:, -1]))


@pytest.mark.parametrize("name", MODELS)
def test_the_path_map_adds_up_to_what_units_with_a_place_contribute(name: str) -> None:
    """Law 10."""
    model = seeded(MODELS[name]).double()
    image = torch.randn(1, *SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    (found,) = pathx.explain(model, image, depth="all", width=40, alpha=0.0)
    assert found.mapped
    for layer in found.path:
        tensor = layer.tensors[0]
        if tensor.places is None:
            continue
        beside = {"class": {0, 1}, "registers": {16, 17}}.get(name, set())
        expected = sum(unit.contribution for unit in layer.units if unit.index[0] not in beside)
        assert float(found.path_map(layer.layer).sum()) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        side = tensor.places[0][1]
        for unit in layer.units[:5]:
            if unit.index[0] in beside:
                continue
            alone = pathx.PathLayer(layer.layer, False, layer.tensors, (unit,))
            part = pathx.maps.enlarge(pathx.maps.contribution_grids(alone), (32, 32)) / unit.contribution
            cell = unit.index[:2] if len(unit.index) == 3 else divmod(unit.index[0] - (2 if name == "class" else 0), 4)
            y, x = (int(side * place + side / 2) for place in cell)
            assert part[y, x] >= 0.99 * part.max()  # brightest in the middle of its patch


def test_depth_in_maps_counts_layers_of_tokens() -> None:
    model, image = seeded(Mixer), torch.zeros(1, *SIZE)
    assert pathx.explain(model, image, depth="maps:2")[0].depth == 1  # there is but one
    model = seeded(lambda: Tokens("class"))
    assert pathx.explain(model, image, depth="maps:2")[0].depth == 2


def test_a_grid_survives_its_document() -> None:
    network = network_of(seeded(lambda: Tokens("class")))
    for gate in gates_of(network):
        tensor = network.tensor(gate)
        assert LayerTensor.read(tensor.document()) == tensor
        cells, size = tensor.cells(torch.arange(gate.units))
        assert (cells[: 2 * gate.shape[1]] == -1).all() and prod(size) == 16


@st.composite
def some_units(draw: st.DrawFn) -> tuple[int, str, tuple[int, ...]]:
    name = draw(st.sampled_from(sorted(RELUS)))
    return draw(st.integers(0, 2)), name, tuple(draw(st.integers(0, size - 1)) for size in RELUS[name])


@given(st.lists(some_units(), min_size=1, max_size=6), st.integers(0, 20))
def test_the_maps_are_gradient_times_input(wanted: list[tuple[int, str, tuple[int, ...]]], seed: int) -> None:
    model, inputs = network(), images(3, seed)
    found = unit_maps(freeze(model, inputs), wanted)
    for (number, name, index), own in zip(wanted, found, strict=True):
        image = inputs[number : number + 1].clone().requires_grad_()
        before = model[: int(name)](image)
        (gradient,) = torch.autograd.grad(before[(0, *index)], image)
        assert_close(own, (gradient * image).detach()[0])
