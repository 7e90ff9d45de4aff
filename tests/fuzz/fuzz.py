"""A coverage-guided fuzz of everything that reads what others wrote: `python tests/fuzz/fuzz.py READER [libFuzzer options]`.

Needs atheris (`pip install pathx-relu[fuzz]`). Whatever the bytes, a reader gives its result or a PathxError of one
line; anything else is a finding, and libFuzzer writes the input that led to it. `-max_total_time=60 -seed=1` bounds a run.
"""

from __future__ import annotations

import io
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2]), str(HERE.parents[1])]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["pathx", "PIL", "json"]):
    from pathx.errors import PathxError, parse_json
    from pathx.images.read import open_image
    from pathx.models.labels import read_labels
    from pathx.models.load import load_model
    from pathx.models.preprocessing import read_sidecar
    from pathx.results.saved import read_explanation
    from pathx.runs.index import merge

FOLDER = Path(tempfile.mkdtemp(prefix="pathx-fuzz-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None))


def written(data: bytes, name: str) -> Path:
    file = FOLDER / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(data)
    return file


def image(data: bytes) -> None:
    open_image(written(data, "image"))


def sidecar(data: bytes) -> None:
    read_sidecar(data.decode("utf-8", "replace"), "the sidecar")


def labels(data: bytes) -> None:
    read_labels(written(data, "labels"))


def model(data: bytes) -> None:
    load_model(written(data, "model"), input_size=(3, 8, 8), mean=0.5, std=0.5)


def archive(data: bytes) -> None:
    """The graph of an export: the archive around it is sound, so that the fuzz gets past the door."""
    from support.attacks import GRAPH, packed, records_of

    model(packed({**records_of(_genuine()), GRAPH: data}))


def weights(data: bytes) -> None:
    from pathx.models.checkpoints import read_state

    read_state(written(data, "weights"))


def explanation(data: bytes) -> None:
    """path.json beside sound tensors."""
    document, _, tensors = data.partition(b"\0\0\0\0")
    written(document, "saved/path.json")
    written(tensors or _saved()[1], "saved/tensors.safetensors")
    read_explanation(FOLDER / "saved")


def index(data: bytes) -> None:
    record, _, lines = data.partition(b"\0\0\0\0")
    written(record, "merged/run.1-of-1.json")
    written(lines, "merged/index.1-of-1.jsonl")
    (FOLDER / "merged" / "index.jsonl").unlink(missing_ok=True)
    merge(FOLDER / "merged")


def document(data: bytes) -> None:
    with suppress(ValueError):
        parse_json(data)


READERS: dict[str, Callable[[bytes], None]] = {
    reader.__name__: reader
    for reader in (image, sidecar, labels, model, archive, weights, explanation, index, document)
}

_known: dict[str, bytes] = {}


def _genuine() -> bytes:
    if "export" not in _known:
        from support.attacks import exported

        _known["export"] = exported()
    return _known["export"]


def _saved() -> tuple[bytes, bytes]:
    if "path" not in _known:
        from PIL import Image

        from pathx.cli import run

        out = FOLDER / "out"
        Image.new("RGB", (9, 7), "orange").save(FOLDER / "photo.png")
        model = str(written(_genuine(), "model.pt2"))
        try:
            options = ["--model", model, "--depth", "1", "--save-tensors", "-q", "--out", str(out)]
            run(["explain", str(FOLDER / "photo.png"), *options])
        except SystemExit:
            (path,) = out.rglob("path.json")
        _known["path"], _known["tensors"] = path.read_bytes(), path.with_name("tensors.safetensors").read_bytes()
    return _known["path"], _known["tensors"]


def seeds(reader: str) -> list[bytes]:
    """Sound inputs, from which the fuzz sets out."""
    from PIL import Image
    from support.attacks import GRAPH, SIDECAR, pickled, records_of

    if reader == "image":
        found = []
        forms = {"PNG": "RGBA", "JPEG": "CMYK", "GIF": "P", "WEBP": "RGB", "BMP": "L", "TIFF": "I;16"}
        for form, mode in forms.items():
            stream = io.BytesIO()
            Image.new(mode, (9, 7)).save(stream, form)
            found.append(stream.getvalue())
        return found
    if reader == "archive":
        return [records_of(_genuine())[GRAPH]]
    if reader == "model":
        return [_genuine()]
    if reader == "weights":
        from safetensors.torch import save
        from support.attacks import network

        state = {key: value.contiguous() for key, value in network().state_dict().items()}
        return [save(state), pickled(state), pickled(state, _use_new_zipfile_serialization=False)]
    if reader == "explanation":
        return [_saved()[0], b"\0\0\0\0".join(_saved())]
    if reader == "index":
        run = {"command": "explain", "images": ["a.png"], "shard": "1/1"}
        line = {"command": "explain", "name": "a.png", "file": "a.png", "run": "0"}
        line |= {"explanations": [{"folder": "a.png/cat"}]}
        return [json.dumps(run).encode() + b"\0\0\0\0" + json.dumps(line).encode() + b"\n"]
    return [json.dumps(SIDECAR).encode(), b"cat\nred fox\n"]


def checked(reader: Callable[[bytes], None]) -> Callable[[bytes], None]:
    def check(data: bytes) -> None:
        try:
            reader(data)
        except PathxError as error:
            if "\n" in str(error) or len(str(error)) > 2000:
                raise AssertionError("not one line") from error

    return check


def main() -> None:
    name, *options = sys.argv[1:] or [""]
    if name not in READERS:
        sys.exit(f"usage: fuzz.py {'|'.join(READERS)} [libFuzzer options]")
    corpus = FOLDER / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(seeds(name)):
        (corpus / str(number)).write_bytes(seed)
    atheris.Setup([sys.argv[0], str(corpus), "-max_len=65536", "-rss_limit_mb=6000", *options], checked(READERS[name]))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
