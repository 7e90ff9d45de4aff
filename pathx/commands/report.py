"""`pathx report`."""

from __future__ import annotations

import webbrowser
from typing import Annotated

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import Option
from pathx.commands.output import notes, say


@command()
def report(
    results: Annotated[
        list[str], typer.Argument(metavar="RESULTS...", help="Folders of results, or documents such as path.json.")
    ],
    out: Annotated[
        str | None, Option("Page to write. [default: report.html, or report/index.html for several]", "FILE")
    ] = None,
    units: options.Units = None,
    open: Annotated[bool, Option("Open it in the browser.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Make an interactive page of finished results.

    It shows the photo, the path as a flow, and what its units saw. The pages work offline, by a double click. Several
    results get a gallery with a page each. No network is run; explain --report adds what takes the network: other depths
    and widths, and what single units saw.
    """
    from pathx.report.build import report
    from pathx.results.store import check_in_folders

    for place in results:
        check_in_folders(place)
    if units is not None:
        from pathx.units.files import read_units

        read_units(units)  # refuses what is none
    made = report([*results, *([] if units is None else [units])], out, note=notes(quiet))
    if not quiet:
        say(str(made))
    if open:
        webbrowser.open(made.resolve().as_uri())
