"""The one vocabulary of options: what each is called, what its help says, and how its text is read."""

from __future__ import annotations

import re
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pathx.commands.output import complain
from pathx.errors import PathxError
from pathx.shards import Shard, parse_shard, shard_of_environment

if TYPE_CHECKING:
    from pathx.render import Drawing

T = TypeVar("T")


class Skips(str, Enum):
    adjacent = "adjacent"
    all = "all"


class Dtype(str, Enum):
    float32 = "float32"
    float64 = "float64"


class Format(str, Enum):
    text = "text"
    json = "json"


Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME|FILE", help="A torchvision name, a TorchScript file or a torch.export .pt2 file."
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="NAME|FILE|none",
        help="For a torchvision name: its own names (DEFAULT, …), a state dict file, or none (untrained).",
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="CLASS",
        help="Class to explain: number, label, or top:K for the K best; may repeat. [default: the predicted]",
    ),
]
Depth = Annotated[
    str,
    typer.Option("--depth", metavar="N|all", help="Hidden layers on the path, from the output down: a number or all."),
]
Width = Annotated[
    str,
    typer.Option(
        "--width", metavar="K|P%|all", help="Units kept per layer at most: a number, a share such as 5%, or all."
    ),
]
Alpha = Annotated[
    str | None,
    typer.Option("--alpha", metavar="A", help="Importance a unit must exceed to be kept. [default: 1/classes]"),
]
SkipsOption = Annotated[
    Skips, typer.Option("--skips", help="Follow routes from layer to layer, or also those that jump.")
]
Device = Annotated[str, typer.Option("--device", metavar="DEVICE", help="auto, cpu, cuda, cuda:N or mps.")]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Precision of the computation.")]
Images = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGE|FOLDER|GLOB|LIST.txt|-",
        help="Pictures, folders of them, patterns, files with a path per line, - for paths on standard input.",
    ),
]
BatchSize = Annotated[str, typer.Option("--batch-size", metavar="N|auto", help="Pictures explained at once.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Threads that read pictures ahead and write results behind. [default: cores, 8 at most]",
    ),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard", metavar="I/N", help="Do one of N parts only. [default: that of the SLURM array or torchrun, or all]"
    ),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Make results again that are there already.")]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first picture that fails.")]
NoPictures = Annotated[bool, typer.Option("--no-pictures", help="Write JSON only.")]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels", metavar="FILE", help="File with the class labels: one per line, or a JSON list or object."
    ),
]
InputSize = Annotated[
    str | None,
    typer.Option("--input-size", metavar="C,H,W", help="For model files: channels,height,width, as 3,224,224."),
]
Mean = Annotated[
    str | None,
    typer.Option("--mean", metavar="M,...", help="For model files: mean per channel, as 0.485,0.456,0.406."),
]
Std = Annotated[
    str | None, typer.Option("--std", metavar="S,...", help="For model files: standard deviation per channel.")
]
Out = Annotated[str, typer.Option("--out", metavar="FOLDER", help="Folder for the results.")]
FormatOption = Annotated[
    Format, typer.Option("--format", help="Text for people, or one JSON document per explanation.")
]
OneFormat = Annotated[Format, typer.Option("--format", help="Text for people, or one JSON document.")]
SaveTensors = Annotated[bool, typer.Option("--save-tensors", help="Also write tensors.safetensors.")]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="CLASS",
        help="True class of the pictures; a wrong prediction is explained against it. "
        "[default: the picture's folder, if it is called as a class]",
    ),
]
Smoothing = Annotated[
    str,
    typer.Option(
        "--smoothing", metavar="S", help="Gaussian of overlays and sheets, as a share of the shorter side; 0: none."
    ),
]
Colours = Annotated[
    str, typer.Option("--colours", "--colors", metavar="MAP", help="red-blue, or orange-purple for any colour vision.")
]
Percentile = Annotated[
    str,
    typer.Option("--percentile", metavar="P", help="Of the magnitudes, what the strongest colour stands for."),
]
ShowUnits = Annotated[
    bool, typer.Option("--show-units", help="Draw what the strongest units of the deepest layer can see.")
]
NoMagnify = Annotated[
    bool, typer.Option("--no-magnify", help="Show weak features, or weak runs that are compared, as weak as they are.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only, and what --format json prints.")]


def parsed(text: str, parse: Callable[[str], T], problem: str) -> T:
    """The text as a number, or the problem as an error."""
    try:
        return parse(text)
    except (ValueError, OverflowError):
        raise PathxError(problem, usage=True) from None


def depth(text: str) -> int | str:
    """--depth: a number or all."""
    problem = f"depth {text!r} is not a number of layers; use 1 or more, or all"
    return text if text == "all" else parsed(text, int, problem)


def width(text: str) -> int | str:
    """--width: a number, or what the library makes of a share or all."""
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def numbers(text: str | None, option: str) -> list[float] | None:
    """--mean and --std."""
    problem = f"{option} takes numbers with commas between, such as 0.5,0.5,0.5, not {text!r}"
    return None if text is None else [parsed(part, float, problem) for part in text.split(",")]


def size(text: str | None) -> list[int] | None:
    """--input-size."""
    problem = f"--input-size takes channels,height,width such as 3,224,224, not {text!r}"
    return None if text is None else [parsed(part, int, problem) for part in re.split("[,x]", text)]


def batch_size(text: str) -> int | str:
    """--batch-size: a number or auto."""
    return (
        text if text == "auto" else parsed(text, int, f"--batch-size takes a number of pictures or auto, not {text!r}")
    )


def pictures_at_once(text: str) -> int:
    """--batch-size where auto is a fixed number."""
    size = batch_size(text)
    return 8 if isinstance(size, str) else size


def shard(text: str | None, quiet: bool) -> Shard | None:
    """--shard, or the part that a job scheduler gave to this process, which is then said."""
    if text is not None:
        chosen = parse_shard(text)
        return chosen if chosen.count > 1 else None
    found = shard_of_environment()
    if found is None:
        return None
    if not quiet:
        complain(f"note: this is shard {found[0]}, says {found[1]}; for everything use --shard 1/1")
    return found[0]


def whole_number(text: str | None, option: str) -> int | None:
    """--features and --from-layer."""
    return None if text is None else parsed(text, int, f"{option} takes a whole number, not {text!r}")


def alpha(text: str | None) -> float | None:
    """--alpha."""
    return None if text is None else parsed(text, float, f"alpha {text!r} is not a number; use 0 to 1")


def drawing(smoothing: str, colours: str, percentile: str, show_units: bool, no_magnify: bool = False) -> Drawing:
    """--smoothing, --colours, --percentile, --show-units and --no-magnify."""
    share = parsed(smoothing, float, f"--smoothing takes a number such as 0.025, not {smoothing!r}")
    highest = parsed(percentile, float, f"--percentile takes a number such as 99, not {percentile!r}")

    from pathx.render import Drawing

    return Drawing(share, colours, highest, show_units, not no_magnify)
