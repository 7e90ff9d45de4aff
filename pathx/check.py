"""Is an explanation to be trusted? Its arithmetic, whether it depends on what the model learned, and how steady it is."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn

import pathx
from pathx.engine import check_depth, explain_frozen
from pathx.errors import PathxError
from pathx.explanation import Explanation
from pathx.folders import PictureFile
from pathx.frozen import freeze
from pathx.network import Network
from pathx.prepared import Prepared, Seen
from pathx.statistics import spearman
from pathx.trace import named_tensors, unwrapped

SCHEMA = "pathx/check@1"
ROUNDING = {torch.float32: 1e-5, torch.float64: 1e-10}
"""What rounding may leave of completeness, as a share of what is added up."""

RUNS, DRAWS, NOISE, SEED = 3, 8, 0.01, 0
"""Randomised copies; noisy pictures; the noise's deviation as a share of the range of a pixel."""

MOST_NUMBERS = 200_000_000
"""What a path that keeps everything may hold: units times classes. With more, fewer of its layers are checked."""

CHANGED, STEADY = 0.3, 0.7
"""Rank correlation: at most this between a trained and a randomised model; at least this under noise."""


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Args:
        passed: None where the check cannot be made, or says nothing of right and wrong.
        verdict: in words, with the numbers.
        figures: all numbers.
    """

    passed: bool | None
    verdict: str
    figures: dict[str, Any]


@dataclass(frozen=True)
class Checked:
    """All checks of one picture."""

    picture: str
    target: str
    settings: dict[str, Any]
    model: dict[str, Any]
    findings: dict[str, Finding]

    @property
    def passed(self) -> bool:
        return all(finding.passed is not False for finding in self.findings.values())

    @property
    def document(self) -> dict[str, Any]:
        """check.json."""
        return {
            "schema": SCHEMA,
            "picture": self.picture,
            "target": self.target,
            "settings": self.settings,
            "model": self.model,
            "passed": self.passed,
            "checks": {name: asdict(finding) for name, finding in self.findings.items()},
            "created_by": {"pathx": pathx.__version__, "torch": str(torch.__version__)},
        }


def check(
    prepared: Prepared,
    picture: PictureFile,
    *,
    depth: int | str = 3,
    width: int | str = 5,
    alpha: float | None = None,
    skips: str = "adjacent",
    progress: Callable[[int], None] = lambda done: None,
) -> Checked:
    """Check explanations of one picture's predicted class.

    Args:
        progress: called with 1 after each of `len(layers_of(prepared.network)) + 3` pieces of work.
    """

    def failed(source: PictureFile, error: PathxError) -> None:
        raise error

    ((seen,),) = prepared.see([picture], 1, failed)
    settings = {"depth": depth, "width": width, "alpha": alpha, "skips": skips}
    (explanation,) = _explain(prepared.module, seen.input[None], seen.target, settings)
    findings = {"completeness": completeness(explanation)}
    progress(1)
    findings["unwrapping"] = unwrapping(prepared, seen, depth)
    progress(1)
    findings["randomisation"] = randomisation(prepared, seen, explanation, settings, progress)
    findings["stability"] = stability(prepared, seen, explanation, settings)
    progress(1)
    return Checked(picture.name, prepared.labels[seen.target], settings, prepared.about, findings)


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
    added = f"attribution and bias add up to the score {explanation.score:.4g} but for {residual:.1e}"
    verdict = f"{added}, which is rounding" if passed else f"{added}, which is more than rounding: please report this"
    return Finding(passed, verdict, {"residual": residual, "score": explanation.score, "share": share, "limit": limit})


def unwrapping(prepared: Prepared, seen: Seen, depth: int | str) -> Finding:
    """A path that keeps every unit must be the plain gradient of the logit."""
    layers = _affordable(prepared, check_depth(depth, prepared.network))
    everything = {"depth": layers, "width": "all", "alpha": 0.0, "skips": "all"}
    (explanation,) = _explain(prepared.module, seen.input[None], seen.target, everything)
    with torch.enable_grad():
        image = seen.input[None].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(prepared.classifier(image)[0, seen.target], image)
    largest = float(gradient.abs().max())
    difference = float((explanation.weight - gradient[0]).abs().max())
    share, limit = (difference / largest if largest else difference), 100 * ROUNDING[prepared.dtype]
    passed = share <= limit
    where = "the top layer" if layers == 1 else f"{layers} layers"
    kept = (
        f"a path that keeps every unit of {where} differs from the plain gradient by {share:.1e} of its largest value"
    )
    verdict = f"{kept}, which is rounding" if passed else f"{kept}, which is more than rounding: please report this"
    figures = {"depth": layers, "difference": difference, "largest": largest, "share": share, "limit": limit}
    return Finding(passed, verdict, figures)


def _affordable(prepared: Prepared, depth: int) -> int:
    """How many of a path's layers can be kept whole; at least one."""
    units = [sum(gate.units for gate in layer) for layer in reversed(prepared.network.layers)]
    sums = [sum(units[:count]) * len(prepared.labels) for count in range(1, depth + 1)]
    return max(1, sum(numbers <= MOST_NUMBERS for numbers in sums))


def layers_of(network: Network) -> dict[str, list[str]]:
    """The modules that have weights, from the output to the input, and the names of these."""
    uses: dict[str, int] = {}
    first = {value: node.index for node in reversed(network.nodes) for value in node.inputs}
    weights: dict[str, list[str]] = {}
    for name, value in network.graph.parameters.items():
        if value in first:
            module = name.rpartition(".")[0] or name
            uses[module] = max(uses.get(module, -1), first[value])
            weights.setdefault(module, []).append(name)
    return {module: weights[module] for module in sorted(uses, key=lambda module: -uses[module])}


def randomisation(
    prepared: Prepared,
    seen: Seen,
    explanation: Explanation,
    settings: dict[str, Any],
    progress: Callable[[int], None] = lambda done: None,
) -> Finding:
    """Shuffle the weights of one module after the other, from the top: the explanation must change."""
    layers = layers_of(prepared.network)
    if not layers:
        return Finding(None, "the model's weights have no names, so that they cannot be randomised", {})
    signed: list[list[float]] = [[] for _ in layers]
    absolute: list[list[float]] = [[] for _ in layers]
    reference = explanation.attribution.sum(0)
    for run in range(RUNS):
        generator = torch.Generator().manual_seed(SEED + run)
        module = copy.deepcopy(prepared.module)
        tensors = dict(named_tensors(unwrapped(module)))
        for number, names in enumerate(layers.values()):
            for name in names:
                _shuffle(tensors[name], generator)
            (other,) = _explain(module, seen.input[None], explanation.target, settings)
            found = other.attribution.sum(0)
            if (value := spearman(reference, found)) is not None:
                signed[number].append(value)
            if (value := spearman(reference.abs(), found.abs())) is not None:
                absolute[number].append(value)
            if run == 0:
                progress(1)
    lines: list[dict[str, Any]] = [
        {"module": name, "signed": _mean(one), "absolute": _mean(other)}
        for name, one, other in zip(layers, signed, absolute, strict=True)
    ]
    known = [line for line in lines if line["signed"] is not None]
    figures = {"layers": lines, "runs": RUNS, "limit": CHANGED}
    if not known:
        return Finding(None, "randomised models have empty explanations, so that there is nothing to compare", figures)
    top, last = known[0], known[-1]
    passed = abs(last["signed"]) <= CHANGED
    text = (
        f"with {top['module']} randomised the rank correlation with the explanation is {top['signed']:.2f}, "
        f"down to {last['module']} {last['signed']:.2f}"
    )
    follows = "it depends on what the model learned" if passed else "it hardly depends on what the model learned"
    return Finding(passed, f"{text}: {follows}", figures)


def _shuffle(tensor: Tensor, generator: torch.Generator) -> None:
    """Put a tensor's values into a random order: their distribution stays, what was learned goes."""
    if tensor.is_floating_point() and tensor.numel() > 1:
        order = torch.randperm(tensor.numel(), generator=generator).to(tensor.device)
        with torch.no_grad():
            tensor.copy_(tensor.detach().flatten()[order].reshape(tensor.shape))


def stability(prepared: Prepared, seen: Seen, explanation: Explanation, settings: dict[str, Any]) -> Finding:
    """Add a little noise to the picture: the explanation should hardly change."""
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
    }
    if correlation is None:
        return Finding(None, "the explanation is the same everywhere, so that there is nothing to compare", figures)
    steady = (
        "steady" if correlation >= STEADY else "not steady; compare several depths and widths before trusting details"
    )
    text = f"noise of {NOISE:.0%} leaves {units:.0%} of the units and a rank correlation of {correlation:.2f}"
    return Finding(None, f"{text}: {steady}", figures)


def _common_units(first: Explanation, second: Explanation) -> float:
    """Units on both paths, as a share of those on either."""
    one, other = ({(u.tensor, u.index) for layer in e.path for u in layer.units} for e in (first, second))
    return len(one & other) / len(one | other) if one | other else 1.0


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
