"""`pathx sheet`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from pathx.commands import options
from pathx.commands.output import about, complain, errors


def sheet(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="Results of explain or decompose with --save-tensors.")],
    smoothing: options.Smoothing = "0.025",
    colours: options.Colours = "red-blue",
    percentile: options.Percentile = "99",
    show_units: options.ShowUnits = False,
    no_magnify: options.NoMagnify = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Make pictures anew from saved tensors, with other colours or scales; no network is run.

    Replaces the pictures everywhere below DIR. A picture and class that was explained there in several ways, such as depths
    or widths, gets a sheet that compares them, DIR/compare-IMAGE-CLASS.png.
    """
    with errors():
        drawing = options.drawing(smoothing, colours, percentile, show_units, no_magnify)

        from pathx.redraw import Redrawn, redraw

        failed = 0
        noted: set[str] = set()
        for result in redraw(folder, drawing):
            if not isinstance(result, Redrawn):
                failed += 1
                complain(about(result.file, str(result.error)), result.error)
                continue
            if quiet:
                continue
            for note in set(result.notes) - noted:
                noted.add(note)
                complain(f"note: {note}")
            print(f"{result.folder}{os.sep}: {', '.join(result.files)}")
        if failed:
            raise typer.Exit(1)
