"""Files that try to run code when they are loaded: each would touch a mark. Built from one real torch.export archive."""

from __future__ import annotations

import bz2
import copy
import gzip
import io
import json
import pickle
import shlex
import struct
import tarfile
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

SIDECAR = {"input_size": [3, 8, 8], "mean": [0.5], "std": [0.25], "labels": ["cat", "red fox", "dog"]}
ROOT = "model"
GRAPH, INPUTS = "models/model.json", "data/sample_inputs/model.pt"
WEIGHTS, CONSTANTS = "data/weights/model_weights_config.json", "data/constants/model_constants_config.json"

Records = dict[str, bytes]


class Trap:
    """A pickle that leaves a mark where it is executed."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.mark,)


def network() -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)).eval()


def exported() -> bytes:
    """A real archive, with a batch of any size so that there are symbolic sizes in it."""
    buffer = io.BytesIO()
    batch = ({0: torch.export.Dim("batch")},)
    program = torch.export.export(network(), (torch.zeros(2, 3, 8, 8),), dynamic_shapes=batch)
    torch.export.save(program, buffer, extra_files={"pathx.json": json.dumps(SIDECAR)})
    return buffer.getvalue()


def records_of(archive: bytes) -> Records:
    with zipfile.ZipFile(io.BytesIO(archive)) as old:
        return {name.partition("/")[2]: old.read(name) for name in old.namelist()}


def packed(records: Records, *more: tuple[str, bytes], root: str = ROOT) -> bytes:
    """A zip file; `more` are written after the others and may have the same names."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about names that come twice
        for name, content in [*records.items(), *more]:
            archive.writestr(zipfile.ZipInfo(f"{root}/{name}" if root else name), content)
    return buffer.getvalue()


def pickled(content: object, **options: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer, **options)
    return buffer.getvalue()


def changed(records: Records, **changes: Callable[[Any], None]) -> Records:
    """The records with JSON documents edited in place: `graph`, `weights` or `constants`."""
    names = {"graph": GRAPH, "weights": WEIGHTS, "constants": CONSTANTS}
    result = dict(records)
    for key, change in changes.items():
        document = json.loads(result[names[key]])
        change(document)
        result[names[key]] = json.dumps(document).encode()
    return result


def attacks(mark: Path, genuine: bytes) -> Iterator[tuple[str, bytes]]:
    """Every attack: its name, and the file."""
    yield from _pickles(mark)
    yield from _records(mark, records_of(genuine))
    yield from _containers(mark, genuine)
    yield from _graphs(mark, records_of(genuine))


def _pickles(mark: Path) -> Iterator[tuple[str, bytes]]:
    trap, state = Trap(mark), {"features.0.weight": Trap(mark)}
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        yield f"pickle-{protocol}", pickle.dumps(state, protocol)
    yield "pickle-zip", pickled(state)
    yield "pickle-legacy", pickled(state, _use_new_zipfile_serialization=False)
    yield "pickle-whole", pickled(trap)
    yield "pickle-wrapped", pickled({"state_dict": {"weight": torch.zeros(1)}, "hparams": trap})
    yield "pickle-gzip", gzip.compress(pickle.dumps(state))
    yield "pickle-bzip2", bz2.compress(pickle.dumps(state))
    yield "pickle-behind-text", b"# labels\n" + pickle.dumps(state, 0)
    header = json.dumps({"__metadata__": {"pickle": pickle.dumps(trap, 0).decode("latin-1")}}).encode()
    yield "safetensors-metadata", struct.pack("<Q", len(header)) + header
    yield "safetensors-behind", save({"x": torch.zeros(1)}) + pickle.dumps(trap)
    array = b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }"
    array += b" " * (-(len(array) + 11) % 64) + b"\n"
    yield "numpy-objects", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(array)) + array + pickle.dumps([trap])
    onnx = b"\x08\x08\x12\x07pytorch"
    yield "onnx-pickle", onnx + pickle.dumps(trap)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            content = pickle.dumps(trap, 2)
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    yield "legacy-tar", buffer.getvalue()


def _records(mark: Path, records: Records) -> Iterator[tuple[str, bytes]]:
    trap = pickled(Trap(mark))
    bare = {name: content for name, content in records.items() if name != INPUTS}
    yield "inputs", packed({**records, INPUTS: trap})
    for name in ("data/sample_inputs/model.PT", "DATA/sample_inputs/model.pt", "data/Sample_Inputs/MODEL.pt"):
        yield f"record-case-{name}", packed({**bare, name: trap})
        yield f"record-case-{name}-twice", packed({**records, name: trap})
    for folder in ("weights", "constants"):
        config = f"data/{folder}/model_{folder}_config.json"
        without = {name: content for name, content in records.items() if name != config}
        for name in (f"data/{folder}/model.pt", f"data/{folder}/model.PT", f"DATA/{folder}/model.pt"):
            yield f"{name}-older", packed({**records, name: trap})
            yield f"{name}-alone", packed({**without, name: trap})

    def flagged(config: Any) -> None:
        for entry in config["config"].values():
            entry["use_pickle"] = True

    yield "weights-flagged", packed({**changed(records, weights=flagged), "data/weights/weight_0": trap})
    for prefix in ("opaque_obj_", "custom_obj_", "tensor_"):
        entry = {"path_name": f"{prefix}0", "is_param": False, "use_pickle": True, "tensor_meta": None}

        def constant(config: Any, entry: dict[str, Any] = entry) -> None:
            config["config"]["x"] = entry

        yield f"constant-{prefix}", packed({**changed(records, constants=constant), f"data/constants/{prefix}0": trap})
    yield "nested-zip", packed({**records, "data/weights/weight_0": trap})
    yield "nested-archive", packed({**records, INPUTS: packed({**records, INPUTS: trap})})
    yield "compiled", packed({**records, "data/aotinductor/model/model.so": b"\x7fELF"})
    script = {"constants.pkl": trap, "code/__torch__.py": b"", "data.pkl": pickle.dumps(Trap(mark)), "version": b"3\n"}
    yield "torchscript", packed(script)
    yield "torchscript-and-export", packed({**script, **records})
    older = {
        "version": b"8.20",
        "serialized_exported_program.json": records[GRAPH],
        "serialized_state_dict.pt": trap,
        "serialized_constants.pt": trap,
        "serialized_example_inputs.pt": trap,
    }
    yield "older-layout", packed(older, root="")
    yield "older-layout-in-folder", packed({**older, **records})
    both = [(f"{ROOT}/{name}", content) for name, content in records.items() if name != GRAPH]
    yield "older-layout-beside", packed(older, *both, root="")


def _containers(mark: Path, genuine: bytes) -> Iterator[tuple[str, bytes]]:
    records, trap = records_of(genuine), pickled(Trap(mark))
    hostile = packed({**records, INPUTS: trap, "data/weights/model.pt": trap})
    older = packed({"version": b"8.20", "serialized_state_dict.pt": trap}, root="")
    yield "duplicate-last", packed(records, (INPUTS, trap))
    yield "duplicate-first", packed({INPUTS: trap}, *records.items())
    for name, other in (("hostile", hostile), ("older", older), ("pickle", pickled({"x": Trap(mark)}))):
        yield f"two-directories-{name}-behind", genuine + other
        yield f"two-directories-{name}-before", other + genuine
        yield f"two-directories-{name}-comment", _with_comment(genuine, other)
    yield "prefix-bytes", b"MZ" + bytes(510) + hostile
    yield "prefix-pickle", pickle.dumps(Trap(mark)) + hostile
    yield "prefix-empty-archive", packed({}) + hostile
    yield "suffix-pickle", genuine + pickle.dumps(Trap(mark))
    yield "sizes-of-zip64", _with_lying_sizes(hostile)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for record, content in records.items():
            entry = zipfile.ZipInfo(f"{ROOT}/{record}")
            if record == INPUTS:
                entry.external_attr, content = 0o120777 << 16, str(mark).encode()
            archive.writestr(entry, content)
    yield "symbolic-link", buffer.getvalue()
    for kind, name in (("up", f"../../{mark.name}"), ("root", str(mark)), ("windows", f"..\\..\\{mark.name}")):
        yield f"escaping-name-{kind}", packed({**records, name: b"mark"})


def _with_comment(archive: bytes, comment: bytes) -> bytes:
    """Another archive, or its first 65535 bytes, as the comment of the first: which directory is the last one?"""
    buffer = io.BytesIO(archive)
    with zipfile.ZipFile(buffer, "a") as opened:
        opened.comment = comment[-65535:]
    return buffer.getvalue()


def _with_lying_sizes(archive: bytes) -> bytes:
    """All sizes in the central directory say 4 GiB or more, and a zip64 field gives others."""
    start = archive.rindex(b"PK\x05\x06")
    offset = struct.unpack("<I", archive[start + 16 : start + 20])[0]
    directory, lying, place = archive[offset:start], b"", 0
    while directory[place : place + 4] == b"PK\x01\x02":
        fixed = bytearray(directory[place : place + 46])
        name, extra, comment = struct.unpack("<HHH", fixed[28:34])
        sizes = struct.unpack("<II", fixed[20:28])
        field = struct.pack("<HHQQ", 1, 16, sizes[1] << 20, sizes[0] << 20)
        fixed[20:28] = b"\xff" * 8
        fixed[30:32] = struct.pack("<H", len(field))
        lying += bytes(fixed) + directory[place + 46 : place + 46 + name] + field
        place += 46 + name + extra + comment
    end = bytearray(archive[start:])
    end[12:16] = struct.pack("<I", len(lying))
    return archive[:offset] + lying + bytes(end)


def _graphs(mark: Path, records: Records) -> Iterator[tuple[str, bytes]]:
    """Archives without any pickle whose graph names what torch would evaluate, import or call."""
    touch = f"__import__('pathlib').Path({str(mark)!r}).touch()"
    text = {"as_string": f"touch {shlex.quote(str(mark))}"}

    def call(target: str, *arguments: dict[str, Any]) -> Callable[[Any], None]:
        def change(program: Any) -> None:
            nodes = program["graph_module"]["graph"]["nodes"]
            node = copy.deepcopy(nodes[0])
            node |= {"target": target, "name": "attack", "outputs": [{"as_tensor": {"name": "attack"}}]}
            node["inputs"] = [{"name": "", "arg": argument, "kind": 1} for argument in arguments]
            values = program["graph_module"]["graph"]["tensor_values"]
            values["attack"] = next(iter(values.values()))
            nodes.insert(0, node)

        return change

    for target in (
        *("torch.os.system", "torch.hub.os.system", "torch.serialization.os.system", "torch._C.os.system"),
        *("torch.load", "torch.ops.load_library", "torch.ops.aten.os.system", "torch.ops.aten.from_file.default"),
        *(
            "_operator.attrgetter",
            "_operator.methodcaller",
            "math.__loader__.load_module",
            "#ext:os.system",
            "os.system",
        ),
        *("torch.ops.higher_order.triton_kernel_wrapper_mutation", "torchlike.os.system", "torch.utils._config_module"),
    ):
        yield f"operation-{target}", packed(changed(records, graph=call(target, text)))
    operator = call("torch.ops.aten.relu.default", {"as_operator": "torch.os.system"})
    yield "operator-argument", packed(changed(records, graph=operator))

    def everywhere(key: str, value: object) -> Callable[[Any], None]:
        def change(part: Any) -> None:
            if isinstance(part, dict):
                for name in part:
                    if name == key:
                        part[name] = value
                    else:
                        change(part[name])
            elif isinstance(part, list):
                for item in part:
                    change(item)

        return change

    yield "size", packed(changed(records, graph=everywhere("expr_str", touch)))
    yield "size-class", packed(changed(records, graph=everywhere("expr_str", f"Symbol('s0').__class__ or {touch}")))
    yield "size-lambda", packed(changed(records, graph=everywhere("expr_str", f"Add((lambda: {touch})(), 1)")))
    yield "size-nested", packed(changed(records, graph=everywhere("expr_str", f"Symbol({touch!r})")))
    giants = "9**9**9", "Pow(9, Pow(9, 9))", "1 << 9999999999", "LShift(1, 9999999999)", "Symbol('s1' * 99999999999)"
    for number, giant in enumerate(giants):
        yield f"size-giant-{number}", packed(changed(records, graph=everywhere("expr_str", giant)))
    yield "guards", packed(changed(records, graph=lambda program: program.update(guards_code=[touch])))
    for key in ("name", "as_name", "parameter_name", "buffer_name", "fqn", "nn_module_stack", "torch_fn"):
        for number, injected in enumerate((f"x=({touch})", f'x"){touch}#', f"x\n    {touch}\n")):
            yield f"name-{key}-{number}", packed(changed(records, graph=everywhere(key, injected)))
    yield "argument-names", packed(changed(records, graph=everywhere("forward_arg_names", [f"x=({touch})"])))
    enum = json.dumps([{"__enum__": True, "fqn": f"{mark.name}:A", "name": "B"}])
    for kind, context in (
        ("builtins.dict", json.dumps([touch])),
        ("builtins.dict", enum),
        ("collections.defaultdict", enum),
        ("collections.namedtuple", json.dumps("os.system")),
        ("torch.os.system", json.dumps("x")),
    ):
        leaf = {"type": None, "context": None, "children_spec": []}
        tree = json.dumps([1, {"type": kind, "context": context, "children_spec": [leaf]}])
        for key in ("in_spec", "out_spec"):
            name = f"tree-{key}-{kind}-{len(context)}"
            yield name, packed(changed(records, graph=everywhere(key, tree)))
