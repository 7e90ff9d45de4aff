"""What a caller may ask for: classes, depth, width and the other settings, checked before any work."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, SupportsIndex, cast

import torch
from torch import Tensor, nn

from pathx.defaults import DEPTH, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.network import Network
from pathx.errors import PathxError, kind_in_words, shown

Width = int | str


@dataclass(frozen=True)
class PathOptions:
    """How a path is found, as `explain` takes it."""

    depth: int | str = DEPTH
    width: Width = WIDTH
    alpha: float | None = None
    skips: str = SKIPS
    importance: str = IMPORTANCE


Target = int | str | Sequence[int | str] | None


def class_numbers(model: object, target: Target, name: str = "target") -> Any:
    """The classes that are asked for with labels as numbers; without labels as they are."""
    resolve = None if isinstance(model, nn.Module) else getattr(model, "class_of", None)
    labels = [target] if isinstance(target, str) else target if isinstance(target, (list, tuple)) else []
    if resolve is None and any(isinstance(one, str) for one in labels):
        raise PathxError(
            f"{name} {in_one_line(target)} is a label, and the model brings none: give the number of the class, or a model of "
            "pathx.load_model",
            usage=True,
        )
    if resolve is None or not labels:
        return target
    numbers = [resolve(one) if isinstance(one, str) else one for one in labels]
    return numbers[0] if isinstance(target, str) else numbers


def targets_of(logits: Tensor, target: Target, name: str = "target") -> list[int]:
    """One class per image of a batch.

    Args:
        logits: (B, outputs).
        target: as `explain` takes it; or against, then `name` says so.
    """
    if target is None:
        return predictions(logits)
    one = whole_number(target)
    if one is not None:
        return [one] * len(logits)
    several = isinstance(target, (Sequence, Tensor)) or type(target).__name__ == "ndarray"
    if isinstance(target, (str, bytes)) or not several or getattr(target, "ndim", 1) != 1:
        raise PathxError(
            f"{name} must be the number of a class, or one number per image, not {in_one_line(target)}", usage=True
        )
    entries = list(cast(Sequence[int], target))
    numbers = [whole_number(entry) for entry in entries]
    if None in numbers:
        wrong = entries[numbers.index(None)]
        raise PathxError(f"{name} must hold numbers of classes, not {in_one_line(wrong)}", usage=True)
    if len(numbers) != len(logits):
        raise PathxError(f"{name} has {len(numbers)} entries for {len(logits)} images; give one per image", usage=True)
    return cast("list[int]", numbers)


def in_one_line(value: object) -> str:
    """A wrong argument as a message shows it."""
    try:
        text = str(value) if isinstance(value, str) else repr(value)
    except Exception:  # of a foreign object
        text = ""
    text = shown(text)
    return text if text and len(text) <= 60 else kind_in_words(value)


def whole_number(value: object) -> int | None:
    """An integer of any library, also as a 0-dimensional tensor or array; None for anything else."""
    truth = isinstance(value, bool) or "bool" in str(getattr(value, "dtype", ""))
    if truth or getattr(value, "ndim", 0) != 0:
        return None
    try:
        return operator.index(cast(SupportsIndex, value))
    except Exception:  # of a foreign object
        return None


def predictions(logits: Tensor) -> list[int]:
    """The predicted class of each image; 1 (positive) or 0 (negative) for a single logit."""
    return cast("list[int]", class_logits(logits).argmax(1).tolist())


def class_logits(logits: Tensor) -> Tensor:
    """(B, C) logits; a single logit y counts as the two (0, y)."""
    return torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits


def check_classes(wanted: Sequence[tuple[int, int | None]], against: Sequence[int] | None, classes: int) -> None:
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

    `maps:3` reaches the third layer of feature maps from the top. The vectors above have no place in the image and do not
    count. Of a network with fewer maps it takes all that there are.
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
            f"depth {in_one_line(depth)} is out of range: the network has {network.depth} hidden layers; "
            f"use 1 to {network.depth}, maps:N, half or all",
            usage=True,
        )
    return layers


AT_THE_IMAGE = (
    "gates, norms and attention are held as they are at this image; the numbers are exact at this image, not around it."
)


def check_exact(network: Network, exact: str, note: Callable[[str], None] = lambda text: None) -> None:
    """Refuse a network that is exact at the image alone where `exact` asks for a region; otherwise pass `note` a sentence on it."""
    if exact not in ("image", "region"):
        raise PathxError(f"exact is 'image' or 'region', not {in_one_line(exact)}", usage=True)
    if exact == "region" and network.reading.because is not None:
        raise PathxError(
            f"the model is not a ReLU network: {network.reading.because} holds only at the image; leave out `exact` region to "
            "explain it there",
            usage=True,
        )
    if network.reading.exact == "image":
        note(AT_THE_IMAGE)


def check_settings(alpha: float | None, skips: str, importance: str = IMPORTANCE) -> None:
    """Refuse settings that are wrong for any network."""
    if not isinstance(importance, str) or importance not in ("paper", "effect"):
        raise PathxError(f"importance is 'paper' or 'effect', not {in_one_line(importance)}", usage=True)
    if alpha is not None and not (isinstance(alpha, Real) and not isinstance(alpha, bool) and 0 <= alpha < 1):
        raise PathxError(f"alpha {in_one_line(alpha)} is out of range; use 0 or more, less than 1", usage=True)
    if not isinstance(skips, str) or skips not in ("adjacent", "all"):
        raise PathxError(f"skips is 'adjacent' or 'all', not {in_one_line(skips)}", usage=True)


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
        f"width {in_one_line(width)} is out of range; use a number from 1, a share such as 5%, or all", usage=True
    )


def layer_width(width: Width, network: Network, layer: int) -> int:
    """How many units a hidden layer may keep."""
    units = sum(gate.units for gate in network.layers[layer - 1])
    wanted = check_width(width)
    if wanted is None:
        return units
    return min(units, wanted) if isinstance(wanted, int) else max(1, math.ceil(wanted * units))
