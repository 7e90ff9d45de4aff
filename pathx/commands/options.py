"""The one vocabulary of options, each declared once with the text of its --help and how its value is read.

A command lists the groups it takes; `pathx.commands.command` makes its command line of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import typer

from pathx.commands.output import note_printer, print_error, print_notes, progress_bar, say
from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.drawing.colours import COLOURS, HEATS
from pathx.errors import PathxError, parse_json
from pathx.evaluation.choices import DEFAULT_METHODS, METHODS, PROTOCOLS, TIES
from pathx.runs.index import Shard, parse_shard, shard_of_environment
from pathx.stores import is_stored

if TYPE_CHECKING:
    from pathx.drawing.render import Drawing
    from pathx.models.load import LoadedModel
    from pathx.pipeline import Prepared

MEASURE, PATH, MODEL, PICTURES = "The measure", "The path", "The model", "Pictures"
RESULTS, RUN, SELDOM = "Results", "How it runs", "Seldom needed"
PANELS = (MEASURE, PATH, MODEL, PICTURES, RESULTS, RUN, SELDOM)
"""The headings of --help, in this order."""


@dataclass(frozen=True)
class Option:
    """What --help says of an option, and how its text is read. Its name is that of the field or parameter.

    Args:
        names: if it has others.
        choices: the only texts that it takes.
        parse: makes a value of the text, or of the list of texts where the annotation is a list: such options may repeat.
            By default the annotation says how.
        panel: its heading in --help, if that is not the group's.
        rare: only the settings file sets it.
    """

    help: str
    metavar: str | None = None
    names: tuple[str, ...] = ()
    choices: Iterable[str] = ()
    parse: Callable[[Any], Any] | None = None
    panel: str | None = None
    rare: bool = False


def option(default: Any, help: str, metavar: str | None = None, **more: Any) -> Any:
    """An option as the default of a field or of a command's parameter; the arguments are those of `Option`."""
    return field(default=default, metadata={"option": Option(help, metavar, **more)})


# How texts are read; PathxError names the option that is wrong.

T = TypeVar("T")
Grid = str | tuple[list[int | str], list[int | str]]
"""`auto`, or depths and widths."""


def parse(text: str, kind: Callable[[str], T], problem: str) -> T:
    """The text as a number, or the problem as an error."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        raise PathxError(problem, usage=True) from None


def parse_model_args(text: str) -> dict[str, Any]:
    """--model-args."""
    example = """'{"num_classes": 10}'"""
    try:
        arguments = parse_json(text)
    except ValueError as error:
        raise PathxError(f"--model-args is not valid JSON ({error}): write {example}", usage=True) from None
    if not isinstance(arguments, dict):
        raise PathxError(f"--model-args takes an object such as {example}", usage=True)
    return arguments


def number_or_text(text: str) -> int | str:
    """A number; or what the library makes of another text, such as `half`, `5%` or `auto`."""
    return int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else text


def parse_grid(text: str) -> Grid:
    """--grid."""
    if text == "auto":
        return text
    depths, slash, widths = text.partition("/")
    if not slash or not depths or not widths:
        raise PathxError(f"--grid takes depths/widths such as 1,3,all/16,64, or auto, not {text!r}", usage=True)
    return list(map(number_or_text, depths.split(","))), list(map(number_or_text, widths.split(",")))


def parse_numbers(option: str, text: str) -> list[float]:
    """--mean and --std."""
    problem = f"{option} takes numbers with commas between, such as 0.5,0.5,0.5, not {text!r}"
    return [parse(part, float, problem) for part in text.split(",")]


def parse_size(text: str) -> list[int]:
    """--input-size."""
    problem = f"--input-size takes channels,height,width such as 3,224,224, not {text!r}"
    return [parse(part, int, problem) for part in re.split("[,x]", text)]


def parse_folder(text: str) -> str:
    """--out of commands that write to folders only."""
    if is_stored(text):
        raise PathxError("these results go to a folder of this machine: name one, and copy it to the store", usage=True)
    return text


def split_list(texts: list[str]) -> list[str]:
    """The parts of an option that may repeat and takes lists with commas."""
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def parse_ranges(option: str, texts: list[str]) -> list[int]:
    """Numbers and ranges of them: `3`, or `3-7` for all of them."""
    numbers: list[int] = []
    for text in split_list(texts):
        first, dash, last = text.partition("-")
        wrong = f"{option} takes numbers and ranges such as 3,5-7, not {text!r}"
        low = parse(first, int, wrong)
        high = parse(last, int, wrong) if dash else low
        if not 0 <= low <= high < 1_000_000:
            raise PathxError(wrong, usage=True)
        numbers += range(low, high + 1)
    return list(dict.fromkeys(numbers))


def choose_shard(given: Shard | None, quiet: bool) -> Shard | None:
    """--shard, or the part that a job scheduler gave to this process, which is then said."""
    if given is not None:
        return given if given.count > 1 else None
    shard, source = shard_of_environment() or (None, "")
    if shard is not None and not quiet:
        print_error(f"note: this is shard {shard}, says {source}; for everything use --shard 1/1")
    return shard


# Single options that several commands take


IMAGES = typer.Argument(
    metavar="IMAGE|FOLDER|GLOB|LIST.txt|-",
    help="Images, folders of them, patterns, archives (.tar, .parquet), https:// and s3:// addresses, text files with a "
    "path (not an address) per line, - for an image or paths on standard input; videos with --every.",
)
TARGETS = option(
    (),
    "Class to explain: number, label, or top:K for the K best; may repeat. [default: the predicted class]",
    "CLASS",
    names=("--target",),
    panel=PATH,
)
UNITS = option(
    None, "Also show what units look for elsewhere: a folder that pathx units wrote.", "FOLDER", panel=PICTURES
)
SHARD = option(
    None,
    "Do one of N parts only. [default: the part given by SLURM or torchrun, or everything]",
    "I/N",
    parse=parse_shard,
    panel=RUN,
)
BATCH_SIZE = option("auto", "Images explained at once.", "N|auto", panel=RUN)
NO_PICTURES = option(False, "Write JSON only.", panel=PICTURES)
FORMAT = option("text", "Text for people, or JSON documents.", choices=("text", "json"), panel=RESULTS)
QUIET = option(False, "Print only errors and JSON.", names=("--quiet", "-q"), panel=RESULTS)


@dataclass(frozen=True)
class ScreenOptions:
    """What people see of a command whose result is one document."""

    panel: ClassVar[str] = RESULTS
    format: str = FORMAT
    quiet: bool = QUIET

    def show(self, document: Any, text: Callable[[], None]) -> None:
        """The document as JSON, or as text unless all is to be quiet."""
        if self.format == "json":
            say(json.dumps(document))
        elif not self.quiet:
            text()


def out_folder(default: str) -> Any:
    """--out of commands that write to folders only."""
    return option(default, "Folder for the results.", "FOLDER", panel=RESULTS, parse=parse_folder)


# Groups of options


@dataclass(frozen=True)
class ModelOptions:
    """A model and what belongs to it."""

    panel: ClassVar[str] = MODEL
    model: str = option(
        "squeezenet1_1",
        "A torchvision name; a TorchScript, .pt2 or .onnx file; timm:NAME; hf:NAME or a folder of save_pretrained; "
        "or your own code, file.py:build or package.module:build.",
        "NAME|FILE|SOURCE:NAME",
    )
    weights: str | None = option(
        None,
        "For all but model files: a state dict or checkpoint; a torchvision name such as DEFAULT; NAME=FILE to read those "
        "weights from a file; or none (untrained).",
        "NAME|FILE|NAME=FILE|none",
    )
    model_args: dict[str, Any] | None = option(
        None,
        """For timm:NAME and your own code: arguments by name, as '{"num_classes": 10}'.""",
        "JSON",
        panel=SELDOM,
        parse=parse_model_args,
    )
    labels: str | None = option(None, "File with the class labels: one per line, or a JSON list or object.", "FILE")
    input_size: Sequence[int] | None = option(
        None, "For model files: channels,height,width, as 3,224,224.", "C,H,W", parse=parse_size
    )
    mean: Sequence[float] | None = option(
        None,
        "For model files: mean per channel, as 0.485,0.456,0.406.",
        "M,...",
        parse=partial(parse_numbers, "--mean"),
    )
    std: Sequence[float] | None = option(
        None,
        "For model files: standard deviation per channel, as 0.229,0.224,0.225.",
        "S,...",
        parse=partial(parse_numbers, "--std"),
    )

    def loader(self) -> Callable[[], LoadedModel]:
        """What loads the model, here or in another process."""
        return partial(_load, **vars(self))

    def load(self, quiet: bool = False) -> LoadedModel:
        """The model; its notes are printed."""
        loaded = self.loader()()
        print_notes(loaded.notes, quiet)
        return loaded


def _load(model: str, model_args: dict[str, Any] | None, **given: Any) -> LoadedModel:
    """As `load_model`, whose import loads torch."""
    from pathx.models.load import load_model

    return load_model(model, arguments=model_args, **given)


@dataclass(frozen=True)
class PathOptions:
    """How far a path goes, and what it keeps."""

    panel: ClassVar[str] = PATH
    depth: int | str = option(
        DEPTH,
        "Hidden layers on the path, from the output down: a number, maps:N for the N topmost layers of feature maps and "
        "all above them, half or all.",
        "N|maps:N|half|all",
    )
    width: int | str = option(WIDTH, "Units kept per layer at most: a number, a share such as 5%, or all.", "K|P%|all")
    alpha: float | None = option(
        None, "Importance that a unit must exceed to be kept. [default: 1/classes; 0 with --importance effect]", "A"
    )
    skips: str = option(SKIPS, "Follow only routes from layer to layer, or all.", choices=("adjacent", "all"))
    exact: str = option(
        EXACT,
        "Where the numbers must hold: at the image, or in a region around it (ReLU networks only).",
        choices=("image", "region"),
    )
    importance: str = option(
        IMPORTANCE,
        "Rank units as the paper does, or by their first-order effect on the log-odds of the class.",
        choices=("paper", "effect"),
        panel=SELDOM,
    )


@dataclass(frozen=True)
class DeviceOptions:
    panel: ClassVar[str] = RUN
    device: str = option("auto", "auto, cpu, cuda, cuda:N or mps.", "DEVICE")
    dtype: str = option("float32", "Precision of the computation.", choices=("float32", "float64"))

    def prepare(self, model: LoadedModel, **exactness: Any) -> Prepared:
        """The model on its device; the arguments are those of the function of this name."""
        from pathx.pipeline import prepare

        return prepare(model, device=self.device, dtype=self.dtype, **exactness)


@dataclass(frozen=True)
class RayOptions:
    panel: ClassVar[str] = RUN
    ray: str | None = option(
        None, "Run on Ray: start it here, use the running one, or the one at an address.", "local|auto|ADDRESS"
    )
    ray_actors: str | None = option(
        None, "Processes that hold the model, N or MIN:MAX. [default: as many as there is room for]", rare=True
    )
    ray_gpus: str | None = option(None, "GPUs of each process; a share such as 0.5 is fine.", rare=True)

    @property
    def where(self) -> dict[str, Any]:
        """The cluster, as functions that run on Ray take it."""
        from pathx.cluster import parse_actors

        return {"address": self.ray, "actors": parse_actors(self.ray_actors, self.ray_gpus)}


@dataclass(frozen=True)
class RunOptions:
    """How a run over many images goes."""

    panel: ClassVar[str] = RUN
    batch_size: int | str = BATCH_SIZE
    workers: int | None = option(
        None, "Threads that read images ahead and write results behind. [default: cores, 8 at most]", rare=True
    )
    shard: Shard | None = SHARD
    overwrite: bool = option(False, "Make results again that are already there.")
    fail_fast: bool = option(False, "Stop at the first image that fails.", rare=True)


@dataclass(frozen=True)
class DrawingOptions:
    """How pictures are drawn."""

    panel: ClassVar[str] = PICTURES
    heat: str = option(
        "path",
        "What overlays show: where the units of the path look, what each pixel adds, or where all units of the upper half "
        "of the layers look.",
        choices=HEATS,
        rare=True,
    )
    colours: str = option(
        "red-blue",
        "The two colours of each pair differ for any colour vision.",
        names=("--colours", "--colors"),
        choices=COLOURS,
        rare=True,
    )
    smoothing: float = option(
        0.025,
        "Sigma of the Gaussian on overlays and sheets, as a share of the shorter side; 0 for none.",
        "S",
        rare=True,
    )
    percentile: float = option(99.0, "Percentile of the magnitudes that has the strongest colour.", "P", rare=True)

    @property
    def drawing(self) -> Drawing:
        """As the library takes them."""
        from pathx.drawing.render import Drawing

        return Drawing(**vars(self))


@dataclass(frozen=True)
class ResultOptions:
    """What is written of explanations, and where."""

    panel: ClassVar[str] = RESULTS
    every: int | None = option(
        None,
        "Take every Nth frame of videos, animations and files of several pages, starting with the first.",
        "N",
        panel=PICTURES,
    )
    truth: str | None = option(
        None,
        "True class of the images; a wrong prediction is also explained against it. "
        "[default: the image's folder, if it is named after a class]",
        rare=True,
    )
    units: str | None = UNITS
    removal: bool | None = option(
        None,
        "Measure the class's probability without the path's units. "
        "[default: for up to ten images named one by one, and with --report]",
        names=("--removal/--no-removal",),
    )
    no_pictures: bool = NO_PICTURES
    out: str = option("pathx-out", "Folder for the results, or its address in a store.", "FOLDER")
    pack: str | None = option(
        None, "Pack results into tar or Parquet files, instead of a folder for each explanation.", "tar|parquet"
    )
    save_tensors: bool = option(False, "Also write tensors.safetensors.")
    report: bool = option(False, "Also write an interactive page, report.html.")
    format: str = FORMAT
    quiet: bool = QUIET


@dataclass(frozen=True)
class ExplainOptions:
    """What a run over images takes, to explain or to decompose them."""

    model: ModelOptions
    path: PathOptions
    drawing: DrawingOptions
    results: ResultOptions
    device: DeviceOptions
    run: RunOptions
    ray: RayOptions


@dataclass(frozen=True)
class DocumentOptions:
    """What a command takes that explains images and makes one document of them."""

    model: ModelOptions
    path: PathOptions
    device: DeviceOptions
    screen: ScreenOptions

    def load(self) -> LoadedModel:
        return self.model.load(self.screen.quiet)

    def settings(self, what: str) -> dict[str, Any]:
        """Of the path and the device, with `note` and `watch`, as functions of the library take them."""
        watch = partial(progress_bar, what, quiet=self.screen.quiet)
        return {**vars(self.path), **vars(self.device), "note": note_printer(self.screen.quiet), "watch": watch}


@dataclass(frozen=True)
class MeasureOptions:
    """How explanations are measured."""

    panel: ClassVar[str] = MEASURE
    methods: list[str] = option(
        (),
        f"Any of {', '.join(METHODS)}, with commas between, or all. [default: {','.join(DEFAULT_METHODS)}]",
        "NAME,...",
        parse=split_list,
    )
    protocol: str = option(
        "rise",
        "rise: the usual one (Petsiuk et al.); paper: each channel ranked; grid: the grid game, mosaics of four images.",
        choices=PROTOCOLS,
    )
    ties: str = option("random", "Order of pixels with the same value; the paper's table uses rows.", choices=TIES)
    steps: int | None = option(None, "Steps from one end of a curve to the other.", "N")
    step_pixels: int | None = option(None, "Pixels per step. [default: one row of the image]", "N")
    grid: Grid | None = option(
        None,
        "Measure paths of many depths and widths instead, as 1,3,all/16,64; auto chooses them.",
        "DEPTHS/WIDTHS|auto",
        parse=parse_grid,
    )
    removal: bool = option(
        False, "Set the path's units to zero in the real network instead, and as many units chosen in other ways."
    )
    keep: bool = option(False, "With --removal: also keep only these units and set the others of their layers to zero.")
