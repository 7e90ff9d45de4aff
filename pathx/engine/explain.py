"""`pathx.explain`: images in, explanations out. Free of files and terminals."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from numbers import Real
from types import MethodType
from typing import Any, Protocol, SupportsIndex, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.branches import Branches, Kept, Link
from pathx.engine.device import engine_precision
from pathx.engine.fields import boxes
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.linear import LinearModel, linear_model
from pathx.engine.network import Network
from pathx.engine.path import Paths, PathSettings, find_paths
from pathx.engine.rules.geometry import Field
from pathx.engine.rules.table import precise
from pathx.engine.search import Strategy, importance_of, threshold_of
from pathx.engine.window import unravelled
from pathx.errors import PathxError, kind_in_words, shown
from pathx.explanation import Edges, Explanation, Explanations, LayerTensor, Origin, PathLayer, Unit

Width = int | str
Target = int | str | Sequence[int | str] | None


class Loaded(Protocol):
    """A model as `pathx.load_model` gives it: with labels, and with the preprocessing that makes inputs of images."""

    @property
    def module(self) -> nn.Module: ...

    @property
    def labels(self) -> Sequence[str]: ...

    def read_images(self, images: Any) -> tuple[Tensor, list[Any]]: ...

    def class_of(self, label: str) -> int: ...


def explain(
    model: nn.Module | Loaded,
    images: Any,
    *,
    target: Target = None,
    depth: int | str = DEPTH,
    width: Width = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    against: Target = None,
    importance: str = IMPORTANCE,
    removal: bool = False,
) -> list[Explanation]:
    """Explain a batch of images, one explanation each.

    Args:
        model: an image classifier: any module, ScriptModules and torch.export modules too. Or what `pathx.load_model` gives,
            whose labels the figures then show.
        images: (B, …) as the model takes them. With what `pathx.load_model` gives, also an image as Pillow opens it, the path of
            one, or a list of these.
        target: the class to explain: None for the predicted one, a number, or one number per image; with labels, also a label.
        depth: how many hidden layers, from the output down, the path runs through; "half" of them, "all", or "maps:3" for
            as many as hold three layers of feature maps.
        width: how many units a layer keeps at most: a number, "5%" of the layer, or "all".
        alpha: importance above which a unit may be kept; by default 1 / classes, and 0 for effects.
        skips: "adjacent" follows routes from layer to layer; "all" also those that jump over layers.
        exact: "region" refuses every model but ReLU networks, whose numbers hold in a whole region around the image. Those of
            others hold at the image alone: gates, norms and attention are held as they are there.
        against: why the target and not this class; given as the target is. Importance is then taken over these
            two classes alone, so alpha is 1/2 by default, and everything in the explanation is about the difference of
            the two logits, target minus against: weight, bias, score, attribution, and each unit's weight,
            contribution and edges. The share of the difference that the path carries is
            `score / (logits[target] - logits[against])`; it may have the other sign.
        importance: what units are ranked by. "paper": the softmax over the classes of what a unit sends to each, at the target.
            "effect": the unit's first-order effect on the log-odds of the target, which is then what `importance` says of a
            unit: the target's weight minus those of the other classes by their probability, times the activation.
        removal: also see what becomes of the class without the path's units, and without as many others at random
            (`Explanation.removal`). The upper part of the network is run nine more times for that.
    """
    module, labels = opened(model)
    target, against = class_numbers(model, target), class_numbers(model, against, "against")
    images, photos = read_images(model, images)
    frozen = freeze(module, images)
    check_exact(frozen.network, exact)
    targets = [None] * len(images) if target is against is None else targets_of(frozen.logits, target)
    wanted = list(enumerate(targets))
    others = None if against is None else targets_of(frozen.logits, against, "against")
    how: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    explanations = explain_frozen(frozen, wanted, **how, against=others)
    if removal:
        from pathx.engine.ablate import removals

        found = removals(frozen, explanations)
        explanations = [replace(made, removal=one) for made, one in zip(explanations, found, strict=True)]
    own = images.detach().clone()  # the caller's buffer may hold other images later
    return Explanations(
        replace(made, origin=Origin(module, image, labels, *photo))
        for made, image, photo in zip(explanations, own, photos, strict=True)
    )


def read_images(model: object, images: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """The network's inputs; and of each the photo and the region that the network saw of it, where a photo was given."""
    reading = (
        None if isinstance(images, Tensor) or isinstance(model, nn.Module) else getattr(model, "read_images", None)
    )
    if reading is not None:
        found: tuple[Any, list[tuple[Any, ...]]] = reading(images)
        return found
    whole = isinstance(images, Tensor) and images.dim() > 0
    seen = tuple(getattr(getattr(model, "preprocessing", None), "input_size", ()))
    if whole and tuple(images.shape) == seen:
        raise PathxError("images must be a batch, and this is one image: give image[None]", usage=True)
    return images, [()] * (len(images) if whole else 0)


def class_numbers(model: object, target: Target, name: str = "target") -> Any:
    """The classes that are asked for with labels as numbers; without labels as they are."""
    resolve = None if isinstance(model, nn.Module) else getattr(model, "class_of", None)
    labels = [target] if isinstance(target, str) else target if isinstance(target, (list, tuple)) else []
    if resolve is None and any(isinstance(one, str) for one in labels):
        raise PathxError(
            f"{name} {brief(target)} is a label, and the model brings none: give the number of the class, or a model of "
            "pathx.load_model",
            usage=True,
        )
    if resolve is None or not labels:
        return target
    numbers = [resolve(one) if isinstance(one, str) else one for one in labels]
    return numbers[0] if isinstance(target, str) else numbers


def opened(model: nn.Module | Loaded) -> tuple[nn.Module, tuple[str, ...]]:
    """A module, and the labels of its classes where it came with any; also of a `torch.export` program."""
    if isinstance(model, nn.Module):
        return model, ()
    inner = model if isinstance(model, type) else getattr(model, "module", model)
    if isinstance(inner, nn.Module):
        return inner, tuple(getattr(model, "labels", ()))
    if isinstance(inner, MethodType) and type(model).__name__ == "ExportedProgram":
        if model not in _PROGRAMS:
            _PROGRAMS[model] = inner()
        return _PROGRAMS[model], ()
    raise PathxError(f"the model must be a torch.nn.Module, not {kind_in_words(model)}", usage=True)


_PROGRAMS: WeakKeyDictionary[object, nn.Module] = WeakKeyDictionary()  # torch makes a new module whenever it is asked


def targets_of(logits: Tensor, target: Target, name: str = "target") -> list[int]:
    """One class per image of a batch, from its logits (B, outputs) and what `explain` takes as target, or as against."""
    if target is None:
        return predictions(logits)
    one = whole_number(target)
    if one is not None:
        return [one] * len(logits)
    several = isinstance(target, (Sequence, Tensor)) or type(target).__name__ == "ndarray"
    if isinstance(target, (str, bytes)) or not several or getattr(target, "ndim", 1) != 1:
        raise PathxError(
            f"{name} must be the number of a class, or one number per image, not {brief(target)}", usage=True
        )
    entries = list(cast(Sequence[int], target))
    found = [whole_number(entry) for entry in entries]
    if None in found:
        wrong = entries[found.index(None)]
        raise PathxError(f"{name} must hold numbers of classes, not {brief(wrong)}", usage=True)
    if len(found) != len(logits):
        raise PathxError(f"{name} has {len(found)} entries for {len(logits)} images; give one per image", usage=True)
    return cast("list[int]", found)


def brief(value: object) -> str:
    """What somebody gave, in the one line of a message."""
    try:
        text = str(value) if isinstance(value, str) else repr(value)
    except Exception:  # a foreign object's own
        text = ""
    text = shown(text)
    return text if text and len(text) <= 60 else kind_in_words(value)


def whole_number(value: object) -> int | None:
    """A whole number of any library, 0-dimensional tensors and arrays included; None for anything else."""
    truth = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    if truth or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return operator.index(cast(SupportsIndex, value))
    except Exception:  # whatever a foreign object makes of the question
        return None


def predictions(logits: Tensor) -> list[int]:
    """The predicted class of each image; 1 (positive) or 0 (negative) for a single logit."""
    return cast("list[int]", class_logits(logits).argmax(1).tolist())


def class_logits(logits: Tensor) -> Tensor:
    """(B, C) logits; a single logit y counts as the two (0, y)."""
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def explain_frozen(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int | None]],
    *,
    depth: int | str = DEPTH,
    width: Width = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    against: Sequence[int] | None = None,
    importance: str = IMPORTANCE,
    strategy: Strategy | None = None,
) -> list[Explanation]:
    """Explain (image, class) pairs of a frozen batch, all in one pass.

    Args:
        wanted: None for the predicted class.
        against: for every pair the class that it is explained against, as for `explain`.
    """
    layers = check_depth(depth, frozen.network)
    return _explained(frozen, wanted, None, layers, width, alpha, skips, against, importance, strategy)[0]


def decompose_frozen(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int | None]],
    *,
    from_layer: int | None = None,
    depth: int | str = DEPTH,
    width: Width = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    against: Sequence[int] | None = None,
    importance: str = IMPORTANCE,
    strategy: Strategy | None = None,
) -> list[list[Explanation]]:
    """For each (image, class) pair, one explanation per unit kept in one layer, all in one pass.

    Above that layer the path is the pair's own; in it, each explanation has one unit, and below it what that unit sends
    is followed alone. Routes that jump over the layer (with `skips="all"`) belong to none of them.

    Args:
        from_layer: the layer to branch at, counted from the input; the top one by default.
        against: as for `explain_frozen`.
    """
    layers = check_depth(depth, frozen.network)
    top = frozen.network.depth
    split = top if from_layer is None else whole_number(from_layer)
    if split is None or not top - layers < split <= top:
        raise PathxError(
            f"layer {brief(split if from_layer is None else from_layer)} is not on the path, "
            f"which has layers {top - layers + 1} to {top}; "
            f"choose one of these, or a greater depth",
            usage=True,
        )
    explanations, parents = _explained(
        frozen, wanted, split, layers, width, alpha, skips, against, importance, strategy
    )
    features: list[list[Explanation]] = [[] for _ in wanted]
    for explanation, parent in zip(explanations, parents, strict=True):
        if explanation.path[top - split].units:  # with fixed shapes there are entries that stand for nothing
            features[parent].append(explanation)
    return features


def _explained(
    frozen: Frozen,
    wanted: Sequence[tuple[int, int | None]],
    split: int | None,
    layers: int,
    width: Width,
    alpha: float | None,
    skips: str,
    against: Sequence[int] | None,
    importance: str,
    strategy: Strategy | None,
) -> tuple[list[Explanation], list[int]]:
    """Explanations, and which of the wanted pairs each is about."""
    network = frozen.network
    check_settings(alpha, skips, importance)
    logits = class_logits(frozen.logits)
    _check_classes(wanted, against, logits.shape[1])
    if frozen.parts:  # one image after the other
        explanations, parents = [], []
        for number, (image, target) in enumerate(wanted):
            other = None if against is None else [against[number]]
            own, _ = _explained(
                frozen.parts[image], [(0, target)], split, layers, width, alpha, skips, other, importance, strategy
            )
            explanations += own
            parents += [number] * len(own)
        return explanations, parents
    device = frozen.images.device
    classes = _classes(wanted, logits)
    asked = _branches(wanted, classes, against, frozen)
    if importance == "effect":
        asked = replace(asked, log_odds=_log_odds(asked, logits))
    threshold = (alpha or 0.0) if importance == "effect" else threshold_of(alpha, asked.classes)
    top = network.depth
    widths = {n: layer_width(width, network, n) for n in range(top - layers + 1, top + 1)}
    settings = PathSettings(layers, widths, threshold, skips, split, strategy or Strategy())
    with engine_precision(device):
        paths = find_paths(frozen, asked, settings)
        branches = paths.branches
        model = linear_model(frozen, paths)
        attribution = model.weight * (frozen.images if branches.one_per_image else frozen.images[branches.image])
        parts = len(branches) // len(wanted)  # of each pair, where branches were split
        read = _read(paths, model, attribution, logits[asked.image], classes, parts)
    default_alpha = 0.0 if importance == "effect" else 1 / asked.classes
    valid = {kept.layer: kept.valid for kept in paths.layers}
    described = [_describe(frozen, branches, kept, valid) for kept in paths.layers]
    explanations = [
        Explanation(
            target=numbers.target,
            path=tuple(
                layer(number, first <= threshold) for layer, first in zip(described, numbers.first, strict=True)
            ),
            attribution=attribution[number],
            weight=model.weight[number],
            bias=numbers.bias,
            score=numbers.score,
            logits=logits[wanted[number // parts][0]],
            depth=layers,
            width=width if isinstance(width, str) else int(width),
            alpha=default_alpha if alpha is None else float(alpha),
            importance=importance,
            skips=skips,
            hidden_layers=top,
            exact=network.reading.exact,
            against=None if against is None else against[number // parts],
        )
        for number, numbers in enumerate(read)
    ]
    return explanations, [number // parts for number in range(len(branches))]


@dataclass(frozen=True)
class _Numbers:
    """What is read off the device of one branch; `first` is the highest margin of every layer."""

    target: int
    bias: float
    score: float
    first: list[float]


def _read(
    paths: Paths, model: LinearModel, attribution: Tensor, logits: Tensor, classes: Tensor, parts: int
) -> list[_Numbers]:
    """Everything that the host wants to know, in one transfer; numbers that are none are refused.

    Args:
        logits, classes: of every wanted pair, (pairs, C) and (pairs,).
        parts: how many branches each pair was split into.
    """
    dtype = precise(attribution)
    pairs = torch.stack([classes.to(dtype), logits.abs().amax(1).to(dtype)], 1)
    columns = [
        pairs if parts == 1 else pairs.repeat_interleave(parts, 0),
        model.bias[:, None],
        model.score[:, None],
        attribution.abs().flatten(1).amax(1)[:, None].to(dtype),
        torch.cat([kept.weight for kept in paths.layers], 1).abs().amax(1)[:, None].to(dtype),
        torch.stack([kept.margin[:, 0] for kept in paths.layers], 1).to(dtype),
    ]
    read = torch.cat(columns, 1).tolist()
    for number, (_, largest, *others) in enumerate(read):
        if not math.isfinite(largest):
            raise PathxError(
                f"the model's output for image {number // parts} is NaN or infinite; check its weights and the input"
            )
        if not all(map(math.isfinite, others[:4])):
            raise PathxError(
                "the explanation holds NaN or infinite numbers: the input, the weights or a constant of the model are too "
                "large for their type; try float64"
            )
    return [_Numbers(int(target), bias, score, first) for target, _, bias, score, _, _, *first in read]


def _classes(wanted: Sequence[tuple[int, int | None]], logits: Tensor) -> Tensor:
    """(pairs,) the classes to explain; the predicted ones where none is named."""
    named = torch.tensor([-1 if target is None else target for _, target in wanted], device=logits.device)
    if all(target is not None for _, target in wanted):
        return named
    image = torch.tensor([image for image, _ in wanted], device=logits.device)
    return torch.where(named < 0, logits.argmax(1)[image], named)


def _branches(
    wanted: Sequence[tuple[int, int | None]], classes: Tensor, against: Sequence[int] | None, frozen: Frozen
) -> Branches:
    """What is asked for, as the search takes it."""
    numbers, outputs = [number for number, _ in wanted], frozen.network.outputs
    image, whole = torch.tensor(numbers, device=classes.device), numbers == list(range(len(frozen.images)))
    dtype = frozen.images.dtype
    if against is None or outputs == 1:  # of one logit, the two classes are against each other anyway
        return Branches(image, classes, max(2, outputs), dtype, single_logit=outputs == 1, one_per_image=whole)
    pairs = torch.stack([classes, torch.tensor(against, device=classes.device)], 1)
    return Branches(image, torch.zeros_like(classes), 2, dtype, pairs, one_per_image=whole)


def _log_odds(asked: Branches, logits: Tensor) -> Tensor:
    """(Q, C) the gradient of the target's log-odds by the logits: 1 at the target, -p_c / (1 - p_target) at the others."""
    if asked.classes == 2:
        return asked.target_minus_mean
    others = logits[asked.image].to(asked.dtype).scatter(1, asked.target[:, None], -math.inf)
    return (-others.softmax(1)).scatter(1, asked.target[:, None], 1.0)


def _check_classes(wanted: Sequence[tuple[int, int | None]], against: Sequence[int] | None, classes: int) -> None:
    """Refuse classes that the model does not have, and a class against itself."""
    targets = [target for _, target in wanted if target is not None]
    for name, numbers in (("target", targets), ("against", against or ())):
        for number in numbers:
            if not 0 <= number < classes:
                message = f"{name} {number} is out of range: the model has classes 0 to {classes - 1}"
                raise PathxError(message, usage=True)
    for (_, target), other in zip(wanted, against or (), strict=against is not None):
        if target == other:
            raise PathxError(f"class {target} cannot be explained against itself: choose another class", usage=True)


def check_depth(depth: int | str, network: Network) -> int:
    """The number of layers that `depth` means for a network.

    `maps:3` runs through the three topmost layers of feature maps, and the vectors above them, which have no place in the
    image; through all layers where the network has fewer maps. Neither that nor `half` is ever more than there are.
    """
    if isinstance(depth, str):
        if depth == "all":
            return network.depth
        if depth == "half":
            return (network.depth + 1) // 2
        if re.fullmatch(r"maps:[1-9]\d{0,8}", depth, re.ASCII):
            count = int(depth.removeprefix("maps:"))
            enough = [number for number, placed in enumerate(network.placed, start=1) if placed][:count]
            return enough[-1] if enough else min(count, network.depth)
    layers = whole_number(depth)
    if layers is None or not 1 <= layers <= network.depth:
        raise PathxError(
            f"depth {brief(depth)} is out of range: the network has {network.depth} hidden layers; "
            f"use 1 to {network.depth}, half or all",
            usage=True,
        )
    return layers


AT_THE_IMAGE = (
    "gates, norms and attention are held as they are at this image; the numbers are exact at this image, not around it."
)


def check_exact(network: Network, exact: str, note: Callable[[str], None] = lambda text: None) -> None:
    """Refuse a network that is linear at the image alone where more is asked for; where not, tell `note` of it."""
    if exact not in ("image", "region"):
        raise PathxError(f"exact is 'image' or 'region', not {brief(exact)}", usage=True)
    if exact == "region" and network.reading.because is not None:
        raise PathxError(
            f"the model is not a ReLU network: {network.reading.because} holds only at the image; leave out `exact` region to "
            "explain it there",
            usage=True,
        )
    if network.reading.exact == "image":
        note(AT_THE_IMAGE)


def check_settings(alpha: float | None, skips: str, importance: str = IMPORTANCE) -> None:
    """Refuse settings that no network could honour."""
    if not isinstance(importance, str) or importance not in ("paper", "effect"):
        raise PathxError(f"importance is 'paper' or 'effect', not {brief(importance)}", usage=True)
    if alpha is not None and not (isinstance(alpha, Real) and not isinstance(alpha, bool) and 0 <= alpha < 1):
        raise PathxError(f"alpha {brief(alpha)} is out of range; use 0 or more, less than 1", usage=True)
    if not isinstance(skips, str) or skips not in ("adjacent", "all"):
        raise PathxError(
            f"skips is 'adjacent' or 'all', not {repr(skips) if isinstance(skips, str) else brief(skips)}", usage=True
        )


def check_width(width: Width) -> float | int | None:
    """The number of units (int), the share of a layer (float), or None for all."""
    units = whole_number(width)
    if units is not None and units >= 1:
        return units
    if isinstance(width, str) and width == "all":
        return None
    if isinstance(width, str) and width.endswith("%"):
        try:
            share = float(width[:-1]) / 100
        except ValueError:
            share = math.nan
        if 0 < share <= 1:
            return share
    raise PathxError(
        f"width {brief(width)} is out of range; use a number from 1, a share such as 5%, or all", usage=True
    )


def layer_width(width: Width, network: Network, layer: int) -> int:
    """How many units a hidden layer may keep."""
    units = sum(gate.units for gate in network.layers[layer - 1])
    wanted = check_width(width)
    if wanted is None:
        return units
    return min(units, wanted) if isinstance(wanted, int) else max(1, math.ceil(wanted * units))


def _describe(
    frozen: Frozen, branches: Branches, kept: Kept, valid: Mapping[int, Tensor]
) -> Callable[[int, bool], PathLayer]:
    """One layer of any branch's path, below the others, from the branch's number and whether the layer is below alpha."""
    network = frozen.network
    size = tuple(frozen.images.shape[1:])
    fields = [network.fields.get(gate.source) for gate in kept.gates]
    tensors = tuple(map(network.tensor, kept.gates))
    above = [(link, None if link.layer is None else valid[link.layer]) for link in kept.links]
    own = (kept.units, kept.valid, kept.slope_times_h, kept.weight, kept.margin)  # not all of it: W is large

    def one(branch: int, below: bool) -> PathLayer:
        numbers = partial(_numbers, None if branches.log_odds is not None else branches.classes, branch, *own)
        return PathLayer.later(
            *(kept.layer, below, tensors),
            partial(_units, tensors, fields, size, numbers),
            partial(_edges, branch, kept.place, own[1], own[2], above),
            partial(_contributions, numbers),
        )

    return one


def _numbers(classes: int | None, branch: int, *known: Tensor) -> tuple[Tensor, Tensor]:
    """The real units of one layer by their numbers in it (K,), and (K, 4) what is known of each.

    Args:
        classes: None where units are ranked by effect, which is the importance then.
    """
    units, valid, gain, sent, margins = (part[branch] for part in known)
    importance = margins if classes is None else importance_of(margins, classes)
    numbers = torch.stack([gain, sent, sent * gain, importance], 1)
    return units[valid], numbers[valid]


Numbers = Callable[[], tuple[Tensor, Tensor]]


def _contributions(known: Numbers) -> tuple[Tensor, Tensor]:
    """The units of one layer by their numbers in it, and what each contributes."""
    units, numbers = known()
    return units, numbers[:, 2]


def _edges(
    branch: int, place: Tensor, valid: Tensor, gain: Tensor, links: Sequence[tuple[Link, Tensor | None]]
) -> tuple[Edges, ...]:
    """What the real units of one branch send through each real unit above, for `PathLayer.edges`.

    Args:
        place, valid, gain: (Q, K) of the units: where among the candidates, whether real, and what they pass on.
        links: with which of the units above are real; None for the class.
    """
    edges = []
    for link, real in links:
        sent = link.through(branch, place[branch]) * gain[branch]
        edges.append(Edges(link.layer, (sent if real is None else sent[real[branch]])[:, valid[branch]].t()))
    return tuple(edges)


def _units(
    tensors: tuple[LayerTensor, ...],
    fields: Sequence[Field | None],
    size: tuple[int, ...],
    known: Numbers,
) -> tuple[Unit, ...]:
    """The units of one layer as plain numbers."""
    units, numbers = known()
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
