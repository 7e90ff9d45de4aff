"""`pathx merge`: join the indexes of shards."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pathx.commands import options
from pathx.commands.options import Format
from pathx.commands.output import about, complain, errors
from pathx.runs.index import index_name
from pathx.runs.index import merge as joined
from pathx.stores import Address, is_stored

_LISTED = 20


def merge(
    out: Annotated[str, typer.Argument(metavar="OUT", help="The output folder that the shards share.")],
    format: options.OneFormat = Format.text,
    quiet: options.Quiet = False,
) -> None:
    """Join the indexes of the shards of a run into OUT/index.jsonl, and say what is missing.

    The exit status is 1 where a shard has not been run, has not come to its end, or had images that failed.
    """
    with errors():
        from pathx.errors import shown

        merged = joined(out)
        if format is Format.json:
            print(json.dumps(asdict(merged)))
        elif not quiet:
            total = merged.done + len(merged.failed)
            place = (Address(out) if is_stored(out) else Path(out)) / index_name(None)
            print(f"{place}: {total} images, {merged.done} done, {len(merged.failed)} failed")
        for shard in merged.shards[:_LISTED]:
            complain(f"shard {shard} has not been run: run it with --shard {shard}")
        for file, error in merged.failed[:_LISTED]:
            complain(about(file, error))
        for name in merged.missing[:_LISTED]:
            complain(f"missing: {shown(name)}")
        if more := sum(len(listed[_LISTED:]) for listed in (merged.missing, merged.failed, merged.shards)):
            complain(f"and {more} more")
        if merged.missing:
            complain(f"{len(merged.missing)} images are missing: run their shards again to go on, then pathx merge")
        if merged.missing or merged.failed or merged.shards:
            raise typer.Exit(1)
