"""`pathx check`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pathx.commands import options
from pathx.commands.loading import prepared
from pathx.commands.options import Dtype, Format, Skips
from pathx.commands.output import errors, notes, progress_bar

if TYPE_CHECKING:
    from pathx.check import Checked


def check(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="A picture.")],
    model: options.Model = "squeezenet1_1",
    weights: options.Weights = None,
    depth: options.Depth = "3",
    width: options.Width = "5",
    alpha: options.Alpha = None,
    skips: options.SkipsOption = Skips.adjacent,
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
    """Check whether explanations of your model can be trusted, on one picture.

    Their arithmetic, whether they change when the model's weights are randomised, and how steady they are under noise.
    OUT gets check.json and the randomisation test as PNG and SVG. The exit status is 1 if a check fails.
    """
    with errors():
        layers, units, least = options.depth(depth), options.width(width), options.alpha(alpha)

        from pathx.check import check, layers_of
        from pathx.evaluation import write_json
        from pathx.folders import pictures_in

        (picture, *_) = pictures_in([image])
        ready = prepared(
            model, weights=weights, labels=labels, input_size=input_size, mean=mean, std=std, device=device, dtype=dtype
        )
        with progress_bar("checking", len(layers_of(ready.network)) + 3, quiet) as advance:
            found = check(ready, picture, depth=layers, width=units, alpha=least, skips=skips.value, progress=advance)
        _draw(found, Path(out), notes(quiet))
        write_json(Path(out) / "check.json", found.document)
        if format is Format.json:
            print(json.dumps(found.document))
        elif not quiet:
            _print(found, out)
        if not found.passed:
            raise typer.Exit(1)


def _draw(found: Checked, folder: Path, note: Callable[[str], None]) -> None:
    from pathx.plots import MISSING, plot_randomisation, plots_are_missing

    lines = found.findings["randomisation"].figures.get("layers")
    if plots_are_missing():
        note(MISSING)
    elif lines:
        values = {kind: [line[kind] for line in lines] for kind in ("signed", "absolute")}
        plot_randomisation(folder / "randomisation", [line["module"] for line in lines], values)


def _print(found: Checked, out: str) -> None:
    words = {True: "good", False: "BAD", None: "noted"}
    print(f"{found.picture}: {found.target}, {found.model['name']}")
    print()
    for name, finding in found.findings.items():
        print(f"{name:14}{words[finding.passed]:6} {finding.verdict}")
    print()
    correlation = found.findings["stability"].figures.get("correlation")
    steady = correlation is None or correlation >= found.findings["stability"].figures["steady_from"]
    verdict = "the explanation can be trusted as far as this goes" if found.passed else "do not trust the explanation"
    if found.passed and not steady:
        verdict = "the explanation is right for this picture; do not read much into its details, which noise changes"
    plots = ", randomisation.png, randomisation.svg" if (Path(out) / "randomisation.png").exists() else ""
    print(f"{verdict}; {out}: check.json{plots}")
