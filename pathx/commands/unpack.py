"""`pathx unpack`."""

from __future__ import annotations

from typing import Annotated

import typer

from pathx.commands import options
from pathx.commands.output import complain, errors
from pathx.drawing.words import counted
from pathx.errors import shown


def unpack(
    out: Annotated[str, typer.Argument(metavar="OUT", help="Results of explain or decompose with --pack.")],
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="Folder for them.")],
    quiet: options.Quiet = False,
) -> None:
    """Unpack results from their shards into a folder for each explanation, as a run without --pack writes them.

    Reports and sheets are made of such folders. OUT may be in a store.
    """
    with errors():
        from pathx.runs.index import unpacked

        found = unpacked(out, folder)
        for problem in found.problems:
            complain(problem)
        if not quiet:
            print(f"{folder}: the results of {counted(found.done, 'image')}")
        if found.lost:
            complain(
                f"{counted(len(found.lost), 'image')} could not be unpacked, {found.lost[0]} the first: run the command that "
                f"made {shown(out)} again, then unpack it again"
            )
            raise typer.Exit(1)
