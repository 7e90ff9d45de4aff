"""The one vocabulary of options, each declared once in its group, with what its text means to the library.

A command lists the groups it takes; `pathx.commands.command` makes its command line of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, TypeVar

import typer

from pathx.commands.output import complain, notes
from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.colours import COLOURS, HEATS
from pathx.errors import PathxError, parse_json
from pathx.evaluation.choices import DEFAULT_METHODS, METHODS, PROTOCOLS, TIES
from pathx.runs.index import Shard, parse_shard, shard_of_environment

if TYPE_CHECKING:
    from pathx.drawing.render import Drawing
    from pathx.models.load import LoadedModel
    from pathx.pipeline import Prepared

PATH, MODEL, PICTURES, RESULTS, RUN = "The path", "The model", "Pictures", "Results", "How it runs"
SELDOM = "Seldom needed"
PANELS = (PATH, MODEL, PICTURES, RESULTS, RUN, SELDOM)
"""What --help groups the options under, in this order."""


class Skips(str, Enum):
    adjacent = "adjacent"
    all = "all"


_SKIPS = Skips(SKIPS)


class Exact(str, Enum):
    image = "image"
    region = "region"


_EXACT = Exact(EXACT)


class Dtype(str, Enum):
    float32 = "float32"
    float64 = "float64"


class Format(str, Enum):
    text = "text"
    json = "json"


@dataclass(frozen=True)
class Option:
    """What --help says of an option; its name is that of the field or parameter.

    Args:
        names: if it has others than that.
        rare: the settings file sets it, and no option.
        panel: its heading in --help, if that is not the group's.
        check: is called with the value before any work.
    """

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    choices: Iterable[str] = ()
    panel: str | None = None
    rare: bool = False
    check: Callable[[str], str] | None = None


def _check_folder(out: str) -> str:
    """Refuse a store for results that are written to folders only."""
    from pathx.stores import is_stored

    if is_stored(out):
        raise typer.BadParameter("these results go to a folder of this machine: name one, and copy it to the store")
    return out


@dataclass(frozen=True)
class ModelOptions:
    """A model and what belongs to it."""

    panel: ClassVar[str] = MODEL
    model: Annotated[
        str,
        Option(
            "A torchvision name; a TorchScript, .pt2 or .onnx file; timm:NAME; hf:NAME or a folder of save_pretrained; "
            "file.py:build or package.module:build, your own code.",
            "NAME|FILE|SOURCE:NAME",
        ),
    ] = "squeezenet1_1"
    weights: Annotated[
        str | None,
        Option(
            "For all but model files: a state dict or checkpoint; torchvision's own names (DEFAULT, …); NAME=FILE for a "
            "file to be used as those; or none (untrained).",
            "NAME|FILE|NAME=FILE|none",
        ),
    ] = None
    model_args: Annotated[
        str | None,
        Option(
            """For timm:NAME and your own code: arguments by name, as '{"num_classes": 10}'.""", "JSON", panel=SELDOM
        ),
    ] = None
    labels: Annotated[
        str | None, Option("File with the class labels: one per line, or a JSON list or object.", "FILE")
    ] = None
    input_size: Annotated[str | None, Option("For model files: channels,height,width, as 3,224,224.", "C,H,W")] = None
    mean: Annotated[str | None, Option("For model files: mean per channel, as 0.485,0.456,0.406.", "M,...")] = None
    std: Annotated[
        str | None, Option("For model files: standard deviation per channel, as 0.229,0.224,0.225.", "S,...")
    ] = None

    def loader(self) -> Callable[[], LoadedModel]:
        """What loads the model, here or in another process; the options are checked at once."""
        return partial(
            _load,
            self.model,
            weights=self.weights,
            arguments=parse_model_args(self.model_args),
            labels=self.labels,
            input_size=parse_size(self.input_size),
            mean=parse_numbers(self.mean, "--mean"),
            std=parse_numbers(self.std, "--std"),
        )

    def load(self, quiet: bool = False) -> LoadedModel:
        """The model, once its notes are printed."""
        loaded = self.loader()()
        for note in loaded.notes:
            notes(quiet)(note)
        return loaded


def _load(model: str, **given: Any) -> LoadedModel:
    """As `load_model`, which takes torch, and so is imported only then."""
    from pathx.models.load import load_model

    return load_model(model, **given)


@dataclass(frozen=True)
class PathOptions:
    """How far a path goes, and what it keeps."""

    panel: ClassVar[str] = PATH
    depth: Annotated[
        str,
        Option(
            "Hidden layers on the path, from the output down: a number, as many as hold N layers of maps, half or all.",
            "N|maps:N|half|all",
        ),
    ] = DEPTH
    width: Annotated[str, Option("Units kept per layer at most: a number, a share such as 5%, or all.", "K|P%|all")] = (
        str(WIDTH)
    )
    alpha: Annotated[
        str | None, Option("Importance a unit must exceed to be kept. [default: 1/classes; 0 for effects]", "A")
    ] = None
    skips: Annotated[Skips, Option("Follow routes from layer to layer, or also those that jump.")] = _SKIPS
    exact: Annotated[
        Exact, Option("Where the numbers must hold: at the image, or in a region around it (ReLU networks only).")
    ] = _EXACT
    importance: Annotated[
        str,
        Option(
            "paper or effect: rank units as the paper does, or by their first-order effect on the log-odds of the class.",
            "paper|effect",
            choices=("paper", "effect"),
            panel=SELDOM,
        ),
    ] = IMPORTANCE

    @property
    def settings(self) -> dict[str, Any]:
        """As the library takes them."""
        return {
            "depth": parse_depth(self.depth),
            "width": parse_width(self.width),
            "alpha": parse_alpha(self.alpha),
            "skips": self.skips.value,
            "exact": self.exact.value,
            "importance": self.importance,
        }


@dataclass(frozen=True)
class DeviceOptions:
    panel: ClassVar[str] = RUN
    device: Annotated[str, Option("auto, cpu, cuda, cuda:N or mps.", "DEVICE")] = "auto"
    dtype: Annotated[Dtype, Option("Precision of the computation.")] = Dtype.float32

    def prepare(self, model: LoadedModel) -> Prepared:
        """The model on its device."""
        from pathx.pipeline import prepare

        return prepare(model, device=self.device, dtype=self.dtype.value)


@dataclass(frozen=True)
class RayOptions:
    panel: ClassVar[str] = RUN
    ray: Annotated[
        str | None,
        Option("Run on Ray: one started here, the one at hand, or the one at an address.", "local|auto|ADDRESS"),
    ] = None
    ray_actors: Annotated[
        str | None,
        Option(
            "Processes that hold the model, N or MIN:MAX. [default: as many as there is room for]",
            rare=True,
        ),
    ] = None
    ray_gpus: Annotated[str | None, Option("GPUs of each; a share such as 0.5 is fine.", rare=True)] = None

    @property
    def where(self) -> dict[str, Any]:
        """The cluster, as functions that run on Ray take it."""
        from pathx.cluster import parse_actors

        return {"address": self.ray, "actors": parse_actors(self.ray_actors, self.ray_gpus)}


@dataclass(frozen=True)
class RunOptions:
    """How a run over many images goes."""

    panel: ClassVar[str] = RUN
    batch_size: Annotated[str, Option("Images explained at once.", "N|auto")] = "auto"
    workers: Annotated[
        str | None,
        Option("Threads that read images ahead and write results behind. [default: cores, 8 at most]", rare=True),
    ] = None
    shard: Annotated[
        str | None,
        Option("Do one of N parts only. [default: that of the SLURM array or torchrun, or all]", "I/N"),
    ] = None
    overwrite: Annotated[bool, Option("Make results again that are there already.")] = False
    fail_fast: Annotated[bool, Option("Stop at the first image that fails.", rare=True)] = False


@dataclass(frozen=True)
class DrawingOptions:
    """How pictures are drawn."""

    panel: ClassVar[str] = PICTURES
    heat: Annotated[
        str,
        Option(
            "What overlays show: where the units of the path look, what each pixel adds, or where all units of the upper "
            "half of the layers look.",
            "|".join(HEATS),
            choices=HEATS,
            rare=True,
        ),
    ] = "path"
    colours: Annotated[
        str,
        Option(
            f"{' or '.join(COLOURS)}; each pair differs for any colour vision.",
            "MAP",
            names=("--colours", "--colors"),
            choices=COLOURS,
            rare=True,
        ),
    ] = "red-blue"
    smoothing: Annotated[
        str,
        Option("Gaussian of overlays and sheets, as a share of the shorter side; 0: none.", "S", rare=True),
    ] = "0.025"
    percentile: Annotated[str, Option("Of the magnitudes, what the strongest colour stands for.", "P", rare=True)] = (
        "99"
    )
    show_units: Annotated[bool, Option("Draw what the strongest units of the deepest layer can see.", rare=True)] = (
        False
    )

    @property
    def drawing(self) -> Drawing:
        """As the library takes them."""
        smoothing = parse_number(self.smoothing, "--smoothing", "0.025")
        percentile = parse_number(self.percentile, "--percentile", "99")

        from pathx.drawing.render import Drawing

        return Drawing(smoothing, self.colours, percentile, self.show_units, self.heat)


@dataclass(frozen=True)
class ResultOptions:
    """What is written of explanations, and where."""

    panel: ClassVar[str] = RESULTS
    every: Annotated[
        str | None,
        Option(
            "Take every Nth frame of videos, animations and files of several pages, from the first one on.",
            "N",
            panel=PICTURES,
        ),
    ] = None
    truth: Annotated[
        str | None,
        Option(
            "True class of the images; a wrong prediction is also explained against it. "
            "[default: the image's folder, if it is called as a class]",
            rare=True,
        ),
    ] = None
    units: Annotated[
        str | None,
        Option(
            "Show what the strongest units look for elsewhere: the folder that pathx units wrote.",
            "FOLDER",
            panel=PICTURES,
        ),
    ] = None
    removal: Annotated[
        bool | None,
        Option(
            "See what becomes of the class without the path's units. "
            "[default: for up to ten images named one by one, and with --report]",
            names=("--removal/--no-removal",),
        ),
    ] = None
    no_pictures: Annotated[bool, Option("Write JSON only.", panel=PICTURES)] = False
    out: Annotated[str, Option("Folder for the results, or its address in a store.", "FOLDER")] = "pathx-out"
    pack: Annotated[
        str | None,
        Option("Pack results into shards, instead of a folder for each explanation.", "tar|parquet"),
    ] = None
    save_tensors: Annotated[bool, Option("Also write tensors.safetensors.")] = False
    report: Annotated[bool, Option("Also write an interactive page, report.html.")] = False
    format: Annotated[Format, Option("Text for people, or one JSON document per explanation.")] = Format.text
    quiet: Annotated[bool, Option("Print errors only, and what --format json prints.", names=("--quiet", "-q"))] = False


@dataclass(frozen=True)
class MeasureOptions:
    """How explanations are measured."""

    panel: ClassVar[str] = "The measure"
    methods: Annotated[
        list[str] | None,
        Option(
            f"Of {', '.join(METHODS)}, with commas between, or all. [default: {','.join(DEFAULT_METHODS)}]",
            "NAME,...",
        ),
    ] = None
    protocol: Annotated[
        str,
        Option(
            "The usual one (Petsiuk et al.), the paper's: each channel ranked, or the grid game: mosaics of four images.",
            "|".join(PROTOCOLS),
            choices=PROTOCOLS,
        ),
    ] = "rise"
    ties: Annotated[
        str,
        Option(
            "Order of pixels that a map gives the same value. The paper's table has rows.",
            "|".join(TIES),
            choices=TIES,
        ),
    ] = "random"
    steps: Annotated[str | None, Option("Steps from one end to the other.", "N")] = None
    step_pixels: Annotated[str | None, Option("Pixels per step. [default: one row of the image]", "N")] = None

    @property
    def settings(self) -> dict[str, Any]:
        """As the library takes them."""
        return {
            "methods": split_list(self.methods),
            "protocol": self.protocol,
            "ties": self.ties,
            "steps": parse_whole_number(self.steps, "--steps"),
            "step_pixels": parse_whole_number(self.step_pixels, "--step-pixels"),
        }


IMAGES = typer.Argument(
    metavar="IMAGE|FOLDER|GLOB|LIST.txt|-",
    help="Images, folders of them, patterns, archives (.tar, .parquet), https:// and s3:// addresses, files with a "
    "path (but no address) per line, - for an image or paths on standard input; videos with --every.",
)
Images = Annotated[list[str], IMAGES]
Targets = Annotated[
    list[str] | None,
    Option(
        "Class to explain: number, label, or top:K for the K best; may repeat. [default: the predicted]",
        "CLASS",
        names=("--target",),
        panel=PATH,
    ),
]
BatchSize = Annotated[str, Option("Images explained at once.", "N|auto", panel=RUN)]
Units = Annotated[str | None, Option("What units look for elsewhere: the folder that pathx units wrote.", "FOLDER")]
Out = Annotated[str, Option("Folder for the results.", "FOLDER", panel=RESULTS, check=_check_folder)]
OneFormat = Annotated[Format, Option("Text for people, or one JSON document.", panel=RESULTS)]
Quiet = Annotated[
    bool, Option("Print errors only, and what --format json prints.", names=("--quiet", "-q"), panel=RESULTS)
]


# What the texts of options mean; PathxError names the option that is wrong.

T = TypeVar("T")


def parse(text: str, kind: Callable[[str], T], problem: str) -> T:
    """The text as a number, or the problem as an error."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        raise PathxError(problem, usage=True) from None


def parse_model_args(text: str | None) -> dict[str, Any] | None:
    """--model-args."""
    if text is None:
        return None
    try:
        found = parse_json(text)
    except ValueError as error:
        raise PathxError(f"--model-args is not valid JSON ({error}): write {_ARGUMENTS}", usage=True) from None
    if not isinstance(found, dict):
        raise PathxError(f"--model-args takes an object such as {_ARGUMENTS}", usage=True)
    return found


_ARGUMENTS = """'{"num_classes": 10}'"""


def parse_depth(text: str) -> int | str:
    """--depth: a number, or what the library makes of maps:N, half or all."""
    problem = f"depth {text!r} is not a number of layers; use 1 or more, maps:3, half or all"
    return text if re.fullmatch(r"all|half|maps:[1-9]\d*", text) else parse(text, int, problem)


def parse_width(text: str) -> int | str:
    """--width: a number, or what the library makes of a share or all."""
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else text


def parse_numbers(text: str | None, option: str) -> list[float] | None:
    """--mean and --std."""
    problem = f"{option} takes numbers with commas between, such as 0.5,0.5,0.5, not {text!r}"
    return None if text is None else [parse(part, float, problem) for part in text.split(",")]


def parse_size(text: str | None) -> list[int] | None:
    """--input-size."""
    problem = f"--input-size takes channels,height,width such as 3,224,224, not {text!r}"
    return None if text is None else [parse(part, int, problem) for part in re.split("[,x]", text)]


def parse_batch_size(text: str) -> int | str:
    """--batch-size: a number or auto."""
    return text if text == "auto" else parse(text, int, f"--batch-size takes a number of images or auto, not {text!r}")


def parse_images_at_once(text: str) -> int:
    """--batch-size where auto is a fixed number."""
    size = parse_batch_size(text)
    return 8 if isinstance(size, str) else size


def choose_shard(text: str | None, quiet: bool) -> Shard | None:
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


def parse_whole_number(text: str | None, option: str) -> int | None:
    """--features, --from-layer, --steps and the like."""
    return None if text is None else parse(text, int, f"{option} takes a whole number, not {text!r}")


def parse_every(text: str | None) -> int | None:
    """--every: the step from frame to frame; None to take files as single images."""
    step = parse_whole_number(text, "--every")
    if step is not None and step < 1:
        raise PathxError(f"--every takes 1 or more, not {step}: 10 is every tenth frame", usage=True)
    return step


def parse_alpha(text: str | None) -> float | None:
    """--alpha."""
    return None if text is None else parse(text, float, f"alpha {text!r} is not a number; use 0 to 1")


def parse_number(text: str, option: str, example: str) -> float:
    """--smoothing and --percentile."""
    return parse(text, float, f"{option} takes a number such as {example}, not {text!r}")


def split_list(texts: list[str] | None) -> list[str]:
    """The parts of an option that may be repeated and takes lists with commas."""
    return [part.strip() for text in texts or () for part in text.split(",") if part.strip()]
