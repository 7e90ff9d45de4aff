"""Options as the library takes them, for commands that examine a model with pictures of a folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathx.commands import options

if TYPE_CHECKING:
    from pathx.prepared import Prepared


def prepared(
    model: str,
    *,
    weights: str | None,
    labels: str | None,
    input_size: str | None,
    mean: str | None,
    std: str | None,
    device: str,
    dtype: options.Dtype,
) -> Prepared:
    """The model that the options mean, on its device."""
    size = options.size(input_size)
    means, deviations = options.numbers(mean, "--mean"), options.numbers(std, "--std")

    from pathx.models import load_model
    from pathx.prepared import prepare

    loaded = load_model(model, weights=weights, input_size=size, mean=means, std=deviations, labels=labels)
    return prepare(loaded, device=device, dtype=dtype.value)


def several(texts: list[str] | None) -> list[str]:
    """The parts of an option that may be repeated and takes lists with commas."""
    return [part.strip() for text in texts or () for part in text.split(",") if part.strip()]


def count(text: str | None, option: str) -> int | None:
    """A whole number that may be left out."""
    return None if text is None else options.parsed(text, int, f"{option} takes a whole number, not {text!r}")
