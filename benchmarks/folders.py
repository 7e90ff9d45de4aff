"""Folders of images: how much of the engine's speed is left, and whether memory grows.

`python -m benchmarks.folders FOLDER OUT` explains a folder in a process of its own, and prints JSON: the MiB that it held
after a tenth of the images and at the end.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import torch
from PIL import Image

import pathx
from benchmarks.measure import ROOT, THREADS, Effort, Row, run_python, seconds
from benchmarks.memory import resident
from benchmarks.parts import part
from pathx.images.find import images_in
from pathx.images.read import open_image
from pathx.pipeline import prepare
from pathx.runs.run import Settings, State, explain_files
from pathx.units.files import save_units
from pathx.units.units import Pass

BATCH = 8
SETTINGS = {key: getattr(Settings(), key) for key in ("depth", "width", "alpha", "skips", "importance")}
GATHERED = {**SETTINGS, "by": "contribution", "top": 16, "layers": [], "channels": []}


@part("folder", "A folder of photos (depth 3, width 5), per image, against the engine alone on tensors in memory")
def folder(effort: Effort) -> Iterator[Row]:
    count, rounds = (48, 1) if effort.quick else (1000, 3)
    model = pathx.load_model()
    with TemporaryDirectory() as place:
        files = photos(Path(place, "photos"), count)
        tensors = torch.stack([model.preprocessing(open_image(file).pixels) for file in files[:200]])

        def engine() -> None:
            for start in range(0, count, BATCH):
                at = start % len(tensors)
                pathx.explain(model.module, tensors[at : at + BATCH], depth=3, width=5)

        def run(name: str, **settings: bool) -> None:
            how = Settings(depth=3, width=5, skips="adjacent", batch_size=BATCH, **settings)  # type: ignore[arg-type]
            for result in explain_files(model, [Path(place, "photos")], Path(place, name), settings=how):
                assert result.state is State.done, result

        pathx.explain(model.module, tensors[:BATCH])  # the network is traced once, in either case
        times = [
            (
                seconds(engine),
                seconds(lambda n=number: run(f"{n}")),
                seconds(lambda n=number: run(f"{n}-", pictures=False)),
            )
            for number in range(rounds)
        ]
    alone, whole, bare = (median(column) / count for column in zip(*times, strict=True))
    for what, value, aim in (("with pictures", whole, 0.8), ("--no-pictures", bare, 0.9)):
        note = f"{1 / value:.1f} images per second, {alone / value:.2f} of the engine's"
        yield Row(f"{count} photos, {what}", value, "engine alone", alone, limit=1 / aim, note=note)


@part("units", "What units look for, over a folder of photos, per image, against explain over the same folder")
def units(effort: Effort) -> Iterator[Row]:
    count, rounds = (48, 1) if effort.quick else (300, 3)
    with TemporaryDirectory() as place:
        photos(Path(place, "photos"), count)
        model = pathx.load_model()
        ready = prepare(model, device="cpu")

        def explain(name: str, pictures: bool) -> None:
            how = Settings(batch_size=BATCH, pictures=pictures)
            for result in explain_files(model, [Path(place, "photos")], Path(place, name), settings=how):
                assert result.state is State.done, result

        def gather(name: str, pictures: bool) -> None:
            found = images_in([Path(place, "photos")])
            one = Pass(ready, found, GATHERED, Path(place, name), batch_size=BATCH)
            save_units(one.units(one.run()), Path(place, name), ready, draw=pictures)

        gather("warm-up", False)
        for pictures in (True, False):
            calls = {
                "units": lambda n, p=pictures: gather(f"units-{n}", p),
                "explain": lambda n, p=pictures: explain(f"explain-{n}{p}", p),
            }
            times = [{name: seconds(lambda c=call, n=n: c(n)) for name, call in calls.items()} for n in range(rounds)]  # type: ignore[misc]
            per = {name: median(one[name] for one in times) / count for name in calls}
            what = f"{count} photos, {'with pictures' if pictures else '--no-pictures'}"
            note = f"{per['explain'] / per['units']:.2f} of explain's throughput"
            yield Row(what, per["units"], "explain", per["explain"], limit=1 / 0.7, note=note)


@part("flat", "Memory over a folder of photos: at its end against after a tenth of it")
def flat(effort: Effort) -> Iterator[Row]:
    count = 100 if effort.quick else 10_000
    with TemporaryDirectory() as place:
        photos(Path(place, "photos"), count)
        held = json.loads(run_python(["-m", "benchmarks.folders", str(Path(place, "photos")), str(Path(place, "out"))]))
    note = f"{(held['end'] - held['tenth']) * 1024 / (0.9 * count):.2f} KiB per image"
    yield Row(f"{count} photos", held["end"], "after a tenth", held["tenth"], "MiB", limit=1.1, note=note)


def photos(place: Path, count: int) -> list[Path]:
    """JPEGs of 500 x 375 in a folder, made of the examples by cutting and mirroring; after 1000 they repeat as links."""
    place.mkdir(parents=True)
    chance = random.Random(0)
    whole = []
    for name in ("cat", "coffee"):
        with Image.open(ROOT / "examples" / f"{name}.png") as image:
            whole.append(image.convert("RGB"))
    files = [place / f"{number:05}.jpg" for number in range(count)]
    for number, file in enumerate(files):
        if number >= 1000:
            os.link(files[number % 1000], file)
            continue
        image = whole[number % 2]
        edges = [chance.uniform(0, 0.25) * side for side in (*image.size, *image.size)]
        cut = image.crop((edges[0], edges[1], image.width - edges[2], image.height - edges[3])).resize((500, 375))  # type: ignore[arg-type]
        (cut.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if number % 3 else cut).save(file, quality=90)
    return files


def main(folder: str, out: str) -> None:
    torch.set_num_threads(THREADS)
    count = len(os.listdir(folder))
    held = {}
    results = explain_files(pathx.load_model(), [folder], out, settings=Settings(batch_size=BATCH))
    for number, _ in enumerate(results, start=1):
        if number == max(count // 10, 3 * BATCH):
            held["tenth"] = resident()
    print(json.dumps({**held, "end": resident()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
