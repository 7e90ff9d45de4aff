"""`pathx.explain`: images in, explanations out. Free of files and terminals.

Settings are checked, the network is frozen at the images, the paths are found (Algorithm 1), the linear model of each is computed,
and explanations are put together: `_explain_pairs` does the last three for any number of (image, class) pairs in one pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from types import MethodType
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.branches import Branches
from pathx.engine.device import engine_precision
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.linear import LinearModel, linear_model
from pathx.engine.path import Paths, PathSettings, find_paths
from pathx.engine.rules.table import precise
from pathx.engine.search import Strategy, threshold_of
from pathx.engine.settings import (
    PathOptions,
    Target,
    Width,
    check_classes,
    check_depth,
    check_exact,
    check_settings,
    class_logits,
    class_numbers,
    in_one_line,
    layer_width,
    targets_of,
    whole_number,
)
from pathx.engine.units import path_layer
from pathx.errors import PathxError, kind_in_words
from pathx.explanation import Explanation, Explanations, Origin

Pairs = Sequence[tuple[int, int | None]]
"""Images of a batch by number, each with a class to explain; None for the predicted one."""


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
    target, against = class_numbers(model, target), class_numbers(model, against, "against")
    frozen, origins = freeze_model(model, images, exact)
    targets = [None] * len(origins) if target is against is None else targets_of(frozen.logits, target)
    others = None if against is None else targets_of(frozen.logits, against, "against")
    how: dict[str, Any] = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    explanations = explain_frozen(frozen, list(enumerate(targets)), **how, against=others)
    if removal:
        from pathx.engine.ablate import removals

        proofs = removals(frozen, explanations)
        explanations = [replace(made, removal=one) for made, one in zip(explanations, proofs, strict=True)]
    return Explanations(replace(made, origin=origin) for made, origin in zip(explanations, origins, strict=True))


def freeze_model(model: nn.Module | Loaded, images: Any, exact: str = EXACT) -> tuple[Frozen, list[Origin]]:
    """A model frozen at images, both as `explain` takes them; and what the explanation of each image is made from."""
    module, labels = open_model(model)
    images, photos = read_images(model, images)
    frozen = freeze(module, images)
    check_exact(frozen.network, exact)
    own = images.detach().clone()  # the caller's buffer may hold other images later
    return frozen, [Origin(module, image, labels, *photo) for image, photo in zip(own, photos, strict=True)]


def read_images(model: object, images: Any) -> tuple[Any, list[tuple[Any, ...]]]:
    """The network's inputs; and of each the photo and the region that the network saw of it, where a photo was given."""
    if not isinstance(images, Tensor) and not isinstance(model, nn.Module) and hasattr(model, "read_images"):
        inputs, photos = model.read_images(images)
        return inputs, photos
    whole = isinstance(images, Tensor) and not images.is_nested and images.dim() > 0
    seen = tuple(getattr(getattr(model, "preprocessing", None), "input_size", ()))
    if whole and tuple(images.shape) == seen:
        raise PathxError("images must be a batch, and this is one image: give image[None]", usage=True)
    return images, [()] * (len(images) if whole else 0)


def open_model(model: nn.Module | Loaded) -> tuple[nn.Module, tuple[str, ...]]:
    """The module and the labels of a model as `explain` takes it: a module, a loaded model, or a `torch.export` program."""
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


_PROGRAMS: WeakKeyDictionary[object, nn.Module] = WeakKeyDictionary()  # `module()` makes a new one on every call


def explain_frozen(
    frozen: Frozen,
    pairs: Pairs,
    *,
    against: Sequence[int] | None = None,
    strategy: Strategy | None = None,
    **options: Any,
) -> list[Explanation]:
    """Explain (image, class) pairs of a frozen batch, all in one pass.

    Args:
        against: for every pair, the class that it is explained against.
        options: as `PathOptions` has them.
    """
    return [made for (made,) in _explain_pairs(frozen, pairs, against, PathOptions(**options), None, strategy)]


def decompose_frozen(
    frozen: Frozen,
    pairs: Pairs,
    *,
    from_layer: int | None = None,
    strategy: Strategy | None = None,
    **options: Any,
) -> list[list[Explanation]]:
    """For each (image, class) pair, one explanation per unit kept in one layer, all in one pass.

    Above that layer the path is the pair's own; in it, each explanation has one unit, and below it what that unit sends
    is followed alone. Routes that jump over the layer (with `skips="all"`) belong to none of them.

    Args:
        from_layer: the layer to branch at, counted from the input; the top one by default.
        options: as `PathOptions` has them.
    """
    how, top = PathOptions(**options), frozen.network.depth
    last = top - check_depth(how.depth, frozen.network) + 1
    split = top if from_layer is None else whole_number(from_layer)
    if split is None or not last <= split <= top:
        raise PathxError(
            f"layer {in_one_line(split if from_layer is None else from_layer)} is not on the path, "
            f"which has layers {last} to {top}; choose one of these, or a greater depth",
            usage=True,
        )
    features = _explain_pairs(frozen, pairs, None, how, split, strategy)
    # Shapes are fixed, so some entries may be empty.
    return [[made for made in several if made.path[top - split].units] for several in features]


def _explain_pairs(
    frozen: Frozen,
    pairs: Pairs,
    against: Sequence[int] | None,
    how: PathOptions,
    split: int | None,
    strategy: Strategy | None,
) -> list[list[Explanation]]:
    """The explanations of every pair: one, or one per unit that the layer `split` keeps."""
    network, logits = frozen.network, class_logits(frozen.logits)
    check_settings(how.alpha, how.skips, how.importance)
    check_classes(pairs, against, logits.shape[1])
    if frozen.parts:  # a network that takes the images of a batch together, frozen at each of them alone
        others = [None] * len(pairs) if against is None else [[other] for other in against]
        return [
            _explain_pairs(frozen.parts[image], [(0, target)], other, how, split, strategy)[0]
            for (image, target), other in zip(pairs, others, strict=True)
        ]
    classes = _classes(pairs, logits)
    branches = _branches(pairs, classes, against, frozen)
    threshold, alpha = threshold_of(how.alpha, branches.classes), 1 / branches.classes
    if how.importance == "effect":
        branches = replace(branches, log_odds=_log_odds(branches, logits))
        threshold, alpha = how.alpha or 0.0, 0.0
    top, depth = network.depth, check_depth(how.depth, network)
    widths = {n: layer_width(how.width, network, n) for n in range(top - depth + 1, top + 1)}
    settings = PathSettings(depth, widths, threshold, how.skips, split, strategy or Strategy())
    with engine_precision(frozen.images.device):
        paths = find_paths(frozen, branches, settings)
        model = linear_model(frozen, paths)
        images = frozen.images if paths.branches.one_per_image else frozen.images[paths.branches.image]
        attribution = model.weight * images
        parts = len(paths.branches) // len(pairs)  # how many branches each pair was split into
        rows = _read_numbers(paths, model, attribution, logits[branches.image], classes, parts)
    valid = {kept.layer: kept.valid for kept in paths.layers}
    explanations = [
        Explanation(
            target=target,
            path=tuple(
                path_layer(network, paths.branches, kept, valid, number, best <= threshold)
                for kept, best in zip(paths.layers, margins, strict=True)
            ),
            attribution=attribution[number],
            weight=model.weight[number],
            bias=bias,
            score=score,
            logits=logits[pairs[number // parts][0]],
            depth=depth,
            width=how.width if isinstance(how.width, str) else int(how.width),
            alpha=alpha if how.alpha is None else float(how.alpha),
            importance=how.importance,
            skips=how.skips,
            hidden_layers=top,
            exact=network.reading.exact,
            against=None if against is None else against[number // parts],
        )
        for number, (target, bias, score, margins) in enumerate(rows)
    ]
    return [explanations[first : first + parts] for first in range(0, len(explanations), parts)]


def _read_numbers(
    paths: Paths, model: LinearModel, attribution: Tensor, logits: Tensor, classes: Tensor, parts: int
) -> list[tuple[int, float, float, list[float]]]:
    """Read everything that the host needs in one transfer, and refuse NaN and infinite numbers.

    Args:
        logits, classes: of every pair, (pairs, C) and (pairs,).
        parts: how many branches each pair was split into.

    Returns: of every branch the target, the bias, the score, and the highest margin of every layer.
    """
    dtype = precise(attribution)
    columns = [
        torch.stack([classes.to(dtype), logits.abs().amax(1).to(dtype)], 1).repeat_interleave(parts, 0),
        model.bias[:, None],
        model.score[:, None],
        attribution.abs().flatten(1).amax(1)[:, None].to(dtype),
        torch.cat([kept.weight for kept in paths.layers], 1).abs().amax(1)[:, None].to(dtype),
        torch.stack([kept.margin[:, 0] for kept in paths.layers], 1).to(dtype),
    ]
    rows = torch.cat(columns, 1).tolist()
    for number, (_, largest_logit, *others) in enumerate(rows):
        if not math.isfinite(largest_logit):
            raise PathxError(
                f"the model's output for image {number // parts} is NaN or infinite; check its weights and the input"
            )
        if not all(map(math.isfinite, others[:4])):
            raise PathxError(
                "the explanation holds NaN or infinite numbers: the input, the weights or a constant of the model are too "
                "large for their type; try float64"
            )
    return [(int(target), bias, score, margins) for target, _, bias, score, _, _, *margins in rows]


def _classes(pairs: Pairs, logits: Tensor) -> Tensor:
    """(pairs,) the classes to explain; the predicted ones where none is named."""
    named = torch.tensor([-1 if target is None else target for _, target in pairs], device=logits.device)
    if all(target is not None for _, target in pairs):
        return named
    image = torch.tensor([image for image, _ in pairs], device=logits.device)
    return torch.where(named < 0, logits.argmax(1)[image], named)


def _branches(pairs: Pairs, classes: Tensor, against: Sequence[int] | None, frozen: Frozen) -> Branches:
    """The pairs as the search takes them."""
    numbers, outputs = [number for number, _ in pairs], frozen.network.outputs
    image, whole = torch.tensor(numbers, device=classes.device), numbers == list(range(len(frozen.images)))
    dtype = frozen.images.dtype
    if against is None or outputs == 1:  # of one logit, the two classes are against each other anyway
        return Branches(image, classes, max(2, outputs), dtype, single_logit=outputs == 1, one_per_image=whole)
    both = torch.stack([classes, torch.tensor(against, device=classes.device)], 1)
    return Branches(image, torch.zeros_like(classes), 2, dtype, both, one_per_image=whole)


def _log_odds(branches: Branches, logits: Tensor) -> Tensor:
    """(Q, C) the gradient of the target's log-odds by the logits: 1 at the target, -p_c / (1 - p_target) at the others."""
    if branches.classes == 2:
        return branches.target_minus_mean
    others = logits[branches.image].to(branches.dtype).scatter(1, branches.target[:, None], -math.inf)
    return (-others.softmax(1)).scatter(1, branches.target[:, None], 1.0)
