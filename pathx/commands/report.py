"""`pathx report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pathx.commands.output import errors, notes


def report(
    results: Annotated[
        list[str], typer.Argument(metavar="RESULTS...", help="Folders of results, or documents such as path.json.")
    ],
    out: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Page to write. [default: report.html, or report/index.html for several]"),
    ] = None,
    units: Annotated[
        str | None,
        typer.Option("--units", metavar="FOLDER", help="Show what units look for elsewhere: what pathx units wrote."),
    ] = None,
    open_page: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print errors only.")] = False,
) -> None:
    """Make an interactive page of finished results: the photo, the path as a flow, and what its units saw.

    The pages work offline, by a double click. Several results get a gallery with a page each. No network is run; explain
    --report adds what takes the network: other depths and widths, and what single units saw.
    """
    with errors():
        from pathx.report.build import report
        from pathx.results.store import check_in_folders

        for place in results:
            check_in_folders(place)
        if units is not None:
            from pathx.units.files import read_units

            read_units(units)  # refuses what is none
        made = report([*results, *([] if units is None else [units])], out, note=notes(quiet))
        if not quiet:
            print(made)
        if open_page:
            show_page(made)


def show_page(file: Path) -> None:
    """Open a page in the user's browser."""
    import webbrowser

    webbrowser.open(file.resolve().as_uri())
