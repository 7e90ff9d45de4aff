"""Damaged and hostile model files, sidecars and labels: always one line with a remedy, never an error of Python's."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save
from support.attacks import SIDECAR, exported, network, packed, pickled, records_of

from pathx.errors import PathxError
from pathx.models.load import load_model

NUMBERS = [
    *("1e400", "-1e400", "NaN", "Infinity", "9" * 5000, "1" + "0" * 400, "-1", "0"),
    *('"x"', "null", "true", "[[1]]", "{}"),
]
DEEP = "[" * 100_000 + "]" * 100_000
SIZES = [
    *("[3, 999999, 999999]", "[3, 100000000000000000000, 1]", "[3, 1e400, 8]"),
    *("[3.5, 8, 8]", "[0, 8, 8]", "[3, -8, 8]"),
]


def sidecars() -> Iterator[str]:
    whole = json.dumps(SIDECAR)
    yield from (whole[:-1], DEEP, f'{{"mean": {DEEP}}}', f'{{"labels": {DEEP}}}')
    yield from ("\ufeff", "null", "1", '"x"', "[]", "\0")
    for key in ("input_size", "mean", "std", "resize", "interpolation", "labels"):
        for value in [*NUMBERS, *SIZES, DEEP]:
            yield f'{whole[:-1]}, "{key}": {value}}}'
            yield f'{whole[:-1]}, "{key}": [{value}, {value}, {value}]}}'


def answered(call: Callable[[], object]) -> str:
    """What a call says, which must be one short line about the call with something to do; empty if it worked."""
    try:
        call()
    except PathxError as error:
        text = str(error)
        faulty = not error.usage or "\n" in text or len(text) > 1000
        return f"FAULTY {text}" if faulty else text
    return ""


@pytest.fixture(scope="module")
def script() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(network()), buffer, _extra_files={"pathx.json": json.dumps(SIDECAR)})
    return buffer.getvalue()


def test_sidecars(script: bytes, tmp_path: Path) -> None:
    model = tmp_path / "model.pt"
    model.write_bytes(script)
    refused = 0
    for text in list(sidecars())[::4]:
        (tmp_path / "model.json").write_text(text)
        said = answered(lambda: load_model(model))
        assert not said.startswith("FAULTY"), (text[:200], said)
        refused += bool(said)
    assert refused > 35
    (tmp_path / "model.json").write_text(json.dumps({**SIDECAR, "mean": [10**30], "std": 1}))
    assert load_model(model).preprocessing.mean == (1e30, 1e30, 1e30)  # and no whole number, of which torch takes few
    (tmp_path / "model.json").unlink()
    for size in ((3, 99999, 99999), (3, 9999999999999, 8)):
        assert "would need more than 1 GiB for the input alone" in answered(lambda: load_model(model, input_size=size))  # noqa: B023


def test_sidecars_inside_the_file(script: bytes, tmp_path: Path) -> None:
    model, records = tmp_path / "model.pt2", records_of(exported())
    for text in list(sidecars())[::40]:
        model.write_bytes(packed({**records, "extra/pathx.json": text.encode()}))
        assert not answered(lambda: load_model(model)).startswith("FAULTY"), text[:200]


def safetensors(header: dict[str, Any], data: bytes = bytes(64)) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def tensor(dtype: str, shape: list[int], end: int) -> dict[str, Any]:
    return {"features.0.weight": {"dtype": dtype, "shape": shape, "data_offsets": [0, end]}}


@pytest.mark.parametrize(
    "content",
    [
        *(safetensors(tensor(dtype, [2], 1), bytes(1)) for dtype in ("F4", "F6_E2M3", "F8_E8M0", "C64", "X", "")),
        safetensors(tensor("F32", [2**62, 2**62], 64)),
        safetensors(tensor("F32", [16], 10**18)),
        safetensors(tensor("F32", [-1], 64)),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 10) + b"{" * 10,
        struct.pack("<Q", 100_000) + b'{"a":' + b"[" * 99_995,
    ],
)
def test_safetensors(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    said = answered(lambda: load_model("squeezenet1_1", weights=file))
    assert said
    assert not said.startswith("FAULTY")


def mutated(content: bytes, generator: random.Random) -> bytes:
    """A real file with some bytes changed, cut out, doubled or exchanged for those of numbers at their limits."""
    data = bytearray(content)
    for _ in range(generator.choice([1, 1, 2, 8])):
        place = generator.randrange(len(data) or 1)
        match generator.randrange(5):
            case 0:
                data[place : place + 1] = bytes([generator.randrange(256)])
            case 1:
                del data[place : place + generator.randrange(1, 64)]
            case 2:
                data[place:place] = data[place : place + generator.randrange(1, 64)]
            case 3:
                size = generator.choice([1, 2, 4, 8])
                data[place : place + size] = generator.choice([b"\0", b"\xff", b"\x7f"]) * size
            case 4:
                del data[generator.randrange(len(data) + 1) :]
    return bytes(data) or b"\0"


def mutated_records(archive: bytes, generator: random.Random) -> bytes:
    """The same inside a record, with a checksum that is right again, so that the damage is not found at the door."""
    records = records_of(archive)
    name = generator.choice(sorted(records))
    if records[name]:
        records[name] = mutated(records[name], generator)
    return packed(records, root="archive")


def mutations(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    generator = random.Random(zlib.crc32(content[:64]) ^ seed)
    for number in range(count):
        is_archive = content.startswith(b"PK") and number % 2
        yield (mutated_records if is_archive else mutated)(content, generator)


@pytest.mark.parametrize("count", [30, pytest.param(500, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["export", "script", "checkpoint", "safetensors"])
def test_mutations_of_real_files(tmp_path: Path, script: bytes, kind: str, count: int) -> None:
    state = {key: value.contiguous() for key, value in network().state_dict().items()}
    real = {"export": exported(), "script": script, "checkpoint": pickled(state), "safetensors": save(state)}[kind]
    file = tmp_path / "model"
    answers = set()
    for content in mutations(real, count, seed=1):
        file.write_bytes(content)
        if kind in ("export", "script"):
            said = answered(lambda: load_model(file, input_size=(3, 8, 8), mean=0.5, std=0.5))
        else:
            said = answered(lambda: load_model("squeezenet1_1", weights=file))
        assert not said.startswith("FAULTY"), said
        answers.add(said.replace(str(file), "")[:40])
    assert len(answers) > 1
