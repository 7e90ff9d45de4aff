"""What becomes of the answer without some units: they are changed in the network itself, and all its gates follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from pathx.engine.device import exactly
from pathx.engine.explain import Loaded, class_logits, opened, targets_of
from pathx.engine.freeze import freeze, network_and_tensors
from pathx.engine.network import Gate, Network
from pathx.errors import PathxError
from pathx.explanation import Explanation, Unit

if TYPE_CHECKING:
    UnitPlace = Unit | tuple[str, Sequence[int]]


@dataclass(frozen=True, eq=False)
class Ablation:
    """One image's answer before and after.

    Args:
        target: the class that is followed.
        units: how many units were changed, active or not.
        active: how many of them were active.
        before: (C,) logits of the network as it is.
        after: (C,) logits with the units changed.
    """

    target: int
    units: int
    active: int
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


def ablate(
    model: nn.Module | Loaded,
    images: Tensor,
    units: Iterable[UnitPlace] = (),
    *,
    path: Explanation | Sequence[Explanation] | None = None,
    keep: bool = False,
    means: Mapping[str, Tensor] | None = None,
    target: int | Sequence[int] | None = None,
) -> list[Ablation]:
    """Set units to zero in the real network, not the frozen one, and see what it answers.

    Args:
        model: as for `pathx.explain`.
        images: (B, …) as the model takes them.
        units: which units, the same for every image: `Unit`s, or (tensor, index). An index that is shorter than a unit's
            means all units below it: `("features.3", (7,))` is channel 7.
        path: all units of an explanation's path; one explanation, or one per image. May go with `units`.
        keep: the other way round: in every ReLU's layer that is named, only these units stay.
        means: what the units are set to instead of zero: by the tensor's name, a value per channel or per unit.
        target: the class to follow: None for the predicted one, a number, or one number per image.
    """
    module, _ = opened(model)
    frozen = freeze(module, images)
    images, network = frozen.images, frozen.network
    with exactly(images.device):
        chosen = _chosen(network, images, list(units), path)
        masks = _kept_only(network, chosen) if keep else chosen
        gates = [gate for gate in network.gates.values() if gate.name in masks]
        active = torch.zeros(len(images), dtype=torch.long, device=images.device)
        for gate in gates:
            active += ((frozen.activation(gate) != 0) & masks[gate.name]).flatten(1).sum(1)

        def change(gate: Gate, output: Tensor) -> Tensor:
            return torch.where(masks[gate.name], _filling(gate, output, (means or {}).get(gate.name)), output)

        edits = {gate.output: partial(change, gate) for gate in gates}
        changed = network_and_tensors(module, images, edits)[1][network.logits]
        before, after = (class_logits(logits.reshape(len(images), -1)) for logits in (frozen.logits, changed))
    targets = targets_of(before, target)
    wrong = next((one for one in targets if not 0 <= one < before.shape[1]), None)
    if wrong is not None:
        last = before.shape[1] - 1
        raise PathxError(f"target {wrong} is out of range: the model has classes 0 to {last}", usage=True)
    counts = [sum(int(mask[number].sum()) for mask in masks.values()) for number in range(len(images))]
    if not bool(after.isfinite().all()):
        raise PathxError("the model's output without these units is NaN or infinite; check the values they are set to")
    return [Ablation(*entry) for entry in zip(targets, counts, active.tolist(), before, after, strict=True)]


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
        raise PathxError(f"there is no ReLU named {name!r} in the network; it has {', '.join(near)}, …", usage=True)
    return gates[name]


def _check_index(gate: Gate, index: tuple[int, ...]) -> None:
    fits = len(index) <= len(gate.shape)
    if not fits or not all(0 <= at < size for at, size in zip(index, gate.shape, strict=False)):
        place = ",".join(map(str, index))
        shape = " x ".join(map(str, gate.shape))
        raise PathxError(f"{gate.name} [{place}] is out of range: its shape is {shape}, counted from 0", usage=True)


def _filling(gate: Gate, output: Tensor, mean: Tensor | None) -> Tensor:
    """What units are set to, in a shape that fits the gate's output."""
    if mean is None:
        return torch.zeros((), dtype=output.dtype, device=output.device)
    mean = torch.as_tensor(mean).to(output)
    if mean.shape == gate.shape:
        return mean
    if mean.dim() == 1 and len(mean) == gate.shape[0]:
        return mean.reshape(-1, *[1] * (len(gate.shape) - 1))
    raise PathxError(
        f"the means of {gate.name} are {tuple(mean.shape)}, which is neither per channel nor per unit", usage=True
    )
