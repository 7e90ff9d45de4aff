"""`pathx.check`: an explanation's arithmetic, whether it depends on what the model learned, and how stable it is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.ablate import part_removals
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import freeze
from pathx.engine.linear import frozen_gradients
from pathx.engine.network import Network
from pathx.engine.record.model import named_tensors, unwrap
from pathx.engine.settings import check_depth
from pathx.errors import PathxError, shown
from pathx.evaluation import plots
from pathx.evaluation.records import write_json
from pathx.evaluation.statistics import spearman
from pathx.explanation import Explanation
from pathx.images.find import images_in
from pathx.maps import plane
from pathx.models.load import LoadedModel
from pathx.pipeline import Note, Prepared, SeenImage, Watch, no_notes, no_progress, prepare
from pathx.results.files import check_folder
from pathx.results.schema import created_by

SCHEMA = "pathx/check@1"
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-10}
"""The largest rounding error of completeness, as a share of the terms."""

_ROUNDING_WORDS = {True: "rounding", False: "more than rounding: please report this"}

RUNS, DRAWS, NOISE, SEED = 3, 8, 0.01, 0
"""The number of randomised networks and of noisy images; the noise's deviation as a share of a pixel's range."""

MOST_NUMBERS = 200_000_000
"""The most units times classes of a path that keeps everything; of larger paths fewer layers are checked."""

CHANGED, STEADY = 0.3, 0.7
"""Limits of the rank correlation: at most CHANGED between a trained and a randomised model, on average along the cascade; at least
STEADY under noise, where at least this share of the units must also stay."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        passed: None if the check cannot be made, or is only informative.
        verdict: the outcome in words, with the numbers.
        figures: all numbers.
    """

    passed: bool | None
    verdict: str
    figures: dict[str, Any]


@dataclass(frozen=True, repr=False)
class Checked:
    """All checks of one image."""

    image: str
    target: str
    settings: dict[str, Any]
    model: dict[str, Any]
    findings: dict[str, Finding]

    def __repr__(self) -> str:
        failed = [name for name, finding in self.findings.items() if finding.passed is False]
        return f"<Checked {self.target!r} in {self.image}: {', '.join(failed) + ' failed' if failed else 'passed'}>"

    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings.values())

    @property
    def verdict(self) -> str:
        """The conclusion for the user, in one sentence."""
        wrong = [name for name, finding in self.findings.items() if finding.passed is False]
        if wrong == ["randomisation"]:
            return (
                "the numbers add up, but the heatmap hardly depends on what the upper layers learned: it shows what the "
                "network responds to more than what supports this class alone; try a smaller `width`"
            )
        if wrong:
            return "do not trust the explanation: its numbers are wrong"
        if self.findings["stability"].figures["steady"]:
            return "the explanation can be trusted as far as these checks go"
        return "the numbers add up, but a little noise changes what is shown: do not rely on single units or details"

    @property
    def document(self) -> dict[str, Any]:
        """check.json."""
        return {
            "schema": SCHEMA,
            "image": self.image,
            "target": self.target,
            "settings": self.settings,
            "model": self.model,
            "passed": self.passed,
            "verdict": self.verdict,
            "checks": {name: asdict(finding) for name, finding in self.findings.items()},
            "created_by": created_by(),
        }


def check(
    model: LoadedModel,
    image: str | Path,
    *,
    out: str | Path | None = None,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
    device: str = "auto",
    dtype: str = "float32",
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> Checked:
    """Check whether explanations of a model can be trusted, on one image.

    Args:
        out: folder for check.json and the plot of the randomisation test; None to write nothing.
    """
    if out is not None:
        check_folder(out)
    file, *others = images_in([str(image)])
    if others:
        raise PathxError(f"{shown(image)} has {len(others) + 1} images, and a check takes one: name it", usage=True)
    prepared = prepare(model, device=device, dtype=dtype, exact=exact, note=note)
    settings = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
    seen = prepared.see_one(file)
    with watch(RUNS * len(layers_of(prepared.network)) + 3) as progress:
        (explanation,) = _explain(prepared.module, seen.input[None], seen.target, settings)
        findings = {"completeness": completeness(explanation)}
        progress(1)
        findings["unwrapping"] = unwrapping(prepared, seen, depth)
        progress(1)
        findings["randomisation"] = randomisation(prepared, seen, explanation, settings, progress)
        findings["stability"] = stability(prepared, seen, explanation, settings)
        findings["removal"] = removal(prepared, seen, explanation)
        progress(1)
        findings["device"] = device_agreement(prepared, seen, settings)
    found = Checked(file.name, prepared.labels[seen.target], settings, prepared.about, findings)
    if out is not None:
        lines = findings["randomisation"].figures.get("layers")
        if lines and plots.can_plot(note):
            plots.plot_randomisation(Path(out) / "randomisation", lines)
        write_json(Path(out) / "check.json", found.document)
    return found


def _explain(module: nn.Module, images: Tensor, target: int, settings: dict[str, Any]) -> list[Explanation]:
    wanted = [(number, target) for number in range(len(images))]
    return explain_frozen(freeze(module, images), wanted, **settings)


def completeness(explanation: Explanation) -> Finding:
    """Attribution and bias must add up to the score."""
    attribution = explanation.attribution.double()
    residual = explanation.score - explanation.bias - float(attribution.sum())
    scale = float(attribution.abs().sum()) + abs(explanation.bias) + abs(explanation.score)
    share, limit = (abs(residual) / scale if scale else 0.0), ROUNDING[explanation.attribution.dtype]
    passed = share <= limit
    added = f"attribution and bias add up to the score {explanation.score:.4g}"
    verdict = f"{added}; the difference of {residual:.1e} is {_ROUNDING_WORDS[passed]}"
    return Finding(passed, verdict, {"residual": residual, "score": explanation.score, "share": share, "limit": limit})


def unwrapping(prepared: Prepared, seen: SeenImage, depth: int | str) -> Finding:
    """A path that keeps every unit must have the gradient of the logit in the frozen network (a ReLU network: its own)."""
    layers = _affordable(prepared, check_depth(depth, prepared.network))
    everything = {"depth": layers, "width": "all", "alpha": 0.0, "skips": "all"}
    (explanation,) = _explain(prepared.module, seen.input[None], seen.target, everything)
    if explanation.exact == "region":
        known = "the plain gradient"
        with torch.enable_grad():
            image = seen.input[None].clone().requires_grad_()
            (gradient,) = torch.autograd.grad(prepared.classifier(image)[0, seen.target], image)
    else:
        known = "the frozen network's gradient"
        gradient = frozen_gradients(freeze(prepared.module, seen.input[None]), [seen.target])
    largest = float(gradient.abs().max())
    difference = float((explanation.weight - gradient[0]).abs().max())
    share, limit = (difference / largest if largest else difference), 100 * ROUNDING[prepared.dtype]
    passed = share <= limit
    where = "the top layer" if layers == 1 else f"{layers} layers"
    kept = f"a path that keeps every unit of {where} differs from {known} by {share:.1e} of its largest value"
    verdict = f"{kept}, which is {_ROUNDING_WORDS[passed]}"
    figures = {"depth": layers, "difference": difference, "largest": largest, "share": share, "limit": limit}
    return Finding(passed, verdict, figures)


def _affordable(prepared: Prepared, depth: int) -> int:
    """The number of layers that a path can keep whole; at least one."""
    units = [sum(gate.units for gate in layer) for layer in reversed(prepared.network.layers)]
    sums = [sum(units[:count]) * len(prepared.labels) for count in range(1, depth + 1)]
    return max(1, sum(numbers <= MOST_NUMBERS for numbers in sums))


def layers_of(network: Network) -> dict[str, list[str]]:
    """The modules that have weights, from the output to the input, and the names of these."""
    uses: dict[str, int] = {}
    first = {value: node.index for node in reversed(network.nodes) for value in node.inputs}
    weights: dict[str, list[str]] = {}
    for value, names in network.graph.constants.items():
        for name in sorted(names or ()) if value in first else ():
            module = name.rpartition(".")[0] or name
            uses[module] = max(uses.get(module, -1), first[value])
            if name not in weights.setdefault(module, []):
                weights[module].append(name)
    return {module: weights[module] for module in sorted(uses, key=lambda module: -uses[module])}


def randomisation(
    prepared: Prepared,
    seen: SeenImage,
    explanation: Explanation,
    settings: dict[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> Finding:
    """Shuffle the weights of one module after the other, from the top: the explanation must change."""

    def maps(module: nn.Module) -> dict[str, Tensor]:
        (other,) = _explain(module, seen.input[None], explanation.target, settings)
        return maps_of(other)

    lines = cascade(prepared, maps_of(explanation), maps, progress)
    if not lines:
        return Finding(None, "the model's weights have no names, so they cannot be randomised", {})
    return judge_cascade(lines)


def maps_of(explanation: Explanation) -> dict[str, Tensor]:
    """The maps of an explanation that are compared: the pixel map, its magnitudes, and the path map."""
    signed = plane(explanation.attribution)
    maps = {"signed": signed, "absolute": signed.abs()}
    return maps | ({"path_map": explanation.path_map()} if explanation.mapped else {})


def cascade(
    prepared: Prepared,
    reference: Mapping[str, Tensor],
    maps: Callable[[nn.Module], Mapping[str, Tensor]],
    progress: Callable[[int], None] = lambda done: None,
) -> list[dict[str, Any]]:
    """For every module with weights, from the output down: each map's correlation after randomising it and all modules above.

    Args:
        reference: the maps of the trained model, by name.
        maps: gives the maps of a randomised model.
    """
    layers = layers_of(prepared.network)
    found: list[dict[str, list[float]]] = [{name: [] for name in reference} for _ in layers]
    tensors = dict(named_tensors(unwrap(prepared.module)))
    for run in range(RUNS):
        generator = torch.Generator().manual_seed(SEED + run)
        with _restore_after(tensors[name] for names in layers.values() for name in names):
            for number, names in enumerate(layers.values()):
                for name in names:
                    _shuffle(tensors[name], generator)
                for kind, other in maps(prepared.module).items():
                    if (value := spearman(reference[kind], other)) is not None:
                        found[number][kind].append(value)
                progress(1)
    return [
        {"module": module, **{kind: _mean(values) for kind, values in line.items()}}
        for module, line in zip(layers, found, strict=True)
    ]


def judge_cascade(lines: Sequence[Mapping[str, Any]]) -> Finding:
    """Judge a cascade by the mean magnitude of the correlation along it.

    At its end alone, a map that draws the edges of the image until the first convolution is randomised would pass, too.
    """
    kept = {}
    for kind in ("signed", "path_map"):
        values = [abs(line[kind]) for line in lines if line.get(kind) is not None]
        if values:
            kept[kind] = fmean(values)
    figures = {"layers": list(lines), "runs": RUNS, "kept": kept, "limit": CHANGED}
    if "signed" not in kept:
        return Finding(None, "randomised models have empty explanations, so there is nothing to compare", figures)
    known = [line for line in lines if line["signed"] is not None]
    top, middle, last = known[0], known[len(known) // 2], known[-1]
    passed = kept["signed"] <= CHANGED
    where = ", ".join(f"{line['signed']:.2f} down to {line['module']}" for line in (middle, last))
    text = (
        f"the rank correlation with the explanation is {top['signed']:.2f} once {top['module']} is randomised, {where}; "
        f"{kept['signed']:.2f} on average"
    )
    if "path_map" in kept:
        text += f" ({kept['path_map']:.2f} for the path map)"
    follows = "it depends on what the model learned" if passed else "it hardly depends on what most layers learned"
    return Finding(passed, f"{text}: {follows}", figures)


@contextmanager
def _restore_after(tensors: Iterable[Tensor]) -> Iterator[None]:
    """Restore the values of tensors afterwards."""
    before = [(tensor, tensor.detach().clone()) for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in before:
                tensor.copy_(values)


def _shuffle(tensor: Tensor, generator: torch.Generator) -> None:
    """Shuffle a tensor's values: their distribution stays."""
    if tensor.is_floating_point() and tensor.numel() > 1:
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        with torch.no_grad():
            tensor.copy_(tensor.detach().flatten()[order].reshape(tensor.shape))


def stability(prepared: Prepared, seen: SeenImage, explanation: Explanation, settings: dict[str, Any]) -> Finding:
    """Add a little noise to the image: the explanation should hardly change."""
    generator = torch.Generator().manual_seed(SEED)
    deviation = NOISE / torch.tensor(prepared.model.preprocessing.std).reshape(-1, 1, 1)
    correlations, common, same = [], [], 0
    for _ in range(DRAWS):
        noise = torch.randn(seen.input.shape, generator=generator) * deviation
        frozen = freeze(prepared.module, (seen.input + noise.to(seen.input))[None])
        same += int(frozen.logits.argmax() == explanation.target) if frozen.logits.shape[1] > 1 else 1
        (other,) = explain_frozen(frozen, [(0, explanation.target)], **settings)
        value = spearman(explanation.attribution.sum(0), other.attribution.sum(0))
        correlations += [] if value is None else [value]
        common.append(_common_units(explanation, other))
    correlation, units = _mean(correlations), fmean(common)
    figures = {
        "noise": NOISE,
        "draws": DRAWS,
        "correlation": correlation,
        "units_in_common": units,
        "same_prediction": same / DRAWS,
        "steady_from": STEADY,
        "steady": correlation is not None and min(correlation, units) >= STEADY,
    }
    if correlation is None:
        return Finding(None, "the explanation is the same everywhere, so there is nothing to compare", figures)
    steady = "steady" if figures["steady"] else "not steady; compare several depths and widths before trusting details"
    text = f"noise of {NOISE:.0%} leaves {units:.0%} of the units and a rank correlation of {correlation:.2f}"
    return Finding(None, f"{text}: {steady}", figures)


def removal(prepared: Prepared, seen: SeenImage, explanation: Explanation) -> Finding:
    """Remove units and channels of the path from the real network one by one, and compare with what the path predicts."""
    parts = part_removals(freeze(prepared.module, seen.input[None]), explanation)
    kinds = {f"{kind}s": [part for part in parts if part.kind == kind] for kind in ("channel", "unit")}
    correlations = {
        kind: spearman(torch.tensor([p.predicted for p in own]), torch.tensor([p.measured for p in own]))
        for kind, own in kinds.items()
        if len(own) > 2
    }
    known = {kind: value for kind, value in correlations.items() if value is not None}
    figures = {"parts": [asdict(part) for part in parts], "correlation": known}
    if not known:
        return Finding(
            None, "the path has too few units to compare what it predicts with what removing them does", figures
        )
    text = " and ".join(f"{value:.2f} for {kind}" for kind, value in known.items())
    verdict = f"the rank correlation between the predicted effects and those of removing parts of the path one by one is {text}"
    return Finding(None, verdict, figures)


TIE = 1e-3
"""Rounding may swap importances that differ by less than this share."""

CLOSE = {torch.float32: 1e-3, torch.float64: 1e-8}
"""The largest difference of attributions between devices, as a share of the largest value."""


def device_agreement(prepared: Prepared, seen: SeenImage, settings: dict[str, Any]) -> Finding:
    """Explain one image on the model's device and on the CPU in float64: both must keep the same units, but for ties."""
    timed = prepared.device.type != "cpu"
    here, seconds = _time(prepared, seen.input, seen.target, settings, timed)
    exact, cpu_seconds = _time(prepared, seen.input.cpu().double(), seen.target, settings, timed)
    layers, (same, tie) = len(exact.path), same_layers(here, exact)
    times = f"; {seconds:.3g} s against {cpu_seconds:.3g} s" if timed else ""
    name, limit = f"{prepared.device} in {str(prepared.dtype).removeprefix('torch.')}", CLOSE[prepared.dtype]
    difference, where = None, f"layer {same + 1} of {layers} from the output"
    if same == layers:
        scale = float(exact.attribution.abs().max()) or 1.0
        difference = float((here.attribution.cpu().double() - exact.attribution).abs().max()) / scale
        passed = difference <= limit
        verdict = (
            f"{name} and the CPU in float64 keep the same units in all {layers} layers, with attributions that differ by "
            f"{difference:.1e} of the largest value, which is {_ROUNDING_WORDS[passed]}"
        )
    elif passed := tie:
        verdict = f"{name} and the CPU in float64 choose between units of equal importance in {where}"
    else:
        verdict = f"{name} keeps other units than the CPU in float64 from {where} on: please report this"
    figures = {"device": name, "layers": layers, "same": same, "tie": tie, "difference": difference, "limit": limit}
    return Finding(passed, verdict + times, {**figures, "seconds": seconds, "cpu_seconds": cpu_seconds})


def _time(
    prepared: Prepared, image: Tensor, target: int, settings: dict[str, Any], timed: bool
) -> tuple[Explanation, float | None]:
    """The explanation, and the median of its seconds once the network is analysed."""
    times = []
    for _ in range(RUNS + 1 if timed else 1):
        start = perf_counter()
        (made,) = _explain(prepared.module, image[None], target, settings)
        times.append(perf_counter() - start)
    return made, median(times[1:]) if timed else None


def same_layers(here: Explanation, exact: Explanation) -> tuple[int, bool]:
    """The number of layers from the output down that keep the same units, and whether the next one is tied."""
    for number, pair in enumerate(zip(here.path, exact.path, strict=True)):
        first, second = ({(unit.tensor, unit.index): unit.importance for unit in layer.units} for layer in pair)
        if first.keys() != second.keys():
            least = min([*first.values(), *second.values()])
            odd = [first.get(unit, second.get(unit, 0.0)) for unit in first.keys() ^ second.keys()]
            return number, all(abs(one - least) <= TIE * max(least, 1 / len(exact.logits)) for one in odd)
    return len(exact.path), False


def _common_units(first: Explanation, second: Explanation) -> float:
    """Units on both paths, as a share of those on either."""
    one, other = ({(u.tensor, u.index) for layer in e.path for u in layer.units} for e in (first, second))
    return len(one & other) / len(one | other) if one | other else 1.0


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
