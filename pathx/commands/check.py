"""`pathx check`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.output import print_paragraph, say

if TYPE_CHECKING:
    from pathx.evaluation.check import Checked


@command()
def check(
    *,
    image: str = typer.Argument(metavar="IMAGE", help="An image."),
    how: options.DocumentOptions,
    out: str = options.out_folder("pathx-check"),
) -> None:
    """Check on one image whether explanations can be trusted.

    It checks their arithmetic, whether they change when the model's weights are randomised, and how steady they are under noise.
    OUT gets check.json and the randomisation test as PNG and SVG. The exit status is 1 if a check fails.
    """
    from pathx.evaluation.check import check

    found = check(how.load(), image, out=out, **how.settings("checking"))
    how.screen.show(found.document, lambda: _print(found, out))
    if not found.passed:
        raise typer.Exit(1)


def _print(found: Checked, out: str) -> None:
    words = {True: "good", False: "BAD", None: "noted"}
    say(f"{found.image}: {found.target}, {found.model['name']}")
    say()
    for name, finding in found.findings.items():
        print_paragraph(finding.verdict, f"{name:14}{words[finding.passed]:6} ")
    say()
    plots = ", randomisation.png, randomisation.svg" if (Path(out) / "randomisation.png").exists() else ""
    say(found.verdict)
    say(f"{out}: check.json{plots}")
