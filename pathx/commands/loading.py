"""Options as the library takes them, for commands that examine a model with images of a folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options, parsing
from pathx.commands.output import about, complain, notes
from pathx.evaluation.choices import METHODS, PROTOCOLS, TIES

if TYPE_CHECKING:
    from pathx.evaluation.evaluate import Evaluation
    from pathx.models.load import LoadedModel
    from pathx.pipeline import Prepared

Methods = Annotated[
    list[str] | None,
    typer.Option("--methods", metavar="NAME,...", help=f"Of {', '.join(METHODS)}, with commas between. [default: all]"),
]
ProtocolOption = Annotated[
    str,
    typer.Option(
        "--protocol",
        metavar="|".join(PROTOCOLS),
        autocompletion=lambda: list(PROTOCOLS),
        help="The usual one (Petsiuk et al.), or the paper's: each channel ranked.",
    ),
]
TiesOption = Annotated[
    str,
    typer.Option(
        "--ties",
        metavar="|".join(TIES),
        autocompletion=lambda: list(TIES),
        help="Order of pixels that a map gives the same value. The paper's table has rows.",
    ),
]
Steps = Annotated[str | None, typer.Option("--steps", metavar="N", help="Steps from one end to the other.")]
StepPixels = Annotated[
    str | None, typer.Option("--step-pixels", metavar="N", help="Pixels per step. [default: one row of the image]")
]


def prepared(model: str, *, device: str, dtype: options.Dtype, quiet: bool = False, **given: str | None) -> Prepared:
    """The model that the options mean, on its device.

    Args:
        given: as for `loader`.
    """
    return on_device(loader(model, **given), device, dtype, quiet)


def on_device(load: Callable[[], LoadedModel], device: str, dtype: options.Dtype, quiet: bool) -> Prepared:
    """A model once it is loaded, and said what a user should know of that."""
    from pathx.pipeline import prepare

    loaded = load()
    for note in loaded.notes:
        notes(quiet)(note)
    return prepare(loaded, device=device, dtype=dtype.value)


def loader(
    model: str,
    *,
    weights: str | None,
    model_args: str | None,
    labels: str | None,
    input_size: str | None,
    mean: str | None,
    std: str | None,
) -> Callable[[], LoadedModel]:
    """What loads the model that the options mean, here or in another process."""
    size, arguments = parsing.size(input_size), parsing.arguments(model_args)
    means, deviations = parsing.numbers(mean, "--mean"), parsing.numbers(std, "--std")
    given: dict[str, Any] = {"input_size": size, "mean": means, "std": deviations, "labels": labels}
    return partial(_load, model, weights=weights, arguments=arguments, **given)


def _load(model: str, **given: Any) -> LoadedModel:
    """As `load_model`, which takes torch, and so is imported only then."""
    from pathx.models.load import load_model

    return load_model(model, **given)


def several(texts: list[str] | None) -> list[str]:
    """The parts of an option that may be repeated and takes lists with commas."""
    return [part.strip() for text in texts or () for part in text.split(",") if part.strip()]


def say(result: Evaluation, quiet: bool) -> None:
    """Failures, and unless it is to be quiet what else a reader must know."""
    for name, reason in result.unread.items():
        complain(about(name, reason))
    for note in () if quiet else result.notes:
        complain(f"note: {note}")
