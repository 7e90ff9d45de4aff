"""What becomes of the answer without some units: they are set to zero, and everything above them is computed again."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from pathx.engine.device import engine_precision, is_out_of_memory
from pathx.engine.explain import Loaded, freeze_model
from pathx.engine.freeze import Frozen
from pathx.engine.network import Gate
from pathx.engine.record.operations import Node, Value, run_by_value
from pathx.engine.settings import Target, check_classes, class_logits, class_numbers, targets_of
from pathx.errors import PathxError
from pathx.explanation import Effect, Explanation, PathLayer, Removal, Unit

if TYPE_CHECKING:
    UnitPlace = Unit | tuple[str, Sequence[int]]

DRAWS = 8
"""How many random choices of other units a removal is compared with."""

AT_ONCE = 1 << 22
"""How many numbers of input the runs that are computed at once may have: 27 images of 3 x 224 x 224."""


# --- Running the network again ---------------------------------------------------------------------------------------


def rerun(
    frozen: Frozen, gates: Sequence[Gate], masks: Sequence[Tensor], fillings: Sequence[Tensor] | None = None
) -> Tensor:
    """(R, B, C) logits of R runs of the real network with some units changed: every gate, norm and route above follows.

    Args:
        gates: the gates whose units are changed.
        masks: for every gate (R, B, *shape), True at the units that are set to zero.
        fillings: for every gate what they are set to instead, (*shape) or anything that fits it.
    """
    network, numbers = frozen.network, {gate.output: number for number, gate in enumerate(gates)}
    changed: set[Value | None] = {*numbers}
    follows: set[Value | None] = set()
    read: set[Value] = {*numbers}
    for node in network.nodes:
        if not changed.isdisjoint(node.inputs):
            changed.update(node.outputs)
            follows.update(node.outputs)
            read.update(node.inputs)
    everything = {**frozen.brought, **frozen.kept, network.graph.input: frozen.images}
    below = network.run(read - follows, everything)

    def edit(values: dict[Value, Tensor], some: Sequence[Tensor]) -> dict[Value, Tensor]:
        for value in numbers.keys() & values.keys():
            number, output = numbers[value], values[value]
            filling = output.new_zeros(()) if fillings is None else fillings[number]
            units = output.reshape(-1, *gates[number].shape)
            values[value] = torch.where(some[number], filling, units).reshape(output.shape)
        return values

    def run(*some: Tensor) -> Tensor:
        def step(node: Node, values: dict[Value, Tensor]) -> dict[Value, Tensor]:
            return edit(run_by_value(node, values), some)

        values = network.run([network.logits], edit({**below}, some), step)
        return class_logits(values[network.logits].reshape(len(frozen.images), -1))

    runs, size = len(masks[0]), max(1, AT_ONCE // frozen.images.numel())
    while True:
        try:
            parts = zip(*(mask.split(size) for mask in masks), strict=True)
            return torch.cat(
                [
                    torch.vmap(run)(*some) if len(some[0]) > 1 else run(*(mask[0] for mask in some))[None]
                    for some in parts
                ]
            )
        except Exception as error:
            if size == 1:
                raise
            size = min(size, runs) // 2 if is_out_of_memory(error) else 1  # torch cannot map some operation


def logits_without(frozen: Frozen, masks: Mapping[str, Tensor], fillings: Mapping[str, Tensor] | None = None) -> Tensor:
    """(R, B, C) logits of R runs of the real network in which some units are set to zero.

    Args:
        masks: by the name of a gate, (R, B, *shape): True at the units that are set to zero.
        fillings: by the name of a gate, what they are set to instead.
    """
    if frozen.parts:  # one image after the other
        runs = [
            logits_without(part, {name: mask[:, number : number + 1] for name, mask in masks.items()}, fillings)
            for number, part in enumerate(frozen.parts)
        ]
        return torch.cat(runs, 1)
    gates = [gate for gate in frozen.network.gates.values() if gate.name in masks]
    with engine_precision(frozen.images.device):
        zero = frozen.images.new_zeros(())
        given = None if not fillings else [fillings.get(gate.name, zero) for gate in gates]
        return rerun(frozen, gates, [masks[gate.name] for gate in gates], given)


Run = Mapping[int, Mapping[int, Tensor]]
"""The units that one run is without: by image and layer, their numbers in the layer."""


def unit_masks(frozen: Frozen, runs: Sequence[Run]) -> dict[str, Tensor]:
    """By the name of a gate, (R, B, *shape) which units each run is without."""
    masks = {}
    for layer in sorted({layer for run in runs for units in run.values() for layer in units}):
        gates = frozen.network.layers[layer - 1]
        sizes = [gate.units for gate in gates]
        mask = torch.zeros(len(runs), len(frozen.images), sum(sizes), dtype=torch.bool)
        for number, run in enumerate(runs):
            for image, units in run.items():
                mask[number, image, units.get(layer, [])] = True
        for gate, part in zip(gates, mask.to(frozen.images.device).split(sizes, 2), strict=True):
            masks[gate.name] = part.unflatten(2, gate.shape)
    return masks


# --- The proof of a path ---------------------------------------------------------------------------------------------


def removals(
    frozen: Frozen, explanations: Sequence[Explanation], images: Sequence[int] | None = None
) -> list[Removal | None]:
    """What becomes of the class of each explanation without its path, and without as many other units at random.

    The random draws follow from the image and the path: they are the same in any batch and on any device. None for an
    explanation whose class has no finite logit without its units.

    Args:
        images: of every explanation the number of its image in the frozen batch; one explanation per image by default.
    """
    images = range(len(explanations)) if images is None else images
    results: list[Removal | None] = [None] * len(explanations)
    waiting = list(range(len(explanations)))
    while waiting:  # one explanation of every image at a time
        first = {images[number]: number for number in reversed(waiting)}
        waiting = [number for number in waiting if number not in first.values()]
        drawn = {image: Draws.of(frozen, image, explanations[number]) for image, number in first.items()}
        runs = [{image: one.run(number) for image, one in drawn.items()} for number in range(1 + DRAWS)]
        logits = logits_without(frozen, unit_masks(frozen, runs)).double().cpu()
        for image, number in first.items():
            results[number] = _removal(explanations[number], drawn[image], logits[:, image])
    return results


@dataclass(frozen=True)
class Draws:
    """The units that are removed of one image.

    Args:
        units: of every layer of the path, the units of each run as numbers in the layer: the path's first, then draws.
        active: how many units are active in these layers.
    """

    units: dict[int, list[Tensor]]
    active: int

    @classmethod
    def of(cls, frozen: Frozen, image: int, explanation: Explanation) -> Draws:
        own, number = (frozen.parts[image], 0) if frozen.parts else (frozen, image)
        paths = {layer.layer: layer.contributions()[0].cpu() for layer in explanation.path}
        seed = hashlib.sha256(own.images[number].cpu().float().contiguous().numpy().tobytes())
        for layer, path in paths.items():
            seed.update(f"{layer}:{path.sort().values.tolist()}".encode())
        units, active = {}, 0
        for layer, path in paths.items():
            gains = [own.slopes(gate).gain[number].flatten() for gate in own.network.layers[layer - 1]]
            others = torch.cat(gains).cpu() != 0
            active += int(others.sum())
            others[path] = False
            seeds = [hashlib.sha256(seed.digest() + f"{layer}:{draw}".encode()).digest() for draw in range(DRAWS)]
            units[layer] = [path, *(_draw(others, len(path), int.from_bytes(one[:7], "big")) for one in seeds)]
        return cls(units, active)

    def run(self, number: int) -> dict[int, Tensor]:
        """By layer, the units that a run is without."""
        return {layer: runs[number] for layer, runs in self.units.items()}

    def count(self, run: int) -> int:
        """How many units a run is without."""
        return sum(map(len, self.run(run).values()))


def _draw(eligible: Tensor, count: int, seed: int) -> Tensor:
    """The numbers of so many eligible units at random; of all where there are no more.

    Numbers are drawn until enough of them are eligible, so that one unit more or less, as rounding has it on another device,
    does not change the others.
    """
    if int(eligible.sum()) <= count:
        return eligible.nonzero().flatten()
    generator, chosen = torch.Generator().manual_seed(seed), dict[int, None]()
    while len(chosen) < count:
        tried = torch.randint(len(eligible), (max(1024, len(eligible) // 8),), generator=generator)
        chosen.update(dict.fromkeys(tried[eligible[tried]].tolist()))
    return torch.tensor(list(chosen)[:count], dtype=torch.long)


def _removal(explanation: Explanation, drawn: Draws, logits: Tensor) -> Removal | None:
    """The removal of a path, from logits (1 + DRAWS, C) of the runs."""
    if not bool(logits[0].isfinite().all()):
        return None
    before = explanation.logits.detach().cpu().double().flatten().softmax(0)
    after, others = logits[0].softmax(0), logits[1:].softmax(1)
    random_units = drawn.count(1) if bool(others.isfinite().all()) else 0

    def effect(target: int) -> tuple[float, float, float | None]:
        at_random = float(others[:, target].mean()) if random_units else None
        return float(before[target]), float(after[target]), at_random

    against = None if explanation.against is None else Effect(*effect(explanation.against))
    draws = DRAWS if random_units else 0
    return Removal(*effect(explanation.target), drawn.count(0), drawn.active, draws, random_units, against)


@dataclass(frozen=True)
class PartRemoval:
    """What the frozen network says that a part of a path does, beside what happens in the real one without it.

    Args:
        kind: a `unit`, all units that the path has in a `channel`, or in a `layer`.
        tensor: the activation that they belong to; None for a layer.
        index: of the unit; (c,) for a channel, () for a layer.
        units: how many units of the path these are.
        predicted: the sum of their contributions to what is explained: a logit, or the difference of two.
        measured: by how much that falls in the real network when they alone are set to zero.
        after: the probability of the class then.
    """

    kind: str
    layer: int
    tensor: str | None
    index: tuple[int, ...]
    units: int
    predicted: float
    measured: float
    after: float


MOST_PARTS = 64
"""How many units, and how many channels, of a path are removed one by one; of every layer as many."""


def part_removals(frozen: Frozen, explanation: Explanation, image: int = 0) -> list[PartRemoval]:
    """Each layer of a path, its strongest channels and its strongest units removed alone, from the output down.

    Args:
        image: the number of the explanation's image in the frozen batch.
    """
    frozen, image = (frozen.parts[image], 0) if frozen.parts else (frozen, image)
    target, against = explanation.target, explanation.against
    if against is None and frozen.network.outputs == 1:  # the two classes of one logit are against each other
        against = 1 - target

    def explained(logits: Tensor) -> float:
        """What contributions are parts of: the logit of the class, or its difference to another."""
        return float(logits[target] - (0.0 if against is None else logits[against]))

    before = explained(explanation.logits.detach().cpu().double().flatten())
    removed: list[PartRemoval] = []
    for layer in explanation.path:
        numbers = layer.contributions()[0].cpu()
        parts = _parts_of(layer, max(1, MOST_PARTS // len(explanation.path)))
        masks = unit_masks(frozen, [{image: {layer.layer: numbers[places]}} for *_, places in parts])
        logits = logits_without(frozen, masks)[:, image].double().cpu() if parts else ()
        for (kind, tensor, index, places), after in zip(parts, logits, strict=True):
            predicted, measured = _sum_of(layer, places), before - explained(after)
            if math.isfinite(measured):
                about = (kind, layer.layer, tensor, index, len(places))
                removed.append(PartRemoval(*about, predicted, measured, float(after.softmax(0)[target])))
    return removed


def _parts_of(layer: PathLayer, most: int) -> list[tuple[str, str | None, tuple[int, ...], list[int]]]:
    """The layer, its strongest channels and its strongest units, each as kind, tensor, index and places among the units."""
    if not layer.units:
        return []
    by_channel: dict[tuple[str, int], list[int]] = {}
    dims = {tensor.name: tensor.channel_dim for tensor in layer.tensors if len(tensor.shape) > 1}
    for place, unit in enumerate(layer.units):
        if unit.tensor in dims:
            by_channel.setdefault((unit.tensor, unit.index[dims[unit.tensor]]), []).append(place)
    channels = [("channel", tensor, (channel,), places) for (tensor, channel), places in by_channel.items()]
    units = [("unit", unit.tensor, unit.index, [place]) for place, unit in enumerate(layer.units)]
    for parts in (channels, units):
        parts.sort(key=lambda part: -abs(_sum_of(layer, part[3])))
    return [("layer", None, (), list(range(len(layer.units)))), *channels[:most], *units[:most]]


def _sum_of(layer: PathLayer, places: Sequence[int]) -> float:
    return math.fsum(layer.units[place].contribution for place in places)


# --- Any units -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, repr=False)
class Ablation:
    """One image's answer before and after.

    Args:
        target: the class that is followed.
        units: how many units were changed, active or not.
        active: how many of them were active.
        kept: how many active units their layers were left with.
        before: (C,) logits of the network as it is.
        after: (C,) logits with the units changed.
    """

    target: int
    units: int
    active: int
    kept: int
    before: Tensor
    after: Tensor

    @property
    def probabilities(self) -> tuple[float, float]:
        """The probability of the target before and after."""
        before, after = (float(logits.double().softmax(0)[self.target]) for logits in (self.before, self.after))
        return before, after

    @property
    def predictions(self) -> tuple[int, int]:
        """The predicted class before and after."""
        return int(self.before.argmax()), int(self.after.argmax())

    def __repr__(self) -> str:
        before, after = self.probabilities
        return f"<Ablation of {self.units} units: class {self.target} from {before:.1%} to {after:.1%}>"


def ablate(
    model: nn.Module | Loaded,
    images: Any,
    units: Iterable[UnitPlace] = (),
    *,
    path: Explanation | Sequence[Explanation] | None = None,
    keep: bool = False,
    means: Mapping[str, Tensor] | None = None,
    target: Target = None,
) -> list[Ablation]:
    """Set units to zero in the real network, not the frozen one, and see what it answers.

    Args:
        model: as for `pathx.explain`.
        images: as for `pathx.explain`.
        units: which units, the same for every image: `Unit`s, or (tensor, index). An index that is shorter than a unit's
            means all units below it: `("features.3", (7,))` is channel 7.
        path: all units of an explanation's path; one explanation, or one per image. May go with `units`.
        keep: the other way round: in every layer that is named, only these units stay.
        means: what the units are set to instead of zero: by the tensor's name, a value per channel or per unit.
        target: the class to follow, as for `pathx.explain`.
    """
    target = class_numbers(model, target)
    frozen, _ = freeze_model(model, images)
    before = class_logits(frozen.logits)
    targets = targets_of(before, target)
    check_classes(list(enumerate(targets)), None, before.shape[1])
    masks = {name: mask ^ keep for name, mask in _choose(frozen, list(units), path).items()}
    gates = {gate.name: gate for gate in frozen.network.gates.values()}
    active = {name: frozen.activation(gates[name]) != 0 for name in masks}
    fillings = {name: _fill_value(frozen, gates[name], mean) for name, mean in (means or {}).items() if name in masks}
    after = logits_without(frozen, {name: mask[None] for name, mask in masks.items()}, fillings)[0]
    if not bool(after.isfinite().all()):
        raise PathxError("the model's output without these units is NaN or infinite; check the values they are set to")

    def count(units: Iterable[Tensor]) -> list[int]:
        counts: list[int] = torch.stack([one.flatten(1).sum(1) for one in units]).sum(0).tolist()
        return counts

    removed = count(mask & active[name] for name, mask in masks.items())
    left = count(~mask & active[name] for name, mask in masks.items())
    entries = zip(targets, count(masks.values()), removed, left, before, after, strict=True)
    return [Ablation(*entry) for entry in entries]


def _choose(
    frozen: Frozen, units: Sequence[UnitPlace], path: Explanation | Sequence[Explanation] | None
) -> dict[str, Tensor]:
    """Of each activation of the layers that are named, (B, *shape) which units are meant."""
    count, masks = len(frozen.images), dict[str, Tensor]()
    layers = {gate.name: layer for layer in frozen.network.layers for gate in layer}
    paths = [path] * count if isinstance(path, Explanation) else list(path or [])
    if path is not None and len(paths) != count:
        raise PathxError(f"path has {len(paths)} explanations for {count} images; give one each", usage=True)
    wanted: list[tuple[int | slice, UnitPlace]] = [(slice(None), place) for place in units]
    for image, explanation in enumerate(paths):
        wanted += [(image, unit) for layer in explanation.path for unit in layer.units]

    def name_layer(name: str) -> None:
        if name not in layers:
            near = [other for other in layers if name.split(".")[-1] in other][:3] or list(layers)[-3:]
            raise PathxError(
                f"there is no activation named {name!r} in the network; it has {', '.join(near)}, …", usage=True
            )
        if name not in masks:
            for gate in layers[name]:
                masks[gate.name] = torch.zeros(count, *gate.shape, dtype=torch.bool, device=frozen.images.device)

    for explanation in paths:
        for layer in explanation.path:  # also those that keep no unit
            name_layer(layer.tensors[0].name)
    for number, unit in wanted:
        name, index = (unit.tensor, unit.index) if isinstance(unit, Unit) else unit
        name_layer(name)
        shape = masks[name].shape[1:]
        if len(index) > len(shape) or not all(0 <= at < size for at, size in zip(index, shape, strict=False)):
            place, size = ",".join(map(str, index)), " x ".join(map(str, shape))
            raise PathxError(f"{name} [{place}] is out of range: its shape is {size}, counted from 0", usage=True)
        masks[name][(number, *index)] = True
    if not masks:
        raise PathxError("there is no unit to change: name units, channels or a path", usage=True)
    return masks


def _fill_value(frozen: Frozen, gate: Gate, mean: Tensor) -> Tensor:
    """What the units of a gate are set to, in a shape that fits its output."""
    mean = torch.as_tensor(mean).to(frozen.images)
    if mean.shape == gate.shape:
        return mean
    channels = frozen.network.tensor(gate).channel_dim
    if mean.dim() == 1 and len(mean) == gate.shape[channels]:
        return mean.reshape([-1 if dim == channels else 1 for dim in range(len(gate.shape))])
    raise PathxError(
        f"the means of {gate.name} are {tuple(mean.shape)}, which is neither per channel nor per unit", usage=True
    )
