"""The command line: parse, call the library, print. Loads torch only when there is work."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pathx import __version__
from pathx.errors import PathxError

if TYPE_CHECKING:
    from rich.table import Table

    from pathx.explanation import Explanation
    from pathx.run import Done

T = TypeVar("T")

app = typer.Typer(
    name="pathx",
    help="Show which hidden units of a ReLU network carried a decision, and what they saw in the image.",
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
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Show which hidden units of a ReLU network carried a decision, and what they saw in the image."""


@contextmanager
def _errors() -> Iterator[None]:
    """One line on stderr for what the user can mend, and the exit status that goes with it."""
    try:
        yield
    except PathxError as error:
        complain(str(error), error)
        raise typer.Exit(2 if error.usage else 1) from None
    except KeyboardInterrupt:
        complain("interrupted; the explanations that have a path.json are whole")
        raise typer.Exit(130) from None
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception as error:
        complain(f"unexpected {type(error).__name__}: {error} (set PATHX_DEBUG=1 for the traceback)", error)
        raise typer.Exit(1) from None


def complain(text: str, error: Exception | None = None) -> None:
    """A line on stderr; with PATHX_DEBUG after the traceback of what it is about."""
    if error is not None and os.environ.get("PATHX_DEBUG"):
        traceback.print_exception(error)
    print(f"pathx: {' '.join(text.split())}", file=sys.stderr)


def _parsed(text: str, parse: Callable[[str], T], problem: str) -> T:
    try:
        return parse(text)
    except (ValueError, OverflowError):
        raise PathxError(problem, usage=True) from None


def _depth(text: str) -> int | str:
    problem = f"depth {text!r} is not a number of layers; use 1 or more, or all"
    return text if text == "all" else _parsed(text, int, problem)


def _width(text: str) -> int | str:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def _numbers(text: str | None, option: str) -> list[float] | None:
    problem = f"{option} takes numbers with commas between, such as 0.5,0.5,0.5, not {text!r}"
    return None if text is None else [_parsed(part, float, problem) for part in text.split(",")]


def _size(text: str | None) -> list[int] | None:
    problem = f"--input-size takes channels,height,width such as 3,224,224, not {text!r}"
    return None if text is None else [_parsed(part, int, problem) for part in re.split("[,x]", text)]


@app.command()
def explain(
    images: Annotated[list[str], typer.Argument(metavar="IMAGE", help="Pictures to explain.")],
    model: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="A torchvision name, a TorchScript file or a torch.export .pt2 file."),
    ] = "squeezenet1_1",
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE|none",
            help="For a torchvision name: its own names (DEFAULT, …), a state dict file, or none (untrained).",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS",
            help="Class to explain: number, label, or top:K for the K best; may repeat. [default: the predicted]",
        ),
    ] = None,
    depth: Annotated[
        str, typer.Option(metavar="N|all", help="Hidden layers on the path, from the output down: a number or all.")
    ] = "3",
    width: Annotated[
        str,
        typer.Option(metavar="K|P%|all", help="Units kept per layer at most: a number, a share such as 5%, or all."),
    ] = "5",
    alpha: Annotated[
        str | None, typer.Option(metavar="A", help="Importance a unit must exceed to be kept. [default: 1/classes]")
    ] = None,
    skips: Annotated[
        Skips, typer.Option(help="Follow routes from layer to layer, or also those that jump.")
    ] = Skips.adjacent,
    device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
    dtype: Annotated[Dtype, typer.Option(help="Precision of the computation.")] = Dtype.float32,
    batch_size: Annotated[str, typer.Option(metavar="N", help="Pictures explained at once.")] = "8",
    labels: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="File with the class labels: one per line, or a JSON list or object."),
    ] = None,
    input_size: Annotated[
        str | None, typer.Option(metavar="C,H,W", help="For model files: channels,height,width, as 3,224,224.")
    ] = None,
    mean: Annotated[
        str | None, typer.Option(metavar="M,...", help="For model files: mean per channel, as 0.485,0.456,0.406.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(metavar="S,...", help="For model files: standard deviation per channel.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="FOLDER", help="Folder for the results.")] = "pathx-out",
    save_tensors: Annotated[bool, typer.Option("--save-tensors", help="Also write tensors.safetensors.")] = False,
    format: Annotated[
        Format, typer.Option(help="Text for people, or one JSON document per explanation.")
    ] = Format.text,
    quiet: Annotated[
        bool, typer.Option("--quiet", "-q", help="Print errors only, and what --format json prints.")
    ] = False,
) -> None:
    """Explain pictures: find the path of units behind a class, and draw what they saw.

    Each explanation gets a folder OUT/IMAGE/CLASS with heatmap.png, overlay.png and path.json.
    """
    with _errors():
        layers, units, size = _depth(depth), _width(width), _size(input_size)
        means, deviations = _numbers(mean, "--mean"), _numbers(std, "--std")
        batch = _parsed(batch_size, int, f"--batch-size takes a number of pictures, not {batch_size!r}")
        least = None if alpha is None else _parsed(alpha, float, f"alpha {alpha!r} is not a number; use 0 to 1")

        from pathx.models import load_model
        from pathx.run import Done, Settings, explain_files

        loaded = load_model(model, weights=weights, input_size=size, mean=means, std=deviations, labels=labels)
        settings = Settings(layers, units, least, skips.value, device, dtype.value, batch, save_tensors)
        failed: set[str] = set()
        shown: set[str] = set()
        for result in explain_files(loaded, images, out, targets=target or (), settings=settings):
            if not isinstance(result, Done):
                failed.add(result.file)
                complain(_about(result.file, str(result.error)), result.error)
                continue
            first = result.picture.file not in shown
            shown.add(result.picture.file)
            if first and not quiet:
                for note in result.picture.notes:
                    complain(f"note: {_about(result.picture.file, note)}")
            if format is Format.json:
                print(json.dumps(result.document, allow_nan=False), flush=True)
            elif not quiet:
                _print_explanation(result, first=first)
        if failed:
            if len(images) > 1:
                rest = f"; the rest is in {out}" if shown else ""
                complain(f"{len(failed)} of {len(set(images))} pictures failed{rest}")
            raise typer.Exit(1)


@app.command()
def models(
    everything: Annotated[bool, typer.Option("--all", help="Also those that are refused, and why.")] = False,
    format: Annotated[Format, typer.Option(help="Text for people, or one JSON document.")] = Format.text,
) -> None:
    """List torchvision's models that can be explained.

    With their hidden layers, parameters, input size, and where their default weights are: bundled with pathx, cached on
    this machine, or to be downloaded on first use.
    """
    with _errors():
        from dataclasses import asdict

        from pathx.catalogue import catalogue

        entries = list(catalogue(refused=everything))
        if format is Format.json:
            print(json.dumps([asdict(entry) for entry in entries]))
            return
        headings = ("model", "hidden layers", "parameters", "input", "weights")
        rows = [
            (entry.name, str(entry.hidden_layers), _millions(entry.parameters), _shape(entry.input_size), entry.weights)
            for entry in entries
            if entry.refused is None
        ]
        _print_table(headings, rows, right={1, 2})
        if everything:
            print()
            _print_table(("refused", "because of"), [(e.name, e.refused) for e in entries if e.refused is not None])


@app.command()
def layers(
    model: Annotated[
        str,
        typer.Option(metavar="NAME|FILE", help="A torchvision name, a TorchScript file or a torch.export .pt2 file."),
    ] = "squeezenet1_1",
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE|none", help="As for explain. None are needed, and none are fetched unless asked."
        ),
    ] = None,
    input_size: Annotated[
        str | None,
        typer.Option(metavar="C,H,W", help="channels,height,width, as 3,224,224. [default: the model's own]"),
    ] = None,
    format: Annotated[Format, typer.Option(help="Text for people, or one JSON document.")] = Format.text,
) -> None:
    """List a model's hidden layers from the output to the input, to choose a depth by.

    Depth D takes the first D layers of the list. What a unit sees is its receptive field, width x height in pixels.
    """
    with _errors():
        size = _size(input_size)

        from dataclasses import asdict

        from pathx.catalogue import layers_of

        found = layers_of(model, weights=weights, input_size=size)
        if format is Format.json:
            print(json.dumps([{**asdict(layer), "units": layer.units} for layer in found]))
            return
        rows = [
            (
                *(map(str, (depth, layer.layer)) if first else ("", "")),
                tensor.name,
                _shape(tensor.shape),
                str(tensor.units),
                seen,
            )
            for depth, layer in enumerate(found, start=1)
            for first, tensor in zip((True, *(False,) * len(layer.tensors)), layer.tensors, strict=False)
            for seen in [_shape(tensor.receptive_field)]
        ]
        _print_table(("depth", "layer", "tensor", "shape", "units", "sees"), rows, right={0, 1, 4, 5})


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str | None]], right: Container[int] = ()) -> None:
    """Columns as wide as what is in them; nothing is cut."""
    table = [headings, *([cell or "" for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = zip(row, widths, strict=True)
        line = "  ".join(c.rjust(w) if n in right else c.ljust(w) for n, (c, w) in enumerate(cells))
        print(line.rstrip())


def _shape(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f} M"


def _about(file: str, text: str) -> str:
    """A message with the file it is about in front, unless it names it already."""
    return text if file in text else f"{file}: {text}"


def _print_explanation(done: Done, *, first: bool) -> None:
    """What a person wants to see: the predictions (once per picture), the path, where the files are."""
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = 1000  # for a file or a pipe nothing is cut
    explanation, target, model = done.explanation, done.document["target"], done.document["linear_model"]
    if first:
        best = ", ".join(f"{label} {probability:.1%}" for label, probability in done.predictions)
        console.print(Text(done.picture.file, "bold"), soft_wrap=True)
        console.print(Padding(Text(best), (0, 0, 0, 2), expand=False))
        console.print()
    console.print(
        Text.assemble(
            (target["label"], "bold"),
            f": class {target['index']}, {target['probability']:.1%}, logit {target['logit']:.4g}; ",
            f"depth {explanation.depth} of {explanation.hidden_layers}, score {model['score']:.4g}",
        )
    )
    console.print(_path_table(explanation, console.width))
    if any(layer.below_alpha and layer.units for layer in explanation.path):
        console.print("* no unit was above alpha; the best one was kept")
    if not explanation.path[-1].units and explanation.skips == "adjacent":
        console.print(
            "Nothing reaches the end of this path from layer to layer; --skips all also takes routes that jump."
        )
    files = ", ".join([*done.document["files"].values(), "path.json"])
    console.print(Text(f"{done.folder}{os.sep}: {files}\n"), soft_wrap=True)


def _path_table(explanation: Explanation, width: int) -> Table:
    """The strongest units of each layer, and what share of all that the layer's kept units send each of them sends."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading, justify in zip(_HEADINGS, ("right", "right", "left", "right", "right"), strict=True):
        table.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    room = width - sum(len(heading) + 2 for heading in _HEADINGS if heading != "strongest units")
    for layer in explanation.path:
        total = sum(unit.contribution for unit in layer.units)
        kept = f"{len(layer.units)}{'*' if layer.below_alpha and layer.units else ''}"
        if not layer.units:
            table.add_row(str(layer.layer), kept, "none", "", "")
        for number, unit in enumerate(layer.units[:3]):
            index = f" [{','.join(map(str, unit.index))}]"
            name, space = unit.tensor, max(room - len(index), 8)
            if len(name) > space:
                name = "…" + name[1 - space :]  # its end tells it from others
            share = f"{unit.contribution / total:.1%}" if total else "-"
            head = (str(layer.layer), kept) if number == 0 else ("", "")
            table.add_row(*head, Text(name + index), f"{unit.importance:.4g}", share)
    return table


_HEADINGS = ("layer", "kept", "strongest units", "importance", "share")

# What is wrong with a command line; typer has no name of its own for it.
_UsageError: type[Exception] = typer.BadParameter.__mro__[1]


def run(arguments: Sequence[str] | None = None) -> None:
    """The entry point. Ends the process; what is wrong with the command line is one line as well."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # file names need not be text
    try:
        status = app(arguments or ["--help"], prog_name="pathx", standalone_mode=False)
        sys.stdout.flush()
    except _UsageError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "pathx"
        problem = error.format_message().replace("Value error, ", "").rstrip(".")  # type: ignore[attr-defined]
        complain(f"{problem}; see {command} --help", error)
        status = 2
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 1
    sys.exit(status)


if __name__ == "__main__":
    run()
