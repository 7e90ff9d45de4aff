"""`pathx merge`."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import typer

from pathx.commands import options
from pathx.commands.command import command
from pathx.commands.options import option
from pathx.commands.output import about, print_error, say
from pathx.drawing.words import count_of
from pathx.errors import shown
from pathx.runs.index import index_name, unpack_results
from pathx.runs.index import merge as merge_shards
from pathx.stores import Address, is_stored

_LISTED = 20


@command()
def merge(
    *,
    out: str = typer.Argument(metavar="OUT", help="The folder of a run, or its address in a store."),
    unpack: str | None = option(None, "Write packed results to this folder, as a run without --pack does.", "FOLDER"),
    screen: options.ScreenOptions,
) -> None:
    """Merge the shards of a run into one index, or unpack its results.

    The shard that finishes last merges by itself. This command merges what there is, writes OUT/index.jsonl and says what is
    missing: the exit status is 1 if a shard has not been run, has not finished, or had images that failed. To make reports and
    redrawn pictures from packed results, unpack them first.
    """
    if unpack is not None:
        _unpack(out, unpack, screen.quiet)
        return
    merged = merge_shards(out)
    place = (Address(out) if is_stored(out) else Path(out)) / index_name(None)
    total = merged.done + len(merged.failed)
    counts = f"{place}: {total} images, {merged.done} done, {len(merged.failed)} failed"
    screen.show(asdict(merged), lambda: say(counts))
    for shard in merged.shards[:_LISTED]:
        print_error(f"shard {shard} has not been run: run it with --shard {shard}")
    for file, error in merged.failed[:_LISTED]:
        print_error(about(file, error))
    for name in merged.missing[:_LISTED]:
        print_error(f"missing: {shown(name)}")
    if more := sum(len(listed[_LISTED:]) for listed in (merged.missing, merged.failed, merged.shards)):
        print_error(f"and {more} more")
    if merged.missing:
        print_error(f"{len(merged.missing)} images are missing: run their shards again to continue")
    if merged.missing or merged.failed or merged.shards:
        raise typer.Exit(1)


def _unpack(out: str, folder: str, quiet: bool) -> None:
    """What `--unpack` does."""
    found = unpack_results(out, folder)
    for problem in found.problems:
        print_error(problem)
    if not quiet:
        say(f"{folder}: the results of {count_of(found.done, 'image')}")
    if found.lost:
        print_error(
            f"{count_of(len(found.lost), 'image')} could not be unpacked, {found.lost[0]} the first: run the command that "
            f"made {shown(out)} again, then unpack it again"
        )
        raise typer.Exit(1)
