"""`pathx redraw`."""

from __future__ import annotations

import os
from collections import Counter

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.output import about, print_error, say
from pathx.drawing.words import count_of


@command(rare=True)
def redraw(
    *,
    folder: str = typer.Argument(metavar="DIR", help="Results of explain or decompose with --save-tensors."),
    drawing: options.DrawingOptions,
    quiet: bool = options.QUIET,
) -> None:
    """Draw pictures again from saved tensors, in other colours.

    No network is run. Replaces the pictures everywhere below DIR. An image and class that was explained there in several
    ways, such as depths or widths, gets a sheet that compares them, DIR/compare-IMAGE-CLASS.png.
    """
    chosen = drawing.drawing

    from pathx.results.redraw import redraw
    from pathx.results.store import check_in_folders

    check_in_folders(folder)
    failed: Counter[str] = Counter()
    noted: set[str] = set()
    for result in redraw(folder, chosen):
        if result.error is not None:
            reason = str(result.error).replace(result.file, "")
            failed[reason] += 1
            if failed[reason] == 1:  # a folder of results usually lacks the same thing everywhere
                print_error(about(result.file, str(result.error)), result.error)
            continue
        if quiet:
            continue
        for note in set(result.notes) - noted:
            noted.add(note)
            print_error(f"note: {note}")
        say(f"{result.folder}{os.sep}: {', '.join(result.files)}")
    if failed:
        again = failed.total() - len(failed)
        if again:
            print_error(f"the same is true of {count_of(again, 'more folder')}")
        raise typer.Exit(1)
