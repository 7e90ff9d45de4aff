"""`pathx check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pathx.commands import options, parsing
from pathx.commands.loading import prepared
from pathx.commands.options import Dtype, Format
from pathx.commands.output import errors, notes, print_paragraph, progress_bar

if TYPE_CHECKING:
    from pathx.evaluation.check import Checked


def check(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image.")],
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    model_args: options.ModelArguments = None,
    detail: options.DetailOption = "clear",
    depth: options.PathDepth = None,
    width: options.PathWidth = None,
    alpha: options.Alpha = None,
    skips: options.PathSkips = None,
    device: options.Device = "auto",
    dtype: options.DtypeOption = Dtype.float32,
    labels: options.Labels = None,
    input_size: options.InputSize = None,
    mean: options.Mean = None,
    std: options.Std = None,
    out: options.Out = "pathx-check",
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Check whether explanations of your model can be trusted, on one image.

    Their arithmetic, whether they change when the model's weights are randomised, and how steady they are under noise.
    OUT gets check.json and the randomisation test as PNG and SVG. The exit status is 1 if a check fails.
    """
    with errors():
        layers, units, jumps = parsing.path(detail, depth, width, skips)
        least = parsing.alpha(alpha)

        from pathx.evaluation.check import check, pieces
        from pathx.evaluation.evaluate import write_json
        from pathx.images.folders import images_in
        from pathx.results.files import check_folder

        check_folder(out)
        (file, *_) = images_in([image])
        ready = prepared(
            model,
            weights=weights,
            model_args=model_args,
            labels=labels,
            input_size=input_size,
            mean=mean,
            std=std,
            device=device,
            dtype=dtype,
            quiet=quiet,
        )
        with progress_bar("checking", pieces(ready.network), quiet) as advance:
            found = check(ready, file, depth=layers, width=units, alpha=least, skips=jumps, progress=advance)
        _draw(found, Path(out), notes(quiet))
        write_json(Path(out) / "check.json", found.document)
        if format is Format.json:
            print(json.dumps(found.document))
        elif not quiet:
            _print(found, out)
        if not found.passed:
            raise typer.Exit(1)


def _draw(found: Checked, folder: Path, note: Callable[[str], None]) -> None:
    from pathx.evaluation.plots import MISSING, plot_randomisation, plots_are_missing

    lines = found.findings["randomisation"].figures.get("layers")
    if plots_are_missing():
        note(MISSING)
    elif lines:
        kinds = [kind for kind in lines[0] if kind != "module"]
        values = {kind.replace("_", " "): [line[kind] for line in lines] for kind in kinds}
        plot_randomisation(folder / "randomisation", [line["module"] for line in lines], values)


def _print(found: Checked, out: str) -> None:
    words = {True: "good", False: "BAD", None: "noted"}
    print(f"{found.image}: {found.target}, {found.model['name']}")
    print()
    for name, finding in found.findings.items():
        print_paragraph(f"{name:14}{words[finding.passed]:6} ", finding.verdict)
    print()
    plots = ", randomisation.png, randomisation.svg" if (Path(out) / "randomisation.png").exists() else ""
    print(found.verdict)
    print(f"{out}: check.json{plots}")
