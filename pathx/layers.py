"""The map of all layers: where the units of the upper half of the layers look, on the path or not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from pathx.engine.freeze import Frozen
from pathx.engine.linear import frozen_gradients
from pathx.engine.network import Gate
from pathx.errors import PathxError
from pathx.maps import enlarge, smooth


def layer_maps(
    frozen: Frozen, wanted: Sequence[tuple[int, int]], against: Sequence[int | None] | None = None
) -> list[Tensor]:
    """The map (H, W) of every pair of an image and a class.

    `sum over layers l of max(r, 0)^2 * |top| / |l| * l`, where r is the correlation of a layer's contributions with those of
    the top layer once both are blurred by half of the top layer's step; the sum is blurred by a quarter of that step.

    Args:
        against: for every pair the class that the other is explained against, or None.
    """
    maps: list[Tensor] = [torch.empty(0)] * len(wanted)
    left = list(range(len(wanted)))
    while left:  # one class of every image at a time
        now = {wanted[number][0]: number for number in reversed(left)}
        left = [number for number in left if number not in now.values()]
        targets = [wanted[now[image]][1] if image in now else 0 for image in range(len(frozen.images))]
        layers = _contributions(frozen, targets)
        if against is not None:
            others = [against[now[image]] if image in now else None for image in range(len(frozen.images))]
            rivals = _contributions(frozen, [other or 0 for other in others])
            compared = torch.tensor([float(other is not None) for other in others])[:, None, None]
            layers = [(own - compared * other, step) for (own, step), (other, _) in zip(layers, rivals, strict=True)]
        for image, number in now.items():
            maps[number] = _weighted_sum([values[image] for values, _ in layers], layers[0][1])
    return maps


def _contributions(frozen: Frozen, targets: list[int]) -> list[tuple[Tensor, float]]:
    """Of each layer of maps, the top one first: what its units contribute, spread evenly over the image, (B, H, W), and the
    distance between its units as a share of the image's side.
    """
    if frozen.parts:
        parts = [_contributions(part, [target]) for part, target in zip(frozen.parts, targets, strict=True)]
        return [(torch.cat([values for values, _ in layer]), layer[0][1]) for layer in zip(*parts, strict=True)]
    network, (height, width) = frozen.network, frozen.images.shape[-2:]
    number = {gate.name: n for n, layer in enumerate(network.layers, start=1) for gate in layer}
    by_layer: dict[int, tuple[Tensor, float]] = {}

    def add(gate: Gate, cotangent: Tensor) -> None:
        if len(gate.shape) != 3 or gate.shape[1] * gate.shape[2] == 1:
            return
        contributions = (cotangent * frozen.activation(gate)).sum(1).detach().cpu().double()
        down, across = height / gate.shape[1], width / gate.shape[2]
        even = ((down / 2, down), (across / 2, across))
        spread = torch.stack([enlarge([(even, one)], (height, width)) for one in contributions])
        known = by_layer.get(number[gate.name])
        by_layer[number[gate.name]] = (spread if known is None else known[0] + spread, 1 / gate.shape[1])

    frozen_gradients(frozen, targets, add)
    if not by_layer:
        raise PathxError("the model has no layer of maps: its layers cannot be mapped")
    upper = max(1, (network.depth + 1) // 2)
    return [by_layer[n] for n in sorted(by_layer, reverse=True)][:upper]


def _weighted_sum(layers: Sequence[Tensor], step: float) -> Tensor:
    """The layers of one image added up, (H, W): each scaled to the size of the first and weighted by its agreement with it."""
    top = layers[0]
    total = torch.zeros_like(top)
    for layer in layers:
        pair = torch.stack([smooth(one, step / 2).flatten() for one in (layer, top)])
        agreement = float(torch.corrcoef(pair)[0, 1].nan_to_num().clamp(min=0))
        if size := float(layer.abs().sum()):
            total += agreement**2 * float(top.abs().sum()) / size * layer
    return smooth(total, step / 4)
