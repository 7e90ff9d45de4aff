"""`pathx.units`: what the channels of a network look for in a folder of images, with restarts and shards."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.engine.network import Gate
from pathx.engine.settings import check_depth
from pathx.errors import PathxError
from pathx.images.find import ImageFile, images_in
from pathx.models.load import LoadedModel
from pathx.pipeline import Note, Prepared, Watch, no_notes, no_progress, prepare, read_batches
from pathx.results.files import SETTINGS, check_folder, remove, replace_file
from pathx.runs.index import Shard
from pathx.runs.stop import Stop
from pathx.units.files import Channel, Reference, Units, save_units
from pathx.units.gather import NOBODY, Channels, Gathered

STATE = "units{}.safetensors"
SAVE_EVERY = 20.0
"""Seconds between states of a pass that are written. A stopped pass loses what came after the last one."""


@dataclass(eq=False)
class Pass:
    """One pass over the images of a folder, or over one shard of them.

    Args:
        images: all images of the folder, in order; their places number the references.
        settings: of the path, and what to gather: `by`, `top`, `layers` and `channels`, as `units` takes them.
        out: folder for the state, from which a stopped pass continues.
        shard: the part of the images to see.
        progress: called with the number of images just seen.
    """

    prepared: Prepared
    images: Sequence[ImageFile]
    settings: Mapping[str, Any]
    out: Path
    shard: Shard | None = None
    batch_size: int | str = "auto"
    progress: Callable[[int], None] = lambda seen: None
    stop: Stop = field(default_factory=Stop)

    @cached_property
    def gates(self) -> dict[int, list[Gate]]:
        """The activations to gather, by layer."""
        network = self.prepared.network
        reach = check_depth(self.settings["depth"], network)
        on_path = range(network.depth - reach + 1, network.depth + 1)
        wanted = self.settings["layers"] or on_path
        for layer in wanted:
            if not 1 <= layer <= network.depth:
                raise PathxError(f"there is no layer {layer}: the network has layers 1 to {network.depth}", usage=True)
            if self.settings["by"] == "contribution" and layer not in on_path:
                raise PathxError(
                    f"layer {layer} is not on the path, which has layers {on_path[0]} to {on_path[-1]}; choose a greater "
                    "depth, or rank units by activation",
                    usage=True,
                )
        return {layer: list(network.layers[layer - 1]) for layer in sorted(set(wanted), reverse=True)}

    @property
    def about(self) -> dict[str, Any]:
        """What the outcome depends on besides the images."""
        settings = {**self.settings, "layers": list(self.gates)}
        preprocessing = asdict(self.prepared.model.preprocessing)
        return {"model": self.prepared.about, "preprocessing": preprocessing, "settings": settings}

    @cached_property
    def key(self) -> str:
        """Equal for passes that would gather the same."""
        files = []
        for image in self.images:
            try:
                facts = os.stat(image.file)
                files.append([image.name, facts.st_size, facts.st_mtime_ns])
            except OSError:
                files.append([image.name])
        size = self.prepared.batch_size(self.batch_size)
        everything = [self.about, str(self.prepared.dtype), size, files]
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode(errors="surrogateescape")).hexdigest()

    def empty(self) -> Gathered:
        tensors = {layer: [*map(self.prepared.network.tensor, gates)] for layer, gates in self.gates.items()}
        by, top = self.settings["by"], min(self.settings["top"], len(self.images))  # an image counts once per channel
        return Gathered.empty(tensors, by=by, top=top, classes=len(self.prepared.labels))

    def state_file(self, shard: Shard | None) -> Path:
        return self.out / STATE.format("" if shard is None else f".{shard.number}-of-{shard.count}")

    def run(self) -> Gathered:
        """See the remaining images, and save the state on the way."""
        state = self._join_shards() or self._read(self.shard) or self.empty()
        mine = [image for image in self.images if self.shard is None or self.shard.holds(image.name)]
        self.progress(state.position)
        left, saved = mine[state.position :], time.monotonic()
        numbers = {image.name: number for number, image in enumerate(self.images)}
        path = {key: self.settings[key] for key in SETTINGS}

        def failed(source: ImageFile, error: PathxError) -> None:
            state.failed[source.name] = str(error)

        def save() -> None:
            replace_file(self.state_file(self.shard), state.to_bytes(self.key))

        size = self.prepared.batch_size(self.batch_size)
        for batch, inputs in read_batches(left, self.prepared.model.preprocessing, size, failed):
            for part, frozen, explanations in self.prepared.explain_predictions(inputs, path, failed):
                state.see(frozen, explanations, {numbers[one.source.name]: one.image.sha256 for one in part})
                del frozen, explanations  # before the rest of a batch that does not fit as a whole
            state.position += len(batch)
            self.progress(len(batch))
            if self.stop.asked or time.monotonic() - saved > SAVE_EVERY:
                save()
                saved = time.monotonic()
            self.stop.check()
        if not state.count and self.shard is None:
            reason = next(iter(state.failed.values()), "there are none")
            raise PathxError(f"none of the {len(mine)} images could be used: {reason}")
        save()
        return state

    def _read(self, shard: Shard | None) -> Gathered | None:
        return self.empty().read(self.state_file(shard), self.key)

    def _join_shards(self) -> Gathered | None:
        """The joined states of all shards; None unless all of them are there and complete."""
        for count in _shard_counts(self.out) if self.shard is None else ():
            whole = self.empty()
            for part in filter(None, map(self._read, _shards(count))):
                whole.add(part)
            if whole.position == len(self.images):
                return whole
        return None

    def done(self) -> None:
        """Remove the states after the results are written."""
        shards = [shard for count in _shard_counts(self.out) for shard in _shards(count)]
        remove(self.out, [self.state_file(shard).name for shard in (*shards, None)])

    def units(self, state: Gathered) -> Units:
        """The gathered units for people."""
        channels = {}
        layers = {gate.name: layer for layer, gates in self.gates.items() for gate in gates}
        tensors = {own.tensor.name: own.tensor for own in state.channels.values()}
        for own in state.channels.values():
            fields = self._fields(own)
            for number in self.settings["channels"] or range(len(own.values)):
                if number < len(own.values):
                    channels[own.tensor.name, number] = self._channel(own, number, fields[number], state)
        return Units(self.about, tensors, layers, channels, state.count, state.failed)

    def _fields(self, own: Channels) -> list[list[list[int]]]:
        """The receptive field of every reference, by channel and place in its list."""
        gate = next(gate for gate in self.gates[own.layer] if gate.name == own.tensor.name)
        flat = own.numbers(torch.arange(len(own.units))[:, None], own.units.clamp(min=0))
        found = self.prepared.network.boxes(gate, flat.flatten())
        fields: list[list[list[int]]] = found.reshape(*own.units.shape, -1).tolist()
        return fields

    def _channel(self, own: Channels, number: int, fields: list[list[int]], state: Gathered) -> Channel:
        references = []
        entries = (part[number].tolist() for part in (own.values, own.images, own.units, own.classes))
        for value, image, unit, target, box in zip(*entries, fields, strict=True):
            if image == NOBODY:
                break
            source, index = self.images[image], own.index(number, unit)
            label = self.prepared.labels[target]
            references.append(
                Reference(source.file, state.hashes[image], index, tuple(box), value, label, source.label)
            )
        counts = own.paths[number]
        found = sorted(((int(counts[c]), c) for c in counts.nonzero().flatten().tolist()), key=lambda p: (-p[0], p[1]))
        images = int(counts.sum())
        return Channel(
            *(own.layer, own.tensor.name, number, tuple(references)),
            images=images,
            share=float(own.shares[number]) / images if images else 0.0,
            classes=tuple((self.prepared.labels[c], count) for count, c in found),
            mean=float(own.totals[number]) / max(1, state.count),
        )


def _shards(count: int) -> list[Shard]:
    return [Shard(number, count) for number in range(1, count + 1)]


def _shard_counts(out: Path) -> list[int]:
    """The numbers of shards for which a folder has all states."""
    named = (re.fullmatch(STATE.format(r"\.[1-9]\d{0,8}-of-([1-9]\d{0,8})"), file.name) for file in out.glob("units.*"))
    counts = Counter(int(found[1]) for found in named if found)
    return sorted(count for count, files in counts.items() if files == count)


@dataclass(frozen=True, repr=False)
class FoundUnits:
    """What a pass over images found.

    Args:
        units: None after one shard of the images.
        files: names of the written files.
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
    batch_size: int | str = "auto",
    draw: bool = True,
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> FoundUnits:
    """Find the images and places where each channel of a network matters most, and write them to a folder.

    A stopped pass continues where it was.

    Args:
        by: what makes a channel matter: `contribution` to the predicted class along the path, or `activation`.
        top: references per channel.
        layers: hidden layers by number; those of the path by default.
        channels: of each activation, the channels to tell of; all by default.
        shard: see one part of the images only; a call without it joins all parts.
        draw: also write a contact sheet per activation.
    """
    check_folder(out)
    files = images_in(list(map(str, images)), out)
    prepared = prepare(model, device=device, dtype=dtype, exact=exact, note=note)
    settings: dict[str, Any] = {
        "depth": depth,
        "width": width,
        "alpha": alpha,
        "skips": skips,
        "importance": importance,
    }
    settings |= {"by": by, "top": top, "layers": [*layers], "channels": [*channels]}
    stop = Stop()
    with watch(len(files)) as progress, stop.on_signals():
        one = Pass(prepared, files, settings, Path(out), shard, batch_size, progress, stop)
        state = one.run()
    if shard is not None:
        return FoundUnits(None, (), state.failed)
    found = one.units(state)
    written = save_units(found, Path(out), prepared, draw=draw, note=note)
    one.done()
    return FoundUnits(found, tuple(written), state.failed)
