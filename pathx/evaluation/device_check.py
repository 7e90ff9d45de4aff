"""Does a device keep the units that exact arithmetic keeps? The same explanation there, and on the CPU in float64."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import perf_counter
from typing import Any

import torch

from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.explanation import Explanation, PathLayer
from pathx.pipeline import Prepared, SeenImage

TIE = 1e-3
"""Importances that differ by less than this share, relative to 1/classes, may be told apart differently by rounding."""

CLOSE = {torch.float32: 1e-3, torch.float64: 1e-8}
"""How much of the largest value of an attribution may differ."""

RUNS = 3


@dataclass(frozen=True)
class DeviceComparison:
    """A device compared with the CPU.

    Args:
        layers: of the path, and
        same: how many of them, from the output down, keep the same units.
        tie: whether the first layer that does not had to choose between units of equal importance.
        difference: of the attributions, as a share of the largest value; None where the paths differ.
        seconds, cpu_seconds: of one explanation, once the network is traced; None where the device is the CPU.
    """

    layers: int
    same: int
    tie: bool
    difference: float | None
    limit: float
    seconds: float | None
    cpu_seconds: float | None
    device: str

    @property
    def passed(self) -> bool:
        if self.difference is None:
            return self.tie
        return self.difference <= self.limit

    @property
    def verdict(self) -> str:
        times = "" if self.seconds is None else f"; {self.seconds:.3g} s against {self.cpu_seconds:.3g} s"
        if self.difference is not None:
            close = f"attributions that differ by {self.difference:.1e} of the largest value"
            good = f"{self.device} and the CPU in float64 keep the same units in all {self.layers} layers, with {close}"
            return (
                f"{good}{times}" if self.passed else f"{good}, which is more than rounding: please report this{times}"
            )
        where = f"layer {self.same + 1} of {self.layers} from the output"
        if self.tie:
            return f"{self.device} and the CPU in float64 choose between units of equal importance in {where}{times}"
        return f"{self.device} keeps other units than the CPU in float64 from {where} on: please report this{times}"

    @property
    def figures(self) -> dict[str, Any]:
        names = ("device", "layers", "same", "tie", "difference", "limit", "seconds", "cpu_seconds")
        return {name: getattr(self, name) for name in names}


def compare_device(prepared: Prepared, seen: SeenImage, settings: dict[str, Any]) -> DeviceComparison:
    """Explain one image on the model's device and on the CPU in float64, and compare."""
    here, seconds = _time_both(prepared, seen, settings, seen.input)
    exact, cpu_seconds = _time_both(prepared, seen, settings, seen.input.cpu().double())
    same, tie = _in_common(here, exact)
    difference = None
    if same == len(exact.path):
        scale = float(exact.attribution.abs().max()) or 1.0
        difference = float((here.attribution.cpu().double() - exact.attribution).abs().max()) / scale
    name = f"{prepared.device} in {str(prepared.dtype).removeprefix('torch.')}"
    limit = CLOSE[prepared.dtype]
    timed = prepared.device.type != "cpu"
    return DeviceComparison(
        *(len(exact.path), same, tie, difference, limit),
        seconds=seconds if timed else None,
        cpu_seconds=cpu_seconds if timed else None,
        device=name,
    )


def _time_both(
    prepared: Prepared, seen: SeenImage, settings: dict[str, Any], image: torch.Tensor
) -> tuple[Explanation, float]:
    """The explanation, and the median seconds that it takes."""
    times = []
    for _ in range(RUNS + 1):  # the first traces the network, and does not count
        start = perf_counter()
        (made,) = explain_frozen(freeze(prepared.module, image[None]), [(0, seen.target)], **settings)
        times.append(perf_counter() - start)
    return made, median(times[1:])


def _in_common(here: Explanation, exact: Explanation) -> tuple[int, bool]:
    """How many layers from the output down keep the same units, and whether the next had to break a tie."""
    for number, (mine, theirs) in enumerate(zip(here.path, exact.path, strict=True)):
        first, second = _importances(mine), _importances(theirs)
        if first.keys() != second.keys():
            return number, _is_tie(first, second, len(exact.logits))
    return len(exact.path), False


Importances = dict[tuple[str, tuple[int, ...]], float]


def _importances(layer: PathLayer) -> Importances:
    return {(unit.tensor, unit.index): unit.importance for unit in layer.units}


def _is_tie(first: Importances, second: Importances, classes: int) -> bool:
    """Whether all units that only one of two layers keeps are as important as the least that either keeps."""
    least = min([*first.values(), *second.values()], default=0.0)
    odd = [first.get(unit, second.get(unit, 0.0)) for unit in first.keys() ^ second.keys()]
    return all(abs(value - least) <= TIE * max(least, 1 / classes) for value in odd)
