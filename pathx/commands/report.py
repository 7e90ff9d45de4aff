"""`pathx report`."""

from __future__ import annotations

import webbrowser

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import note_printer, say


@command()
def report(
    *,
    results: list[str] = typer.Argument(metavar="RESULTS", help="Folders of results, or documents such as path.json."),
    out: str | None = option(None, "Page to write. [default: report.html, or report/index.html for several]", "FILE"),
    units: str | None = options.UNITS,
    open: bool = option(False, "Open it in the browser."),
    quiet: bool = options.QUIET,
) -> None:
    """Make an interactive page of finished results.

    It shows the photo, the path as a flow, and what its units saw. The page opens with a double click and works offline.
    Several results get a gallery with a page each. The network is not run; explain --report runs it, and adds what single
    units saw and what removing them does.
    """
    from pathx.report.build import report
    from pathx.results.store import check_in_folders

    for place in results:
        check_in_folders(place)
    if units is not None:
        from pathx.units.files import read_units

        read_units(units)  # refuses what is none
    made = report([*results, *([] if units is None else [units])], out, note=note_printer(quiet))
    if not quiet:
        say(str(made))
    if open:
        webbrowser.open(made.resolve().as_uri())
