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
from pathx.engine.explain import Loaded, open_model, read_images
from pathx.engine.freeze import Frozen, freeze
from pathx.engine.network import Gate, Network
from pathx.engine.record.operations import Node, Value, by_value, run_node
from pathx.engine.settings import Target, class_logits, class_numbers, targets_of
from pathx.errors import PathxError
from pathx.explanation import Effect, Explanation, PathLayer, Removal, Unit

if TYPE_CHECKING:
    UnitPlace = Unit | tuple[str, Sequence[int]]

DRAWS = 8
"""How many random choices of other units a removal is compared with."""

AT_ONCE = 1 << 22
"""How many numbers of input the runs that are computed at once may have: 27 images of 3 x 224 x 224."""


# --- Running the network again ---------------------------------------------------------------------------------------


class Rerun:
    """A frozen network run again from some of its gates up. Nothing is held there: every gate, norm and route follows.

    What lies below these gates is not touched by removing units of theirs, and is computed once at most.

    Args:
        gates: the gates whose units may be set to something else.
    """

    def __init__(self, frozen: Frozen, gates: Sequence[Gate]) -> None:
        self._frozen, self.gates = frozen, tuple(gates)
        network = frozen.network
        self._edited = {gate.output: number for number, gate in enumerate(gates)}
        follows: set[Value] = set()  # values that change with the units of the gates
        for node in network.nodes:
            if not follows.isdisjoint(node.inputs) or not self._edited.keys().isdisjoint(node.outputs):
                follows.update(value for value in node.outputs if value is not None)
        self._values = {**frozen.brought, **frozen.kept, network.graph.input: frozen.images}
        self._above = self._needed([network.logits], follows)
        entering = {value for node in self._above for value in node.inputs} - follows
        entering |= {value for value in self._edited if not self._reads(network.producers[value], follows)}
        for node in self._needed(entering, set(network.producers) - self._values.keys()):
            self._compute(node, self._values)
        self._entering = {value: self._values[value] for value in entering}
        self._above = [node for node in self._above if not entering.intersection(node.outputs)]
        self._last = {value: node.index for node in self._above for value in (*node.inputs, *node.outputs) if value}

    @staticmethod
    def _reads(node: Node, values: set[Value]) -> bool:
        return not values.isdisjoint(node.inputs)

    def _needed(self, wanted: Iterable[Value], among: set[Value]) -> list[Node]:
        """The nodes that have to run for some values, in order: those that make values of a set."""
        producers, found = self._frozen.network.producers, {}
        stack = [value for value in wanted if value in among]
        while stack:
            node = producers[stack.pop()]
            if node.index not in found:
                found[node.index] = node
                stack.extend(value for value in node.inputs if value in among)
        return [found[index] for index in sorted(found)]

    def _compute(self, node: Node, values: dict[Value, Tensor]) -> None:
        """Run one operation: what it makes is put among the values."""
        values.update(by_value(node, run_node(node, values)))

    def logits(self, masks: Sequence[Tensor], fillings: Sequence[Tensor] | None = None) -> Tensor:
        """(R, B, C) logits of R runs.

        Args:
            masks: for every gate (R, B, *shape), True at the units that are set to zero.
            fillings: for every gate what they are set to instead, (*shape) or anything that fits it.
        """
        runs, size = len(masks[0]), max(1, AT_ONCE // self._frozen.images.numel())
        while True:
            try:
                parts = [[mask[first : first + size] for mask in masks] for first in range(0, runs, size)]
                return torch.cat([self._run(part, fillings) for part in parts])
            except Exception as error:
                if size == 1:
                    raise
                size = min(size, runs) // 2 if is_out_of_memory(error) else 1  # torch cannot map some operation

    def _run(self, masks: Sequence[Tensor], fillings: Sequence[Tensor] | None) -> Tensor:
        def one(masks: Sequence[Tensor]) -> Tensor:
            return self._logits(masks, fillings)

        if len(masks[0]) == 1:
            return one([mask[0] for mask in masks])[None]
        mapped: Tensor = torch.vmap(one)(list(masks))
        return mapped

    def _logits(self, masks: Sequence[Tensor], fillings: Sequence[Tensor] | None) -> Tensor:
        values = dict(self._entering)

        def edit(value: Value) -> None:
            number = self._edited[value]
            output, shape = values[value], self.gates[number].shape
            filling = output.new_zeros(()) if fillings is None else fillings[number]
            values[value] = torch.where(masks[number], filling, output.reshape(-1, *shape)).reshape(output.shape)

        for output in self._edited.keys() & values.keys():
            edit(output)
        for node in self._above:
            self._compute(node, values)
            for output in self._edited.keys() & node.outputs:
                edit(output)
            for value in values.keys() & {*node.inputs, *node.outputs}:
                if self._last[value] == node.index and value != self._frozen.network.logits:
                    del values[value]
        return class_logits(values[self._frozen.network.logits].reshape(len(self._frozen.images), -1))


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
        return Rerun(frozen, gates).logits([masks[gate.name] for gate in gates], given)


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
    found: list[Removal | None] = [None] * len(explanations)
    waiting = list(range(len(explanations)))
    while waiting:  # one explanation of every image at a time
        first: dict[int, int] = {}
        for number in waiting:
            first.setdefault(images[number], number)
        waiting = [number for number in waiting if number not in first.values()]
        drawn = {image: Draws.of(frozen, image, explanations[number]) for image, number in first.items()}
        logits = logits_without(frozen, _masks(frozen, drawn)).double().cpu()
        for image, number in first.items():
            found[number] = _removal(explanations[number], drawn[image], logits[:, image])
    return found


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

    def count(self, run: int) -> int:
        """How many units a run is without."""
        return sum(len(runs[run]) for runs in self.units.values())


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


def _masks(frozen: Frozen, drawn: Mapping[int, Draws]) -> dict[str, Tensor]:
    """By the name of a gate, (1 + DRAWS, B, *shape) which units each run is without."""
    masks = {}
    batch, device = len(frozen.images), frozen.images.device
    for layer in sorted({layer for one in drawn.values() for layer in one.units}):
        gates = frozen.network.layers[layer - 1]
        sizes = [gate.units for gate in gates]
        mask = torch.zeros(1 + DRAWS, batch, sum(sizes), dtype=torch.bool)
        for image, one in drawn.items():
            for run, units in enumerate(one.units.get(layer, ())):
                mask[run, image, units] = True
        for gate, part in zip(gates, mask.to(device).split(sizes, 2), strict=True):
            masks[gate.name] = part.reshape(1 + DRAWS, batch, *gate.shape)
    return masks


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
    most = max(1, MOST_PARTS // max(1, len(explanation.path)))
    found: list[PartRemoval] = []
    for layer in explanation.path:
        parts = _parts_of(layer, most)
        if not parts:
            continue
        gates = frozen.network.layers[layer.layer - 1]
        masks = {
            gate.name: torch.zeros(len(parts), len(frozen.images), *gate.shape, dtype=torch.bool) for gate in gates
        }
        for run, (*_, units) in enumerate(parts):
            for unit in units:
                masks[unit.tensor][(run, image, *unit.index)] = True
        logits = logits_without(frozen, {name: mask.to(frozen.images.device) for name, mask in masks.items()})
        for (kind, tensor, index, units), after in zip(parts, logits[:, image].double().cpu(), strict=True):
            predicted = math.fsum(unit.contribution for unit in units)
            before = explanation.logits.detach().cpu().double().flatten()
            measured = _explained_logit(frozen, explanation, before) - _explained_logit(frozen, explanation, after)
            probability = float(after.softmax(0)[explanation.target])
            if math.isfinite(measured):
                about = (kind, layer.layer, tensor, index, len(units))
                found.append(PartRemoval(*about, predicted, measured, probability))
    return found


def _parts_of(layer: PathLayer, most: int) -> list[tuple[str, str | None, tuple[int, ...], list[Unit]]]:
    """The layer, its strongest channels and its strongest units, each as kind, tensor, index and units."""
    if not layer.units:
        return []
    by_channel: dict[tuple[str, int], list[Unit]] = {}
    dims = {tensor.name: tensor.channel_dim for tensor in layer.tensors if len(tensor.shape) > 1}
    for unit in layer.units:
        if unit.tensor in dims:
            by_channel.setdefault((unit.tensor, unit.index[dims[unit.tensor]]), []).append(unit)
    channels = [("channel", tensor, (channel,), units) for (tensor, channel), units in by_channel.items()]
    channels.sort(key=lambda one: -abs(math.fsum(unit.contribution for unit in one[3])))
    units = sorted(layer.units, key=lambda unit: -abs(unit.contribution))
    singles = [("unit", unit.tensor, unit.index, [unit]) for unit in units[:most]]
    return [("layer", None, (), list(layer.units)), *channels[:most], *singles]


def _explained_logit(frozen: Frozen, explanation: Explanation, logits: Tensor) -> float:
    """What contributions are parts of: the logit of the class, or its difference to another."""
    target, against = explanation.target, explanation.against
    if against is None and frozen.network.outputs == 1:  # the two classes of one logit are against each other
        against = 1 - target
    return float(logits[target] - (0.0 if against is None else logits[against]))


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
    module, _ = open_model(model)
    target = class_numbers(model, target)
    images, _ = read_images(model, images)
    frozen = freeze(module, images)
    images, network = frozen.images, frozen.network
    chosen = _chosen(network, images, list(units), path)
    masks = _kept_only(network, chosen) if keep else chosen
    gates = {gate.name: gate for gate in network.gates.values() if gate.name in masks}
    active, kept = (torch.zeros(len(images), dtype=torch.long, device=images.device) for _ in range(2))
    for layer in network.layers:
        for gate in layer if any(gate.name in masks for gate in layer) else ():
            is_active, mask = frozen.activation(gate) != 0, masks.get(gate.name, torch.tensor(False).to(images.device))
            active += (is_active & mask).flatten(1).sum(1)
            kept += (is_active & ~mask).flatten(1).sum(1)
    fillings = {
        name: _filling(network, gates[name], images, mean) for name, mean in (means or {}).items() if name in gates
    }
    before = class_logits(frozen.logits)
    after = logits_without(frozen, {name: mask[None] for name, mask in masks.items()}, fillings)[0]
    targets = targets_of(before, target)
    wrong = next((one for one in targets if not 0 <= one < before.shape[1]), None)
    if wrong is not None:
        last = before.shape[1] - 1
        raise PathxError(f"target {wrong} is out of range: the model has classes 0 to {last}", usage=True)
    counts = [sum(int(mask[number].sum()) for mask in masks.values()) for number in range(len(images))]
    if not bool(after.isfinite().all()):
        raise PathxError("the model's output without these units is NaN or infinite; check the values they are set to")
    return [
        Ablation(*entry) for entry in zip(targets, counts, active.tolist(), kept.tolist(), before, after, strict=True)
    ]


def _chosen(
    network: Network,
    images: Tensor,
    units: Sequence[UnitPlace],
    path: Explanation | Sequence[Explanation] | None,
) -> dict[str, Tensor]:
    """Of each tensor that is named, (B, *shape) which units are meant."""
    gates = {gate.name: gate for layer in network.layers for gate in layer}
    masks: dict[str, Tensor] = {}

    def mark(number: int | slice, place: UnitPlace) -> None:
        name, index = (place.tensor, place.index) if isinstance(place, Unit) else place
        gate = _gate_named(name, gates)
        _check_index(gate, tuple(index))
        mask = masks.setdefault(
            gate.name, torch.zeros(len(images), *gate.shape, dtype=torch.bool, device=images.device)
        )
        mask[(number, *index)] = True

    for place in units:
        mark(slice(None), place)
    if path is not None:
        paths = [path] * len(images) if isinstance(path, Explanation) else list(path)
        if len(paths) != len(images):
            raise PathxError(f"path has {len(paths)} explanations for {len(images)} images; give one each", usage=True)
        for number, explanation in enumerate(paths):
            for layer in explanation.path:
                for unit in layer.units:
                    mark(number, unit)
    if not masks:
        raise PathxError("there is no unit to change: name units, channels or a path", usage=True)
    return masks


def _kept_only(network: Network, chosen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The units that are not kept, in every layer that has one that is."""
    masks = {}
    for layer in network.layers:
        if any(gate.name in chosen for gate in layer):
            like = next(iter(chosen.values()))
            for gate in layer:
                kept = chosen.get(gate.name)
                masks[gate.name] = like.new_ones(len(like), *gate.shape) if kept is None else ~kept
    return masks


def _gate_named(name: str, gates: Mapping[str, Gate]) -> Gate:
    if name not in gates:
        near = [other for other in gates if name.split(".")[-1] in other][:3] or list(gates)[-3:]
        raise PathxError(
            f"there is no activation named {name!r} in the network; it has {', '.join(near)}, …", usage=True
        )
    return gates[name]


def _check_index(gate: Gate, index: tuple[int, ...]) -> None:
    fits = len(index) <= len(gate.shape)
    if not fits or not all(0 <= at < size for at, size in zip(index, gate.shape, strict=False)):
        place = ",".join(map(str, index))
        shape = " x ".join(map(str, gate.shape))
        raise PathxError(f"{gate.name} [{place}] is out of range: its shape is {shape}, counted from 0", usage=True)


def _filling(network: Network, gate: Gate, images: Tensor, mean: Tensor) -> Tensor:
    """What the units of a gate are set to, in a shape that fits its output."""
    mean = torch.as_tensor(mean).to(images)
    if mean.shape == gate.shape:
        return mean
    channels = network.tensor(gate).channel_dim
    if mean.dim() == 1 and len(mean) == gate.shape[channels]:
        return mean.reshape([-1 if dim == channels else 1 for dim in range(len(gate.shape))])
    raise PathxError(
        f"the means of {gate.name} are {tuple(mean.shape)}, which is neither per channel nor per unit", usage=True
    )
