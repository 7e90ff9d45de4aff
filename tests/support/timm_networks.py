"""Every network of timm: whether it is explained, how exactly, and whether it keeps the laws.

    PYTHONPATH=.:tests python -m support.timm_networks RESULTS.jsonl --minutes 60
    PYTHONPATH=.:tests python -m support.timm_networks RESULTS.jsonl --write

The first traces all of them and tries the laws on those of at most 30 million parameters. It goes on where RESULTS stops;
`--again refused` or `--again broken` tries such networks again. The second writes docs/timm.md and pathx/models/data/timm.json.
Each network has a process of its own, with a limit of time and of memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from support.tables import refusal, write_table
from support.twins import frozen_weight
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import pathx
from pathx import PathxError
from pathx.engine.freeze import network_of

PAGE = Path(__file__).parents[2] / "docs" / "timm.md"
CLASSES = 4
SIZES = (64, 96, 128, 160, 224)
MOST_PARAMETERS = 30_000_000
SECONDS = 240
"""How long one step of one network may take."""
GIGABYTES = 6


@dataclass(frozen=True)
class Outcome:
    """What became of one network.

    Args:
        family: timm's module.
        input_size: that of timm's configuration.
        size: of the square input that it was tried on.
        resized: whether the network was built for that size.
        exact: "region" or "image"; None where it is refused.
        refused: why.
        headless: whether timm builds it without a classifier, as the encoders that it has weights of; it was given one.
        laws: None until they were tried, "hold", or the one that is broken.
    """

    name: str
    family: str
    parameters: int = 0
    input_size: tuple[int, ...] = ()
    size: int = 0
    resized: bool = False
    hidden_layers: int | None = None
    exact: str | None = None
    refused: str | None = None
    headless: bool = False
    laws: str | None = None


def _timm() -> Any:
    from pathx.models.torchvision import torchvision  # first: timm imports it in a way that this project does not

    assert torchvision.__name__
    import timm

    return timm


# One network


class _Uninitialised(TorchFunctionMode):
    """Leaves large weights as the allocator gives them, which takes neither time nor memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else (kwargs or {}).get("tensor")
        changes = getattr(func, "__name__", "").endswith("_") and not getattr(func, "__name__", "").endswith("__")
        if changes and isinstance(first, Tensor) and first.is_floating_point() and first.numel() > 100_000:
            return first
        return func(*args, **(kwargs or {}))


def _structure(name: str, **settings: Any) -> nn.Module:
    """A network whose weights are all parts of one small piece of memory, so that the largest fit."""
    with _Uninitialised():
        module: nn.Module = _timm().create_model(name, pretrained=False, **settings).eval()
    parameters = list(module.parameters())
    block = torch.randn(1 << 20, generator=torch.Generator().manual_seed(0)) * 0.03
    largest = max(parameter.numel() for parameter in parameters)
    pool = block.repeat(largest // len(block) + 1)
    for parameter in parameters:
        parameter.data = pool[: parameter.numel()].view(parameter.shape)
    return module


def trace(name: str) -> Outcome:
    """Whether a network is explained, on the smallest input that it takes."""
    timm = _timm()
    config = timm.get_pretrained_cfg(name)
    own = tuple(config.input_size) if config else (3, 224, 224)
    outcome = Outcome(name, timm.models._registry._model_to_module[name], input_size=own)
    whole = _structure(name)
    headless = getattr(whole, "num_classes", CLASSES) == 0
    head = {"num_classes": CLASSES} if headless else {}
    parameters = sum(parameter.numel() for parameter in whole.parameters())
    outcome = replace(outcome, parameters=parameters, headless=headless)
    attempts = [(size, True) for size in (64, 128)] + [(size, False) for size in sorted({*SIZES, own[1]})]
    error: Exception | None = None
    for size, resized in attempts:
        try:
            module = _structure(name, **head, **({"img_size": size} if resized else {}))
        except Exception as problem:
            error = error or problem
            continue
        outcome = replace(outcome, size=size, resized=resized)
        images = torch.randn(1, own[0], size, size, generator=torch.Generator().manual_seed(1))
        try:
            network = network_of(module, images)
        except PathxError as refusal:
            if re.match("the model cannot run", str(refusal)):
                error = refusal
                continue
            return replace(outcome, refused=str(refusal))
        return replace(outcome, hidden_layers=network.depth, exact=network.reading.exact)
    return replace(outcome, refused=f"not built or not run ({error})")


def build(name: str, size: int, resized: bool) -> nn.Module:
    """A network with a small head, in float64, with statistics and a head that do something."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        settings = {"img_size": size} if resized else {}
        module: nn.Module = _timm().create_model(name, pretrained=False, num_classes=CLASSES, **settings).eval()
        for part in module.modules():
            if isinstance(part, nn.BatchNorm2d) and part.running_mean is not None and part.running_var is not None:
                part.running_mean.normal_(0, 0.1)
                part.running_var.uniform_(0.7, 1.3)
            if isinstance(part, nn.Linear) and not part.weight.any():  # a head of zeros would keep any law
                nn.init.normal_(part.weight, std=0.05)
    return module.double().requires_grad_(False)  # the twin takes what needs a gradient for computed


def facts(model: nn.Module) -> list[Any]:
    """What an explanation could disturb."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    found: list[Any] = [
        (n, id(t), t._version, t.requires_grad, id(t.grad), float(t.detach().double().sum())) for n, t in tensors
    ]
    for name, module in model.named_modules():
        hooks = [list(held) for kind, held in vars(module).items() if kind.endswith("_hooks")]
        found.append((name, module.training, hooks, sorted(vars(module))))
    return found


def try_laws(outcome: Outcome) -> Outcome:
    """The same with what became of completeness, unwrapping, law 11 and law 7."""
    module = build(outcome.name, outcome.size, outcome.resized)
    before = facts(module)
    shape = (1, outcome.input_size[0], outcome.size, outcome.size)
    images = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    try:
        broken = _broken(module, images)
    except PathxError as error:
        broken = f"explain fails: {error}"
    if facts(module) != before:
        broken = "law 7 (the model is untouched)"
    return replace(outcome, laws=broken or "hold")


NOT_IN_FLOAT64 = "the model itself does not run in float64"


def _broken(module: nn.Module, images: Tensor) -> str:
    with torch.no_grad():
        try:
            logits = module(images)
        except RuntimeError:
            return NOT_IN_FLOAT64
    (few,) = pathx.explain(module, images, target=1, width=3)
    (whole,) = pathx.explain(module, images, target=1, depth=1, width="all", alpha=0.0)
    for found in (few, whole):
        largest = max(float(found.attribution.abs().sum()), abs(found.bias), abs(found.score))
        if abs(float(found.attribution.sum()) + found.bias - found.score) > 1e-10 * largest:
            return "law 1 (completeness)"
    difference = float((whole.logits - logits[0]).abs().max()) / float(logits.abs().max())
    rounding = 1e-9 if difference <= 1e-9 else 1e-5  # some compute a part in float32 whatever they are given
    if difference > rounding:
        return "law 11 (the answer is the model's)"
    weight = frozen_weight(module, images[0], 1)  # the gradient, with every multiplier detached
    if float((whole.weight - weight).abs().max()) > 10 * rounding * float(weight.abs().max()):
        return "law 2 (unwrapping)"
    return ""


# All of them


def in_a_process(step: Callable[[Any], Outcome], given: Any) -> Outcome | str:
    """What a step gives, or what became of its process: one that takes too much time or memory is ended."""
    here, there = (context := multiprocessing.get_context("fork")).Pipe()
    process = context.Process(target=lambda: there.send(step(given)))
    process.start()
    there.close()
    end = time.monotonic() + SECONDS
    try:
        while not here.poll(0.2):
            if time.monotonic() > end:
                return "too slow"
            pages = int(Path(f"/proc/{process.pid}/statm").read_text().split()[1])
            if pages * 4096 > GIGABYTES << 30:
                return "too large"
        outcome: Outcome = here.recv()
        return outcome
    except (EOFError, OSError):
        return "its process died"
    finally:
        process.kill()
        process.join()


def read(file: Path) -> dict[str, Outcome]:
    """The last that a file says of each network."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = (
        Outcome(**{**document, "input_size": tuple(document["input_size"])}) for document in map(json.loads, lines)
    )
    return {one.name: one for one in found}


def run(file: Path, minutes: float, again: str | None) -> None:
    """Trace what was not traced yet, then try laws that were not tried yet."""
    end, known, names = time.monotonic() + 60 * minutes, read(file), list(_timm().list_models())
    families = _timm().models._registry._model_to_module
    if again == "refused":
        known = {name: one for name, one in known.items() if one.refused is None}
    if again == "broken":
        known = {name: replace(one, laws=None) if one.laws != "hold" else one for name, one in known.items()}

    def note(outcome: Outcome) -> None:
        known[outcome.name] = outcome
        with file.open("a") as lines:
            lines.write(json.dumps(asdict(outcome)) + "\n")

    random.Random(0).shuffle(names)  # so that a part of them stands for all
    for name in names:
        if name not in known and time.monotonic() < end:
            made = in_a_process(trace, name)
            note(Outcome(name, families[name], refused=made) if isinstance(made, str) else made)
    for outcome in law_order(list(known.values())):
        if time.monotonic() < end:
            made = in_a_process(try_laws, outcome)
            note(replace(outcome, laws=made) if isinstance(made, str) else made)


def law_order(outcomes: list[Outcome]) -> list[Outcome]:
    """Those to be tried: the smallest of every family, then the second of every family, and so on."""
    ranks: Counter[str] = Counter()
    ordered = []
    for one in sorted(outcomes, key=lambda one: (one.parameters, one.name)):
        if one.refused is None and one.laws is None and one.parameters <= MOST_PARAMETERS:
            ordered.append((ranks[one.family], one.parameters, one))
            ranks[one.family] += 1
    return [one for *_, one in sorted(ordered, key=lambda item: item[:2])]


# The page


def reason(refused: str) -> str:
    """A refusal without the place it names, so that refusals can be counted."""
    text = re.sub(r" in [\w.]+(?= |\)|:|;|,|$)", "", refused)
    return re.split(r"[;:] ", text)[0].replace("|", "/")


def page(outcomes: list[Outcome]) -> Iterator[str]:
    """docs/timm.md."""
    counts = {kind: sum(one.exact == kind for one in outcomes) for kind in ("region", "image", None)}
    untried = (None, "too slow", "too large", NOT_IN_FLOAT64)
    tried = [one for one in outcomes if one.laws not in untried]
    broken = [one for one in tried if one.laws != "hold"]
    yield "# timm's networks"
    yield ""
    yield (
        f"All {len(outcomes)} networks of timm {_timm().__version__}, traced untrained on the smallest square input that each "
        "takes (64 pixels for most). *In a region* and *at the image* say how far the numbers hold, see "
        "[Which networks](networks.md)."
    )
    yield ""
    yield (
        f"**{counts['region'] + counts['image']} work: {counts['region']} exact in a region, {counts['image']} exact at the "
        f"image. {counts[None]} are refused.** `pathx models --from timm --all` lists them one by one."
    )
    yield ""
    yield (
        f"{len(tried)} of those of at most {MOST_PARAMETERS // 10**6} million parameters were tested in float64: attribution and "
        "bias add up to the score (to 1e-10), with every unit of the top layer kept the weight is the gradient of the model with "
        "every multiplier detached (to 1e-8), the logits are the model's own, and the model is left as it was. "
        f"**{len(broken)} fail.** Networks that compute a part in float32 whatever they are given "
        "(XCiT, EvoNorm, EfficientViT) are held to 1e-5 and 1e-4."
    )
    yield ""
    yield "| family (timm's module) | networks | in a region | at the image | refused | laws hold |"
    yield "|---|---|---|---|---|---|"
    families: dict[str, list[Outcome]] = defaultdict(list)
    for one in sorted(outcomes, key=lambda one: one.name):
        families[one.family].append(one)
    for family, members in sorted(families.items()):
        kinds = (sum(one.exact == kind for one in members) or "" for kind in ("region", "image", None))
        held = sum(one.laws == "hold" for one in members) or ""
        yield f"| {family} | {len(members)} | {' | '.join(map(str, kinds))} | {held} |"
    yield ""
    yield "| refused because | networks | such as |"
    yield "|---|---|---|"
    reasons: dict[str, list[str]] = defaultdict(list)
    for one in outcomes:
        if one.refused is not None:
            reasons[reason(one.refused)].append(one.name)
    for why, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        yield f"| {why} | {len(names)} | {', '.join(sorted(names)[:3])} |"
    if broken:
        yield ""
        yield "| network | what does not hold |"
        yield "|---|---|"
        yield from (f"| {one.name} | {one.laws} |" for one in broken)
    yield ""
    yield "Made by `python -m support.timm_networks`, see tests/support."


def write(outcomes: list[Outcome]) -> None:
    PAGE.write_text("\n".join(page(outcomes)) + "\n")
    fields = ("hidden_layers", "exact", "refused", "parameters", "input_size")
    lines = {one.name: {key: getattr(one, key) for key in fields} for one in outcomes}
    for line in lines.values():
        line["refused"] = line["refused"] and refusal(PathxError(line["refused"]))
    write_table("timm", lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--again", choices=["refused", "broken"])
    parser.add_argument("--write", action="store_true")
    chosen = parser.parse_args()
    if chosen.write:
        write(list(read(chosen.results).values()))
    else:
        run(chosen.results, chosen.minutes, chosen.again)


if __name__ == "__main__":
    main()
