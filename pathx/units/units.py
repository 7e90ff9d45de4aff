"""`pathx.units`: what the channels of a network look for, found in images and written to a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.images.find import images_in
from pathx.models.load import LoadedModel
from pathx.pipeline import Note, Watch, no_notes, no_progress, prepare
from pathx.results.files import check_folder
from pathx.runs.index import Shard
from pathx.runs.stop import Stop
from pathx.units.files import save_units
from pathx.units.folder import Pass, Request
from pathx.units.references import Units


@dataclass(frozen=True, repr=False)
class FoundUnits:
    """What a pass over images found.

    Args:
        units: None where only a shard of the images was seen.
        files: what was written.
        failed: images that could not be used, and why.
    """

    units: Units | None
    files: tuple[str, ...]
    failed: dict[str, str]

    def __repr__(self) -> str:
        found = (
            "a shard" if self.units is None else f"{len(self.units.channels)} channels of {self.units.images} images"
        )
        return f"<FoundUnits: {found}, {len(self.files)} files, {len(self.failed)} images failed>"


def units(
    model: LoadedModel,
    images: Sequence[str | Path],
    out: str | Path,
    *,
    by: str = "contribution",
    top: int = 16,
    layers: Sequence[int] = (),
    channels: Sequence[int] = (),
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
    shard: Shard | None = None,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int = 8,
    draw: bool = True,
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> FoundUnits:
    """Find the images and places where each channel of a network matters most, and write them to a folder.

    A pass that was stopped goes on where it was.

    Args:
        by: what makes a channel matter: `contribution` to the predicted class along the path, or `activation`.
        top: references per channel.
        layers: hidden layers by number; those of the path by default.
        channels: of each activation, the channels to tell of; all by default.
        shard: see one part of the images only; a call without it joins them.
        draw: also write a contact sheet per activation.
    """
    check_folder(out)
    files = images_in(list(map(str, images)), out)
    prepared = prepare(model, device=device, dtype=dtype)
    prepared.check_exact(exact, note)
    request = Request(
        depth, width, alpha, skips, importance, by=by, top=top, layers=tuple(layers), channels=tuple(channels)
    )
    stop = Stop()
    with watch(len(files)) as progress, stop.on_signals():
        one = Pass(prepared, files, request, out, shard=shard, batch_size=batch_size, progress=progress, stop=stop)
        state = one.run()
    if shard is not None:
        return FoundUnits(None, (), state.failed)
    found = one.units(state)
    written = save_units(found, Path(out), prepared, draw=draw, note=note)
    one.done()
    return FoundUnits(found, tuple(written), state.failed)
