"""The one vocabulary of options: what each is called, and what its help says."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from pathx.detail import DEFAULT, DETAILS
from pathx.drawing.colours import COLOURS, HEATS

if TYPE_CHECKING:
    pass

T = TypeVar("T")

# What --help groups the options under, in this order.
PATH, MODEL, PICTURES, RESULTS, RUN = "The path", "The model", "Pictures", "Results", "How it runs"
PANELS = (PATH, MODEL, PICTURES, RESULTS, RUN)


class Skips(str, Enum):
    adjacent = "adjacent"
    all = "all"


class Dtype(str, Enum):
    float32 = "float32"
    float64 = "float64"


class Format(str, Enum):
    text = "text"
    json = "json"


USUAL_SKIPS = Skips(DEFAULT.skips)

Model = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="NAME|FILE|SOURCE:NAME",
        help="A torchvision name; a TorchScript, .pt2 or .onnx file; timm:NAME; hf:NAME or a folder of save_pretrained; "
        "file.py:build or package.module:build, your own code.",
        rich_help_panel=MODEL,
    ),
]
Weights = Annotated[
    str | None,
    typer.Option(
        "--weights",
        metavar="NAME|FILE|NAME=FILE|none",
        help="For all but model files: a state dict or checkpoint; torchvision's own names (DEFAULT, …); NAME=FILE for a file "
        "to be used as those; or none (untrained).",
        rich_help_panel=MODEL,
    ),
]
ModelArguments = Annotated[
    str | None,
    typer.Option(
        "--model-args",
        metavar="JSON",
        help="""For timm:NAME and your own code: arguments by name, as '{"num_classes": 10}'.""",
        rich_help_panel=MODEL,
    ),
]
Targets = Annotated[
    list[str] | None,
    typer.Option(
        "--target",
        metavar="CLASS",
        help="Class to explain: number, label, or top:K for the K best; may repeat. [default: the predicted]",
        rich_help_panel=PATH,
    ),
]
Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        metavar="CLASS",
        help="Explain why the target and not this class: one path for the difference between the two.",
        rich_help_panel=PATH,
    ),
]
Depth = Annotated[
    str,
    typer.Option(
        "--depth",
        metavar="N|maps:N|half|all",
        help="Hidden layers on the path, from the output down: a number, as many as hold N layers of maps, half or all.",
        rich_help_panel=PATH,
    ),
]
DetailOption = Annotated[
    str,
    typer.Option(
        "--detail",
        metavar="|".join(DETAILS),
        help="; ".join(f"{name}: {detail.text}" for name, detail in DETAILS.items())
        + ". Sets what is not given below.",
        autocompletion=lambda: list(DETAILS),
        rich_help_panel=PATH,
    ),
]
PathDepth = Annotated[
    str | None,
    typer.Option(
        "--depth",
        metavar="N|maps:N|half|all",
        help="Hidden layers on the path, from the output down: a number, as many as hold N layers of maps, half or all.",
        rich_help_panel=PATH,
    ),
]
PathWidth = Annotated[
    str | None,
    typer.Option(
        "--width",
        metavar="K|P%|all",
        help="Units kept per layer at most: a number, a share such as 5%, or all.",
        rich_help_panel=PATH,
    ),
]
PathSkips = Annotated[
    Skips | None,
    typer.Option(
        "--skips",
        help="Follow routes from layer to layer, or also those that jump. [default: all, but adjacent with --depth or --width]",
        rich_help_panel=PATH,
    ),
]
Width = Annotated[
    str,
    typer.Option(
        "--width",
        metavar="K|P%|all",
        help="Units kept per layer at most: a number, a share such as 5%, or all.",
        rich_help_panel=PATH,
    ),
]
Alpha = Annotated[
    str | None,
    typer.Option(
        "--alpha",
        metavar="A",
        help="Importance a unit must exceed to be kept. [default: 1/classes]",
        rich_help_panel=PATH,
    ),
]
SkipsOption = Annotated[
    Skips,
    typer.Option("--skips", help="Follow routes from layer to layer, or also those that jump.", rich_help_panel=PATH),
]
Device = Annotated[
    str,
    typer.Option(
        "--device",
        metavar="DEVICE",
        help="auto, cpu, cuda, cuda:N or mps.",
        rich_help_panel=RUN,
    ),
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Precision of the computation.", rich_help_panel=RUN)]
Images = Annotated[
    list[str],
    typer.Argument(
        metavar="IMAGE|FOLDER|GLOB|LIST.txt|-",
        help="Images, folders of them, patterns, archives (.tar, .parquet), https:// and s3:// addresses, files with a "
        "path (but no address) per line, - for paths on standard input; videos with --every.",
    ),
]
Every = Annotated[
    str | None,
    typer.Option(
        "--every",
        metavar="N",
        help="Take every Nth frame of videos, animations and files of several pages, from the first one on.",
        rich_help_panel=PICTURES,
    ),
]
Frames = Annotated[bool, typer.Option("--frames", help="Take all frames, as --every 1 does.", rich_help_panel=PICTURES)]
BatchSize = Annotated[
    str, typer.Option("--batch-size", metavar="N|auto", help="Images explained at once.", rich_help_panel=RUN)
]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        help="Threads that read images ahead and write results behind. [default: one for every core]",
        rich_help_panel=RUN,
    ),
]
Units = Annotated[
    str | None,
    typer.Option(
        "--units",
        metavar="FOLDER",
        help="Show what the strongest units look for elsewhere: the folder that pathx units wrote.",
        rich_help_panel=PICTURES,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        "--ray",
        metavar="local|auto|ADDRESS",
        help="Run on Ray: one started here, the one at hand, or the one at an address.",
        rich_help_panel=RUN,
    ),
]
RayActors = Annotated[
    str | None,
    typer.Option(
        "--ray-actors",
        metavar="N|MIN:MAX",
        help="Processes that hold the model. [default: as many as there is room for]",
        rich_help_panel=RUN,
    ),
]
RayGpus = Annotated[
    str | None,
    typer.Option("--ray-gpus", metavar="N", help="GPUs of each; a share such as 0.5 is fine.", rich_help_panel=RUN),
]
ShardOption = Annotated[
    str | None,
    typer.Option(
        "--shard",
        metavar="I/N",
        help="Do one of N parts only. [default: that of the SLURM array or torchrun, or all]",
        rich_help_panel=RUN,
    ),
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Make results again that are there already.", rich_help_panel=RUN)
]
FailFast = Annotated[bool, typer.Option("--fail-fast", help="Stop at the first image that fails.", rich_help_panel=RUN)]
Report = Annotated[
    bool, typer.Option("--report", help="Also write an interactive page, report.html.", rich_help_panel=RESULTS)
]
NoPictures = Annotated[bool, typer.Option("--no-pictures", help="Write JSON only.", rich_help_panel=PICTURES)]
Labels = Annotated[
    str | None,
    typer.Option(
        "--labels",
        metavar="FILE",
        help="File with the class labels: one per line, or a JSON list or object.",
        rich_help_panel=MODEL,
    ),
]
InputSize = Annotated[
    str | None,
    typer.Option(
        "--input-size",
        metavar="C,H,W",
        help="For model files: channels,height,width, as 3,224,224.",
        rich_help_panel=MODEL,
    ),
]
Mean = Annotated[
    str | None,
    typer.Option(
        "--mean",
        metavar="M,...",
        help="For model files: mean per channel, as 0.485,0.456,0.406.",
        rich_help_panel=MODEL,
    ),
]
Std = Annotated[
    str | None,
    typer.Option(
        "--std", metavar="S,...", help="For model files: standard deviation per channel.", rich_help_panel=MODEL
    ),
]


def _folder(out: str) -> str:
    """Refuse a store for results that are written to folders only."""
    from pathx.stores import is_stored

    if is_stored(out):
        raise typer.BadParameter("these results go to a folder of this machine: name one, and copy it to the store")
    return out


Out = Annotated[
    str,
    typer.Option("--out", metavar="FOLDER", help="Folder for the results.", rich_help_panel=RESULTS, callback=_folder),
]
RunOut = Annotated[
    str,
    typer.Option(
        "--out", metavar="FOLDER", help="Folder for the results, or its address in a store.", rich_help_panel=RESULTS
    ),
]
Pack = Annotated[
    str | None,
    typer.Option(
        "--pack",
        metavar="tar|parquet",
        help="Pack results into shards, instead of a folder for each explanation.",
        rich_help_panel=RESULTS,
    ),
]
FormatOption = Annotated[
    Format,
    typer.Option("--format", help="Text for people, or one JSON document per explanation.", rich_help_panel=RESULTS),
]
OneFormat = Annotated[
    Format, typer.Option("--format", help="Text for people, or one JSON document.", rich_help_panel=RESULTS)
]
SaveTensors = Annotated[
    bool, typer.Option("--save-tensors", help="Also write tensors.safetensors.", rich_help_panel=RESULTS)
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="CLASS",
        help="True class of the images; a wrong prediction is also explained against it. "
        "[default: the image's folder, if it is called as a class]",
        rich_help_panel=PATH,
    ),
]
Smoothing = Annotated[
    str,
    typer.Option(
        "--smoothing",
        metavar="S",
        help="Gaussian of overlays and sheets, as a share of the shorter side; 0: none.",
        rich_help_panel=PICTURES,
    ),
]
Colours = Annotated[
    str,
    typer.Option(
        "--colours",
        "--colors",
        metavar="MAP",
        help=f"{' or '.join(COLOURS)}; each pair differs for any colour vision.",
        autocompletion=lambda: list(COLOURS),
        rich_help_panel=PICTURES,
    ),
]
Heat = Annotated[
    str,
    typer.Option(
        "--heat",
        metavar="|".join(HEATS),
        help="What overlays and sheets show: where the units of the path look, or what each pixel adds.",
        autocompletion=lambda: list(HEATS),
        rich_help_panel=PICTURES,
    ),
]
Percentile = Annotated[
    str,
    typer.Option(
        "--percentile",
        metavar="P",
        help="Of the magnitudes, what the strongest colour stands for.",
        rich_help_panel=PICTURES,
    ),
]
ShowUnits = Annotated[
    bool,
    typer.Option(
        "--show-units", help="Draw what the strongest units of the deepest layer can see.", rich_help_panel=PICTURES
    ),
]
NoMagnify = Annotated[
    bool,
    typer.Option(
        "--no-magnify",
        help="Show weak features, or weak runs that are compared, as weak as they are.",
        rich_help_panel=PICTURES,
    ),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Print errors only, and what --format json prints.", rich_help_panel=RESULTS),
]
