"""The command line: parse, call the library, print. Loads torch only when there is work."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from pathx import __version__
from pathx.errors import PathxError

if TYPE_CHECKING:
    from pathx.run import Done

app = typer.Typer(
    name="pathx",
    help="Show which hidden units of a ReLU network carried a decision, and what they saw in the image.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class Skips(str, Enum):
    adjacent = "adjacent"
    all = "all"


class Dtype(str, Enum):
    float32 = "float32"
    float64 = "float64"


class Format(str, Enum):
    text = "text"
    json = "json"


def _version(wanted: bool) -> None:
    if wanted:
        print(f"pathx {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """Show which hidden units of a ReLU network carried a decision, and what they saw in the image."""


@contextmanager
def _errors() -> Iterator[None]:
    """One line on stderr for what the user can mend, and the exit status that goes with it."""
    try:
        yield
    except PathxError as error:
        if os.environ.get("PATHX_DEBUG"):
            raise
        complain(str(error))
        raise typer.Exit(2 if error.usage else 1) from None
    except (typer.Exit, typer.Abort, KeyboardInterrupt):
        raise
    except Exception as error:
        if os.environ.get("PATHX_DEBUG"):
            raise
        complain(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)")
        raise typer.Exit(1) from None


def complain(text: str) -> None:
    """A line on stderr."""
    print(f"pathx: {' '.join(text.split())}", file=sys.stderr)


def _depth(text: str) -> int | str:
    if text == "all":
        return text
    try:
        return int(text)
    except ValueError:
        raise PathxError(f"depth {text!r} is not a number of layers; use 1 or more, or all", usage=True) from None


def _width(text: str) -> int | str:
    return int(text) if text.lstrip("+-").isdigit() else text


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.replace("x", ",").split(",")]
    except ValueError:
        raise PathxError(f"{option} takes numbers with commas between, not {text!r}", usage=True) from None


def _size(text: str | None) -> tuple[int, ...] | None:
    numbers = _numbers(text, "--input-size")
    if numbers is None:
        return None
    if any(number != int(number) for number in numbers):
        raise PathxError(f"--input-size takes whole numbers such as 3,224,224, not {text!r}", usage=True)
    return tuple(int(number) for number in numbers)


@app.command()
def explain(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE...", help="Pictures to explain.")],
    model: Annotated[
        str, typer.Option(help="A torchvision name, a TorchScript file or a torch.export .pt2 file.")
    ] = "squeezenet1_1",
    weights: Annotated[
        str | None,
        typer.Option(help="For a torchvision name: its own names (DEFAULT, …), a state dict file, or none (untrained)."),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(help="Class to explain: number, label, or top:K for the K best; may repeat. [default: the predicted]"),
    ] = None,
    depth: Annotated[str, typer.Option(help="Hidden layers on the path, from the output down: a number or all.")] = "3",
    width: Annotated[str, typer.Option(help="Units kept per layer at most: a number, a share such as 5%, or all.")] = "5",
    alpha: Annotated[
        float | None, typer.Option(help="Importance a unit must exceed to be kept. [default: 1/classes]")
    ] = None,
    skips: Annotated[Skips, typer.Option(help="Follow routes from layer to layer, or also those that jump.")] = Skips.adjacent,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="Precision of the computation.")] = Dtype.float32,
    batch_size: Annotated[int, typer.Option(help="Pictures explained at once.")] = 8,
    labels: Annotated[
        str | None, typer.Option(help="File with the class labels: one per line, or a JSON list or object.")
    ] = None,
    input_size: Annotated[str | None, typer.Option(help="For model files: channels,height,width, as 3,224,224.")] = None,
    mean: Annotated[str | None, typer.Option(help="For model files: mean per channel, as 0.485,0.456,0.406.")] = None,
    std: Annotated[str | None, typer.Option(help="For model files: standard deviation per channel.")] = None,
    out: Annotated[str, typer.Option(help="Folder for the results.")] = "pathx-out",
    save_tensors: Annotated[bool, typer.Option("--save-tensors", help="Also write tensors.safetensors.")] = False,
    format: Annotated[Format, typer.Option(help="Text for people, or one JSON document per explanation.")] = Format.text,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Explain pictures: find the path of units behind a class, and draw what they saw.

    Each explanation gets a folder OUT/IMAGE/CLASS with heatmap.png, overlay.png and path.json.
    """
    with _errors():
        layers, units, size = _depth(depth), _width(width), _size(input_size)
        means, deviations = _numbers(mean, "--mean"), _numbers(std, "--std")

        from pathx.models import load_model
        from pathx.run import Done, Settings, explain_files

        loaded = load_model(model, weights=weights, input_size=size, mean=means, std=deviations, labels=labels)
        settings = Settings(layers, units, alpha, skips.value, device, dtype.value, batch_size, save_tensors)
        failed = 0
        shown: set[str] = set()
        for result in explain_files(loaded, images, out, targets=target or (), settings=settings):
            if not isinstance(result, Done):
                failed += 1
                complain(_about(result.file, str(result.error)))
                continue
            if result.picture.file not in shown and not quiet:
                for note in result.picture.notes:
                    complain(f"note: {_about(result.picture.file, note)}")
            if format is Format.json:
                print(json.dumps(result.document, allow_nan=False), flush=True)
            elif not quiet:
                _print_explanation(result, predictions=result.picture.file not in shown)
            shown.add(result.picture.file)
        if failed:
            if len(images) > 1:
                complain(f"{failed} of {len(images)} pictures failed; the rest is in {out}")
            raise typer.Exit(1)


def _about(file: str, text: str) -> str:
    """A message with the file it is about in front, unless it names it already."""
    return text if file in text else f"{file}: {text}"


def _print_explanation(done: Done, *, predictions: bool) -> None:
    """What a person wants to see first: predictions, the path, where the files are."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False, soft_wrap=True)
    explanation, document = done.explanation, done.document
    if predictions:
        best = ", ".join(f"{label} {probability:.1%}" for label, probability in done.predictions)
        console.print(f"[bold]{escape(done.picture.file)}[/]: {escape(best)}")
    target, model = document["target"], document["linear_model"]
    console.print(
        f"[bold]{escape(target['label'])}[/] (class {target['index']}, {target['probability']:.1%}, "
        f"logit {target['logit']:.4g}): path of {explanation.depth} of {explanation.hidden_layers} hidden layers, "
        f"score {model['score']:.4g}"
    )
    table = Table(box=None, pad_edge=False)
    for heading, justify in (("layer", "right"), ("kept", "right"), ("strongest units", "left"), ("importance", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    table.add_column("share of the score", justify="right")
    for layer in explanation.path:
        total = sum(unit.contribution for unit in layer.units)
        for number, unit in enumerate(layer.units[:3]):
            kept = f"{len(layer.units)}{' *' if layer.below_alpha else ''}"
            index = ", ".join(str(part) for part in unit.index)
            table.add_row(
                str(layer.layer) if number == 0 else "",
                kept if number == 0 else "",
                escape(f"{unit.tensor} [{index}]"),
                f"{unit.importance:.4g}",
                f"{unit.contribution / total:.1%}" if total else "-",
            )
        if not layer.units:
            table.add_row(str(layer.layer), "0", "no active unit receives anything", "", "")
    console.print(table)
    if any(layer.below_alpha for layer in explanation.path):
        console.print("* no unit was above alpha; the best one was kept")
    console.print(f"{escape(str(done.folder))}/: {', '.join([*document['files'].values(), 'path.json'])}")


def run() -> None:
    """The entry point."""
    app()


if __name__ == "__main__":
    run()
