"""Running lists of the best places, compared with all places of all images kept and sorted."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.small import images, network
from torch import Tensor

import pathx
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.explanation import LayerTensor
from pathx.units.gather import NOBODY, Gathered

RELUS = {1: LayerTensor("1", (5, 8, 8)), 2: LayerTensor("3", (6, 6, 6)), 3: LayerTensor("6", (12,))}
PATH: dict[str, Any] = {"depth": 2, "width": 7, "alpha": 0.0, "skips": "adjacent"}


def gathered(inputs: Tensor, by: str, top: int, batch: int, numbers: list[int] | None = None) -> Gathered:
    layers = {layer: [RELUS[layer]] for layer in (2, 3)}
    made = Gathered.empty(layers, by=by, top=top, classes=4)
    order = numbers if numbers is not None else list(range(len(inputs)))
    model = network()
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        frozen = freeze(model, inputs[some])
        targets = frozen.logits.argmax(1).tolist()
        made.see(frozen, explain_frozen(frozen, list(enumerate(targets)), **PATH), dict.fromkeys(some, ""))
    return made


def everything(inputs: Tensor, by: str) -> dict[tuple[str, int], list[tuple[float, int, int]]]:
    """By ReLU and channel, (value, image, unit) of the best unit of every image that has one, best first."""
    model = network()
    found: dict[tuple[str, int], list[tuple[float, int, int]]] = {}
    for number, image in enumerate(inputs):
        best: dict[tuple[str, int], tuple[float, int]] = {}
        if by == "contribution":
            (explanation,) = pathx.explain(model, image[None], **PATH)
            for layer in explanation.path:
                for unit in layer.units:
                    place = unit.index[1] * 6 + unit.index[2] if len(unit.index) == 3 else 0
                    key = unit.tensor, unit.index[0]
                    best[key] = max(best.get(key, (-math.inf, 0)), (unit.contribution, -place))
        else:
            for name in ("3", "6"):
                with torch.no_grad():
                    out = model[: int(name) + 1](image[None])[0]
                for channel, row in enumerate(out.reshape(len(out), -1).tolist()):
                    if max(row) > 0:
                        best[name, channel] = max((value, -place) for place, value in enumerate(row))
        for key, (value, place) in best.items():
            found.setdefault(key, []).append((value, number, -place))
    return {key: sorted(entries, key=lambda entry: (-entry[0], entry[1])) for key, entries in found.items()}


@settings(max_examples=8)
@given(st.integers(1, 9), st.integers(1, 4), st.sampled_from(["contribution", "activation"]), st.integers(0, 30))
def test_the_lists_are_those_of_brute_force(count: int, batch: int, by: str, seed: int) -> None:
    inputs = images(count, seed)
    made, expected = gathered(inputs, by, 3, batch), everything(inputs, by)
    assert made.count == count
    for own in made.channels.values():
        for channel in range(own.tensor.shape[0]):
            entries = expected.get((own.tensor.name, channel), [])[:3]
            assert own.images[channel].tolist() == [e[1] for e in entries] + [NOBODY] * (3 - len(entries))
            assert own.units[channel].tolist()[: len(entries)] == [entry[2] for entry in entries]
            assert own.values[channel].tolist()[: len(entries)] == pytest.approx([entry[0] for entry in entries])


def test_paths_shares_and_means_are_those_of_each_explanation() -> None:
    inputs, model = images(6, 5), network()
    made = gathered(inputs, "contribution", 2, 4)
    explanations = [pathx.explain(model, image[None], **PATH)[0] for image in inputs]
    for own in made.channels.values():
        with torch.no_grad():
            out = model[: int(own.tensor.name) + 1](inputs)
        assert own.totals.tolist() == pytest.approx(out.reshape(6, len(own.totals), -1).mean(2).sum(0).tolist())
        for channel in range(own.tensor.shape[0]):
            shares, counts = 0.0, [0] * 4
            for made_of in explanations:
                (layer,) = (layer for layer in made_of.path if layer.layer == own.layer)
                mine = [abs(unit.contribution) for unit in layer.units if unit.index[0] == channel]
                if mine:
                    counts[made_of.target] += 1
                    shares += sum(mine) / sum(abs(unit.contribution) for unit in layer.units)
            assert own.paths[channel].tolist() == counts
            assert float(own.shares[channel]) == pytest.approx(shares)


class Tokens(torch.nn.Module):
    """Patches as tokens, a hidden layer (token, channel), and the mean of the tokens as classes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = torch.nn.Conv2d(3, 4, 5, 5)
        self.hidden, self.activation, self.head = torch.nn.Linear(4, 7), torch.nn.GELU(), torch.nn.Linear(7, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2)
        return self.head(self.activation(self.hidden(tokens)).mean(1))


def test_a_channel_of_a_sequence_is_a_feature_and_not_a_token() -> None:
    torch.manual_seed(0)
    model, inputs = Tokens().eval().double(), images(3, 1)
    frozen = freeze(model, inputs)
    (gate,) = frozen.network.layers[0]
    made = Gathered.empty({1: [frozen.network.tensor(gate)]}, by="contribution", top=2, classes=3)
    explanations = explain_frozen(frozen, list(enumerate(frozen.logits.argmax(1).tolist())), depth=1, width=9)
    made.see(frozen, explanations, {0: "", 1: "", 2: ""})
    (own,) = made.channels.values()
    with torch.no_grad():
        out = model.activation(model.hidden(model.patches(inputs).flatten(2).transpose(1, 2)))
    assert own.totals.tolist() == pytest.approx(out.mean(1).sum(0).tolist(), rel=1e-5)
    for channel in range(7):
        best = []
        for number, one in enumerate(explanations):
            units = [unit for unit in one.path[0].units if unit.index[1] == channel]
            if units:
                strongest = max(units, key=lambda unit: unit.contribution)
                best.append((strongest.contribution, number, strongest.index))
        best = sorted(best, reverse=True)[:2]
        found = [own.index(channel, unit) for unit in own.units[channel].tolist() if unit != NOBODY]
        assert found == [index for *_, index in best]
        assert own.images[channel].tolist()[: len(best)] == [number for _, number, _ in best]
