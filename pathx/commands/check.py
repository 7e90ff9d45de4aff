"""`pathx check`."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import Format
from pathx.commands.output import notes, print_paragraph, progress_bar, say

if TYPE_CHECKING:
    from pathx.evaluation.check import Checked


@command()
def check(
    image: Annotated[str, typer.Argument(metavar="IMAGE", help="An image.")],
    model: options.ModelOptions,
    path: options.PathOptions,
    device: options.DeviceOptions,
    out: options.Out = "pathx-check",
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Check on one image whether explanations can be trusted.

    Their arithmetic, whether they change when the model's weights are randomised, and how steady they are under noise.
    OUT gets check.json and the randomisation test as PNG and SVG. The exit status is 1 if a check fails.
    """
    settings = path.settings

    from pathx.evaluation.check import check

    watch = partial(progress_bar, "checking", quiet=quiet)
    where: dict[str, Any] = {"device": device.device, "dtype": device.dtype.value}
    found = check(model.load(quiet), image, out=out, **settings, **where, note=notes(quiet), watch=watch)
    if format is Format.json:
        say(json.dumps(found.document))
    elif not quiet:
        _print(found, out)
    if not found.passed:
        raise typer.Exit(1)


def _print(found: Checked, out: str) -> None:
    words = {True: "good", False: "BAD", None: "noted"}
    say(f"{found.image}: {found.target}, {found.model['name']}")
    say()
    for name, finding in found.findings.items():
        print_paragraph(f"{name:14}{words[finding.passed]:6} ", finding.verdict)
    say()
    plots = ", randomisation.png, randomisation.svg" if (Path(out) / "randomisation.png").exists() else ""
    say(found.verdict)
    say(f"{out}: check.json{plots}")
