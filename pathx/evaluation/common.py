"""What the paths of a class have in common: how often each unit is on the path of its images."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import exp, lgamma, log, sqrt
from pathlib import Path, PurePath
from typing import Any

from pathx.defaults import DEPTH, EXACT, IMPORTANCE, SKIPS, WIDTH
from pathx.errors import PathxError, shown
from pathx.evaluation import plots
from pathx.evaluation.records import Unread, write_json
from pathx.explanation import LayerTensor, PathLayer
from pathx.images.find import ImageFile, find_images, images_in
from pathx.models.labels import resolve_target, slug
from pathx.models.load import LoadedModel
from pathx.pipeline import Note, Prepared, Watch, no_notes, no_progress, prepare, read_batches
from pathx.results.files import PATH, check_folder, check_own
from pathx.results.schema import PATH_SCHEMA, created_by, read_document

SCHEMA = "pathx/common@1"
GROUPINGS = ("prediction", "folder")
ENOUGH = 5
"""The least number of images from which a class is described."""

Place = tuple[str, tuple[int, ...]]
"""A tensor's name, and an index there: of a unit, of a channel (c,), or of a position (y, x)."""


PARTS = {"units": slice(None), "channels": slice(1), "positions": slice(1, None)}
"""The part of a unit's index to count: all of it, its channel or, in a map, its position. A unit of a vector is a channel."""


@dataclass(frozen=True)
class ImagePath:
    """The units on one image's path.

    Args:
        image: its file.
        classes: to group by: its predicted class, and its folder if it has one.
        units: by hidden layer.
    """

    image: str
    classes: Mapping[str, str | None]
    layers: Mapping[int, tuple[LayerTensor, ...]]
    units: Mapping[int, frozenset[Place]]

    @property
    def predicted(self) -> str:
        return str(self.classes["prediction"])

    @property
    def is_right(self) -> bool:
        """Whether the image lies in a folder that is named after its predicted class."""
        return slug(self.predicted) == slug(self.classes["folder"] or "")

    @cached_property
    def channels(self) -> frozenset[Channel]:
        return frozenset((layer, tensor, index[0]) for layer, units in self.units.items() for tensor, index in units)


@dataclass(frozen=True)
class Common:
    """Paths by class.

    Args:
        by: a member of GROUPINGS.
        paths: by class, those with most images first.
        about: the `model` and the `settings` of the paths.
        unread: images or files that could not be used, and why.
    """

    by: str
    paths: Mapping[str, tuple[ImagePath, ...]]
    about: Mapping[str, Any]
    unread: Mapping[str, str]
    notes: tuple[str, ...]

    @cached_property
    def layers(self) -> dict[int, tuple[LayerTensor, ...]]:
        """The hidden layers of the paths, from the output down."""
        found = {n: tensors for paths in self.paths.values() for path in paths for n, tensors in path.layers.items()}
        return dict(sorted(found.items(), reverse=True))

    @cached_property
    def large_classes(self) -> list[str]:
        """The classes with enough images."""
        return [label for label, paths in self.paths.items() if len(paths) >= ENOUGH]

    def shares(self, label: str, layer: int, part: str = "units") -> dict[Place, float]:
        """The share of a class's images whose path holds each of the `units`, `channels` or `positions`."""
        counts: Counter[Place] = Counter()
        for path in self.paths[label]:
            places = {(tensor, index[PARTS[part]]) for tensor, index in path.units.get(layer, ())}
            counts.update(place for place in places if place[1])
        total = len(self.paths[label])
        return {place: count / total for place, count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))}

    def overlap(self, first: str, second: str, layers: Iterable[int], part: str) -> float:
        """The overlap of two classes over some layers: 1 if all shares are equal, 0 if no unit is shared."""
        least = most = 0.0
        for layer in layers:
            one, other = self.shares(first, layer, part), self.shares(second, layer, part)
            for place in sorted(one.keys() | other.keys()):  # sums of floats depend on the order
                pair = one.get(place, 0.0), other.get(place, 0.0)
                least, most = least + min(pair), most + max(pair)
        return least / most if most else 0.0

    def overlaps(self, layers: Sequence[int], part: str, labels: Sequence[str]) -> list[list[float]]:
        """The overlap of every two of some classes."""
        return [[self.overlap(one, other, layers, part) for other in labels] for one in labels]

    def document(self, threshold: float) -> dict[str, Any]:
        """common.json."""
        return {
            "schema": SCHEMA,
            "by": self.by,
            "threshold": threshold,
            "images": sum(map(len, self.paths.values())),
            **self.about,
            "layers": [
                {"layer": n, "tensors": [{"name": one.name, "shape": list(one.shape)} for one in tensors]}
                for n, tensors in self.layers.items()
            ],
            "classes": [
                {
                    "label": label,
                    "images": len(paths),
                    "too_few": label not in self.large_classes,
                    "layers": [self._layer_document(label, layer, threshold) for layer in self.layers],
                }
                for label, paths in self.paths.items()
            ],
            "overlap": {
                "measure": "sum of the lower shares / sum of the higher shares",
                "classes": list(self.paths),
                **self._overlap_document(list(self.layers)),
                "layers": [{"layer": n, **self._overlap_document([n])} for n in self.layers],
            },
            "unread": dict(self.unread),
            "notes": list(self.notes),
            "created_by": created_by(),
        }

    def _overlap_document(self, layers: Sequence[int]) -> dict[str, Any]:
        labels = list(self.paths)
        return {part: self.overlaps(layers, part, labels) for part in ("units", "channels")}

    def _layer_document(self, label: str, layer: int, threshold: float) -> dict[str, Any]:
        listed: dict[str, list[dict[str, Any]]] = {
            part: [
                {"tensor": name, "index": list(index), "share": share}
                for (name, index), share in self.shares(label, layer, part).items()
            ]
            for part in PARTS
        }
        often = [
            {"tensor": one["tensor"], "index": one["index"]} for one in listed["units"] if one["share"] >= threshold
        ]
        return {"layer": layer, "common_path": often, **listed}


def _suspects(found: Common) -> list[dict[str, Any]]:
    """Channels that are on the paths of wrong predictions significantly more often than on those of right ones."""
    labelled = [path for paths in found.paths.values() for path in paths if path.classes["folder"] is not None]
    if not split_by_class(labelled):
        raise PathxError(
            "no class has both right and wrong predictions: give folders that are named after the classes of the model, with "
            "images of both kinds",
            usage=True,
        )
    return suspects(labelled)


def common(
    model: LoadedModel | None,
    folders: Sequence[str | Path],
    *,
    out: str | Path | None = None,
    by: str = "prediction",
    threshold: float = 0.5,
    layers: Sequence[int] = (),
    classes: Sequence[str] = (),
    wrong: bool = False,
    depth: int | str = DEPTH,
    width: int | str = WIDTH,
    alpha: float | None = None,
    skips: str = SKIPS,
    exact: str = EXACT,
    importance: str = IMPORTANCE,
    device: str = "auto",
    dtype: str = "float32",
    batch_size: int | str = "auto",
    note: Note = no_notes,
    watch: Watch = no_progress,
) -> dict[str, Any]:
    """Find what the paths of a class have in common; what is returned is common.json.

    Args:
        model: None for folders that `pathx explain` wrote, which hold everything, also the path's settings.
        out: folder for common.json and plots; None to write nothing.
        by: an image's class is its `prediction` or its `folder`.
        threshold: the share of images from which a unit is common.
        layers: to plot; by default the first and the last of the path.
        classes: to plot; by default the ten with most images.
        wrong: also find channels that go with wrong predictions.
    """
    if not 0 < threshold <= 1:
        raise PathxError(f"threshold {threshold:g} is out of range; use more than 0, at most 1", usage=True)
    if out is not None:
        check_folder(out)
        check_own(Path(out), ["common.json"])
    if model is None:
        found = common_of_results(folders, by=by)
    else:
        images = images_in(list(map(str, folders)), out)
        path = {"depth": depth, "width": width, "alpha": alpha, "skips": skips, "importance": importance}
        prepared = prepare(model, device=device, dtype=dtype, exact=exact, note=note)
        with watch(len(images)) as progress:
            found = common_of_images(prepared, images, by, path, batch_size, progress)
    for layer in layers:
        if layer not in found.layers:
            numbers = ", ".join(map(str, found.layers))
            raise PathxError(f"layer {layer} is not on the paths, which have {numbers}", usage=True)
    labels = list(found.paths)
    plotted = [labels[resolve_target(text, labels)] for text in classes] or labels[:10]
    document = found.document(threshold)
    if wrong:
        document["wrong"] = _suspects(found)
    if out is not None:
        if plots.can_plot(note):
            ends = list(found.layers)
            _plot(found, list(layers) or sorted({ends[0], ends[-1]}, reverse=True), plotted, Path(out))
        write_json(Path(out) / "common.json", document)
    return document


def _plot(found: Common, layers: list[int], classes: list[str], folder: Path) -> None:
    for layer in layers:
        shares = {label: found.shares(label, layer) for label in classes}
        tensors = found.layers[layer]
        if all(len(tensor.shape) == 1 for tensor in tensors):
            units: list[Place] = [(tensor.name, (index,)) for tensor in tensors for index in range(tensor.shape[0])]
            about = f"unit of layer {layer}"
        else:
            units = sorted({unit for some in shares.values() for unit in some})
            about = f"the {len(units)} units of layer {layer} that are on any path, in order"
        lines = {label: [some.get(unit, 0.0) for unit in units] for label, some in shares.items()}
        title = f"layer {layer}: how often each unit is on the path"
        plots.plot_frequencies(folder / f"units-{layer}", title, lines, about)
        for tensor in (tensor for tensor in tensors if len(tensor.shape) == 3):
            bars, maps = {}, {}
            name, (channels, height, width) = tensor.name, tensor.shape
            for label in classes:
                by_channel, by_place = (found.shares(label, layer, part) for part in ("channels", "positions"))
                bars[label] = [by_channel.get((name, (c,)), 0.0) for c in range(channels)]
                maps[label] = [[by_place.get((name, (y, x)), 0.0) for x in range(width)] for y in range(height)]
            title = f"layer {layer}, {name}: by"
            plots.plot_frequencies(folder / f"channels-{layer}-{name}", f"{title} channel", bars, "channel")
            plots.plot_places(folder / f"positions-{layer}-{name}", f"{title} position", maps)
    if len(labels := found.large_classes) > 1:
        for part in ("units", "channels"):
            matrix = found.overlaps(list(found.layers), part, labels)
            plots.plot_overlap(folder / f"overlap-{part}", f"{part} that classes share", labels, matrix)


def is_finished(place: str | Path) -> bool:
    """Whether `pathx explain` wrote a folder, and it holds no images."""
    if not os.path.isdir(place) or next(Path(place).rglob(PATH), None) is None:
        return False
    return all(found.error is not None for found in find_images([place]))


def gather(
    paths: Iterable[ImagePath], by: str, about: Mapping[str, Any], unread: Mapping[str, str], notes: Sequence[str]
) -> Common:
    """Group paths by class. Images without a class are left out, with a note."""
    if by not in GROUPINGS:
        raise PathxError(f"classes are grouped by {' or '.join(GROUPINGS)}, not {by!r}", usage=True)
    groups: dict[str, list[ImagePath]] = {}
    without = 0
    for path in paths:
        label = path.classes[by]
        if label is None:
            without += 1
        else:
            groups.setdefault(label, []).append(path)
    if not groups:
        reason = "lie in folders named after classes; group them with `by` prediction" if without else "could be used"
        detail = next(iter(unread.values()), "")
        raise PathxError(
            f"none of the images {reason}{': ' + detail if detail and not without else ''}", usage=bool(without)
        )
    said = list(notes)
    if without:
        said.append(f"{without} images lie in no folder of a class and are left out")
    if len(groups) == 1:
        said.append(f"there is one class only, {next(iter(groups))}: there is nothing to compare it with")
    ordered = sorted(groups.items(), key=lambda group: (-len(group[1]), group[0]))
    if few := [f"{label} ({len(found)})" for label, found in ordered if len(found) < ENOUGH]:
        some = ", ".join(few[:5]) + (f" and {len(few) - 5} more" if len(few) > 5 else "")
        said.append(f"fewer than {ENOUGH} images are too few to say what the paths of a class share: {some}")
    return Common(by, {label: tuple(found) for label, found in ordered}, about, unread, tuple(said))


def common_of_images(
    prepared: Prepared,
    images: Sequence[ImageFile],
    by: str,
    settings: dict[str, Any],
    batch_size: int | str,
    progress: Callable[[int], None],
) -> Common:
    """The paths behind the predicted class of every image."""
    unread, paths = Unread(progress), list[ImagePath]()
    about = dict(settings)
    for _, batch in read_batches(images, prepared.model.preprocessing, prepared.batch_size(batch_size), unread):
        for part, frozen, explanations in prepared.explain_predictions(batch, settings, unread):
            for read, explanation in zip(part, explanations, strict=True):
                about |= {"depth": explanation.depth, "alpha": explanation.alpha}
                predicted = prepared.labels[explanation.target]
                paths.append(_image_path(read.source.name, predicted, read.source.label, explanation.path))
            progress(len(part))
            del frozen, explanations
    labels = sorted({label for path in paths if (label := path.classes["folder"]) is not None})
    unknown = [label for label in labels if prepared.class_of(label) is None]
    notes = [f"folders that are not named after classes of the model: {', '.join(unknown[:3])}"] if unknown else []
    return gather(paths, by, {"model": prepared.about, "settings": about}, unread, notes)


def common_of_results(folders: Sequence[str | Path], *, by: str = "prediction") -> Common:
    """The same from the results of `pathx explain`, without the network."""
    unread: dict[str, str] = {}
    kinds: dict[str, dict[str, Any]] = {}
    paths, others, twice, against = [], 0, 0, 0
    seen: set[tuple[str, ...]] = set()
    for document in _documents(folders, unread):
        if "against" in document:  # a path for the difference of two classes, beside that of the class itself
            against += 1
            continue
        if document["target"]["rank"] != 1:
            others += 1
            continue
        about = {
            "model": {key: document["model"][key] for key in ("name", "weights", "sha256", "classes")},
            "settings": {key: document[key] for key in ("depth", "width", "alpha", "skips", "importance")},
        }
        kind = json.dumps(about)
        kinds.setdefault(kind, about)
        image = (document["image"]["file"], document["image"]["sha256"], kind)
        if image in seen:
            twice += 1
            continue
        seen.add(image)
        file, layers = document["image"]["file"], map(PathLayer.read, document["layers"])
        paths.append(_image_path(file, document["target"]["label"], PurePath(file).parent.name or None, layers))
    if len(kinds) > 1:
        texts = " and ".join(sorted(_settings_line(about) for about in kinds.values())[:2])
        raise PathxError(
            f"the explanations are not of one kind ({texts}): keep them in folders of their own", usage=True
        )
    if not kinds:
        detail = next(iter(unread.values()), "none is of a predicted class")
        raise PathxError(f"there is no explanation to use in {', '.join(map(shown, folders))}: {detail}", usage=True)
    notes = [f"{others} explanations of classes that were not predicted are left out"] if others else []
    notes += [f"{against} explanations of one class against another are left out"] if against else []
    notes += [f"{twice} explanations are there twice and count once"] if twice else []
    return gather(paths, by, next(iter(kinds.values())), unread, notes)


def _documents(folders: Sequence[str | Path], unread: dict[str, str]) -> Iterator[dict[str, Any]]:
    for folder in folders:
        for file in sorted(Path(folder).rglob(PATH)):
            try:
                document = read_document(file)
            except PathxError as error:
                unread[str(file)] = str(error)
                continue
            if document["schema"] != PATH_SCHEMA:
                unread[str(file)] = f"{shown(file)} is not of the schema {PATH_SCHEMA}: explain the image again"
                continue
            yield document


def _image_path(image: str, prediction: str, folder: str | None, path: Iterable[PathLayer]) -> ImagePath:
    layers = {layer.layer: layer for layer in path}
    return ImagePath(
        image,
        {"prediction": prediction, "folder": folder},
        {n: layer.tensors for n, layer in layers.items()},
        {n: frozenset((unit.tensor, unit.index) for unit in layer.units) for n, layer in layers.items()},
    )


def _settings_line(about: Mapping[str, Any]) -> str:
    settings = about["settings"]
    return f"{about['model']['name']}, " + ", ".join(
        f"{key} {settings[key]}" for key in ("depth", "width", "skips", "importance")
    )


# Channels that go with wrong predictions


Channel = tuple[int, str, int]
"""The hidden layer, the ReLU's name and the channel."""

LEVEL = 1.959964
"""Standard errors on each side of an interval of 95 %."""


SIGNIFICANT = 0.05
"""The largest corrected probability of chance at which a channel is reported."""


def split_by_class(paths: Sequence[ImagePath]) -> dict[str, tuple[list[ImagePath], list[ImagePath]]]:
    """By predicted class, the paths of right and of wrong predictions; only classes that have both."""
    found: dict[str, tuple[list[ImagePath], list[ImagePath]]] = {}
    for path in sorted(paths, key=lambda path: path.predicted):
        found.setdefault(path.predicted, ([], []))[0 if path.is_right else 1].append(path)
    return {name: (right, wrong) for name, (right, wrong) in found.items() if right and wrong}


def suspects(paths: Sequence[ImagePath]) -> list[dict[str, Any]]:
    """Channels that are on wrong paths more often than by chance, the surest first.

    Args:
        paths: of images in folders that are named after classes.
    """
    compared = [one for name, own in split_by_class(paths).items() for one in _compare_channels(name, *own)]
    ranked = sorted(
        compared,
        key=lambda one: (
            one["chance"],
            -one["interval"][0],
            one["predicted"],
            one["layer"],
            one["tensor"],
            one["channel"],
        ),
    )
    found, highest = [], 0.0
    for place, one in enumerate(ranked):
        highest = max(highest, min(1.0, one["chance"] * (len(ranked) - place)))
        if highest > SIGNIFICANT:
            break
        found.append(one | {"corrected": highest})
    return found


def _compare_channels(
    predicted: str, right: Sequence[ImagePath], wrong: Sequence[ImagePath]
) -> Iterator[dict[str, Any]]:
    """All channels on the wrong paths of one predicted class, as common.json has them.

    `wrong` and `right` say on how many paths a channel is, of how many; `odds` how many times greater the odds are to find it on a
    wrong path, with half a count added everywhere, so that it is always a number; `chance` how probable that is by chance, or more
    (Fisher's exact test, one-sided), and `corrected` the same for the number of channels that were compared (Holm).
    """
    for channel in sorted({channel for path in wrong for channel in path.channels}):
        has = [path.image for path in wrong if channel in path.channels]
        a, c = len(has), sum(channel in path.channels for path in right)
        b, d = len(wrong) - a, len(right) - c
        odds = log((a + 0.5) * (d + 0.5) / ((b + 0.5) * (c + 0.5)))
        spread = LEVEL * sqrt(sum(1 / (count + 0.5) for count in (a, b, c, d)))
        chance = fisher(a, b, c, d)
        yield {
            **dict(zip(("layer", "tensor", "channel"), channel, strict=True)),
            "interval": [exp(odds - spread), exp(odds + spread)],
            "predicted": predicted,
            "wrong": (a, len(wrong)),
            "right": (c, len(right)),
            "odds": exp(odds),
            "chance": chance,
            "corrected": chance,
            "images": tuple(has),
        }


def fisher(a: int, b: int, c: int, d: int) -> float:
    """The probability, by chance, of at least `a` in the first cell of a table (a, b; c, d) with the same sums."""
    row, column, total = a + b, a + c, a + b + c + d

    def log_ways(n: int, k: int) -> float:
        return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)

    terms = [log_ways(column, k) + log_ways(total - column, row - k) for k in range(a, min(row, column) + 1)]
    return min(1.0, sum(exp(term - log_ways(total, row)) for term in terms))
