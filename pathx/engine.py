"""`pathx.explain`: pictures in, explanations out. Free of files and terminals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import prod
from numbers import Integral
from typing import cast

import torch
from torch import Tensor, nn

from pathx.errors import PathxError
from pathx.explanation import Explanation, LayerTensor, Origin, PathLayer, Unit
from pathx.fields import Field, boxes
from pathx.frozen import Frozen, exactly, freeze
from pathx.linear import linear_model
from pathx.network import Network
from pathx.path import Branches, Kept, Strategy, explained, find_paths
from pathx.selection import importance
from pathx.window import unravelled

Width = int | str


def explain(
    model: nn.Module,
    images: Tensor,
    *,
    target: int | Sequence[int] | None = None,
    depth: int | str = 3,
    width: Width = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
) -> list[Explanation]:
    """Explain a batch of preprocessed pictures, one explanation each.

    Args:
        model: any module whose operations are linear for a given input; ScriptModules and torch.export modules too.
        images: (B, …) as the model takes them.
        target: the class to explain: None for the predicted one, a number, or one number per picture.
        depth: how many hidden layers, from the output down, the path runs through, or "all".
        width: how many units a layer keeps at most: a number, "5%" of the layer, or "all".
        alpha: importance above which a unit may be kept; 1 / classes by default.
        skips: "adjacent" follows routes from layer to layer; "all" also those that jump over layers.
    """
    frozen = freeze(model, images)
    wanted = list(enumerate(targets_of(frozen, target)))
    explanations = explain_frozen(frozen, wanted, depth=depth, width=width, alpha=alpha, skips=skips)
    return [replace(made, origin=Origin(model, image)) for made, image in zip(explanations, images, strict=True)]


def targets_of(frozen: Frozen, target: int | Sequence[int] | None) -> list[int]:
    """One class per picture of a batch, from what `explain` takes as target."""
    if target is None:
        return predictions(frozen.logits)
    if isinstance(target, Integral):
        return [int(target)] * len(frozen.images)
    targets = [int(t) for t in cast(Sequence[int], target)]
    if len(targets) != len(frozen.images):
        raise PathxError(
            f"target has {len(targets)} entries for {len(frozen.images)} images; give one per image", usage=True
        )
    return targets


def predictions(logits: Tensor) -> list[int]:
    """The predicted class of each picture; 1 (positive) or 0 (negative) for a single logit."""
    return cast("list[int]", class_logits(logits).argmax(1).tolist())


def class_logits(logits: Tensor) -> Tensor:
    """(B, C) logits; a single logit y counts as the two (0, y)."""
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def explain_frozen(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int]],
    *,
    depth: int | str = 3,
    width: Width = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
    strategy: Strategy | None = None,
) -> list[Explanation]:
    """Explain (picture, class) pairs of a frozen batch, all in one pass."""
    layers = check_depth(depth, frozen.network)
    return _explained(frozen, wanted, None, layers, width, alpha, skips, strategy)[0]


def decompose_frozen(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int]],
    *,
    from_layer: int | None = None,
    depth: int | str = 3,
    width: Width = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
    strategy: Strategy | None = None,
) -> list[list[Explanation]]:
    """For each (picture, class) pair, one explanation per unit kept in one layer, all in one pass.

    Above that layer the path is the pair's own; in it, each explanation has one unit, and below it what that unit sends
    is followed alone. Routes that jump over the layer (with `skips="all"`) belong to none of them.

    Args:
        from_layer: the layer to branch at, counted from the input; the top one by default.
    """
    layers = check_depth(depth, frozen.network)
    top = frozen.network.depth
    split = top if from_layer is None else from_layer
    if not top - layers < split <= top:
        raise PathxError(
            f"layer {split} is not on the path, which has layers {top - layers + 1} to {top}; "
            f"choose one of these, or a greater depth",
            usage=True,
        )
    explanations, parents = _explained(frozen, wanted, split, layers, width, alpha, skips, strategy)
    features: list[list[Explanation]] = [[] for _ in wanted]
    for explanation, parent in zip(explanations, parents, strict=True):
        if explanation.path[top - split].units:  # with fixed shapes there are entries that stand for nothing
            features[parent].append(explanation)
    return features


def _explained(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int]],
    split: int | None,
    layers: int,
    width: Width,
    alpha: float | None,
    skips: str,
    strategy: Strategy | None,
) -> tuple[list[Explanation], list[int]]:
    """Explanations, and which of the wanted pairs each is about."""
    network = frozen.network
    check_settings(alpha, skips)
    logits = class_logits(frozen.logits)
    classes = logits.shape[1]
    for _, target in wanted:
        if not 0 <= target < classes:
            raise PathxError(f"target {target} is out of range: the model has classes 0 to {classes - 1}", usage=True)
    broken = [image for image in sorted({i for i, _ in wanted}) if not bool(logits[image].isfinite().all())]
    if broken:
        raise PathxError(
            f"the model's output for picture {broken[0]} is NaN or infinite; check its weights and the input"
        )
    device = frozen.images.device
    asked = Branches(
        image=torch.tensor([i for i, _ in wanted], device=device),
        target=torch.tensor([t for _, t in wanted], device=device),
        classes=classes,
    )
    top = network.depth
    widths = {n: layer_width(width, network, n) for n in range(top - layers + 1, top + 1)}
    with exactly(device):
        paths = find_paths(
            frozen,
            asked,
            depth=layers,
            widths=widths,
            alpha=alpha,
            skips=skips,
            strategy=strategy or Strategy(prune=frozen.compact),
            split=split,
        )
        branches = paths.branches
        model = linear_model(frozen, paths)
        attribution = model.weight * frozen.images[branches.image]
        described = [_describe(frozen, branches, kept) for kept in paths.layers]
    parents = list(range(len(wanted))) if branches.parent is None else branches.parent.tolist()
    bias, score = model.bias.tolist(), model.score.tolist()
    explanations = [
        Explanation(
            target=wanted[parent][1],
            path=tuple(layer[number] for layer in described),
            attribution=attribution[number],
            weight=model.weight[number],
            bias=bias[number],
            score=score[number],
            logits=logits[wanted[parent][0]],
            depth=layers,
            width=width,
            alpha=1 / classes if alpha is None else alpha,
            skips=skips,
            hidden_layers=top,
        )
        for number, parent in enumerate(parents)
    ]
    return explanations, parents


def check_depth(depth: int | str, network: Network) -> int:
    """The number of layers that `depth` means for a network."""
    if depth == "all":
        return network.depth
    if isinstance(depth, str) or not 1 <= depth <= network.depth:
        raise PathxError(
            f"depth {depth} is out of range: the network has {network.depth} hidden layers; use 1 to {network.depth} or all",
            usage=True,
        )
    return depth


def check_settings(alpha: float | None, skips: str) -> None:
    """Refuse settings that no network could honour."""
    if alpha is not None and not 0 <= alpha < 1:
        raise PathxError(f"alpha {alpha} is out of range; use 0 or more, less than 1", usage=True)
    if skips not in ("adjacent", "all"):
        raise PathxError(f"skips is 'adjacent' or 'all', not {skips!r}", usage=True)


def check_width(width: Width) -> float | int | None:
    """The number of units (int), the share of a layer (float), or None for all."""
    if isinstance(width, Integral) and not isinstance(width, bool) and width >= 1:
        return int(width)
    if width == "all":
        return None
    if isinstance(width, str) and width.endswith("%"):
        try:
            share = float(width[:-1]) / 100
        except ValueError:
            share = math.nan
        if 0 < share <= 1:
            return share
    raise PathxError(f"width {width} is out of range; use a number from 1, a share such as 5%, or all", usage=True)


def layer_width(width: Width, network: Network, layer: int) -> int:
    """How many units a hidden layer may keep."""
    units = sum(gate.units for gate in network.layers[layer - 1])
    wanted = check_width(width)
    if wanted is None:
        return units
    return min(units, wanted) if isinstance(wanted, int) else max(1, math.ceil(wanted * units))


def _describe(frozen: Frozen, branches: Branches, kept: Kept) -> list[PathLayer]:
    """One layer of every branch's path."""
    network, chosen = frozen.network, kept.chosen
    weight = explained(kept.weights, branches, network.outputs)
    share = importance(chosen.margin, branches.classes)
    numbers = torch.stack([kept.gain, weight, weight * kept.gain, share], 2)
    size = tuple(frozen.images.shape[1:])
    tensors = tuple(gate.described for gate in kept.gates)
    fields = [network.fields.get(gate.source) for gate in kept.gates]
    return [
        PathLayer.later(kept.layer, below, tensors, partial(_units, tensors, fields, size, *own))
        for below, *own in zip(chosen.below_alpha.tolist(), chosen.units, chosen.valid, numbers, strict=True)
    ]


def _units(
    tensors: tuple[LayerTensor, ...],
    fields: Sequence[Field],
    size: tuple[int, ...],
    units: Tensor,
    valid: Tensor,
    numbers: Tensor,
) -> tuple[Unit, ...]:
    """The units of one layer as plain numbers, from their numbers in the layer (K,), and (K, 4) what is known of each."""
    units, numbers = units[valid], numbers[valid]
    last = torch.tensor([prod(tensor.shape) for tensor in tensors], device=units.device).cumsum(0)
    owner = torch.searchsorted(last, units, right=True)
    places: list[tuple[str, list[int], list[int]]] = [("", [], [])] * len(units)
    for position, (tensor, field) in enumerate(zip(tensors, fields, strict=True)):
        here = (owner == position).nonzero().flatten()
        first = last[position] - prod(tensor.shape)
        coordinates = unravelled(units[here] - first, tensor.shape)
        seen = boxes(field, coordinates, size).tolist()
        for unit, index, box in zip(here.tolist(), torch.stack(coordinates, -1).tolist(), seen, strict=True):
            places[unit] = (tensor.name, index, box)
    return tuple(
        Unit(name, tuple(index), gain, weight, contribution, share, tuple(box))
        for (name, index, box), (gain, weight, contribution, share) in zip(places, numbers.tolist(), strict=True)
    )
