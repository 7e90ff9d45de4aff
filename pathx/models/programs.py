"""The program in a TorchScript file, looked at before any of it runs.

torch runs parts of a file while it loads it: `__setstate__` and default values. So the text may have neither, but for
plain literals; that is the one thing that is read off the text, with patterns that a line must match as a whole.
Everything else is read off torch's own compiled graphs, which are complete once the file is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pathx.models.exported import Archive
from pathx.models.operations import Unsafe, check_operations

_TEXT = r"\"[^\"\\\n()\[\]]*\""
_LITERAL = rf"(?:[ \w.,\[\]+-]|{_TEXT})"  # without round brackets, so that nothing is called
_NUMBER = r"[ \de.,+-]|True|False|None"
_TUPLE = rf"(?:{_NUMBER}|[()\[\]]|{_TEXT})"  # without names
_TYPE = r"[ \w.,\[\]]"
_DEFAULTS = {  # words behind which torch evaluates values (a digit may stand before them), and how a plain file goes on
    word: (re.compile(rf"(?<![A-Za-z_]){word}(?!\w)"), re.compile(word + pattern, re.ASCII))
    for word, pattern in {
        "def": rf" \w+\(((?:{_LITERAL}|[:=\n]|=\((?:{_NUMBER})*\)|=torch\.device\({_TEXT}\))*)\) ->",
        "Final": rf"(\[{_TYPE}+\] = (?:{_LITERAL}*|{_TUPLE}*))\n",
        "NamedTuple": rf"\):\n((?:  \w+ : {_TYPE}+(?: = {_LITERAL}+)?\n)+)(?=\S|\Z)",
    }.items()
}
_NATIVE_CLASS = re.compile(rb"[.\n]classes[.\n]")  # objects of torch.classes are made by C++ code of their own


def check_text(archive: Archive) -> None:
    """Raise Unsafe if loading a TorchScript archive would run a part of it."""
    for name in archive.names:
        lower = name.lower()  # torch's reader does not mind upper and lower case
        if lower == "model.json":
            raise Unsafe("it has the layout of an early version of torch")
        if lower.endswith(".pkl") and _NATIVE_CLASS.search(archive.read(name)):
            raise Unsafe("it holds an object that is no tensor")
        if not (lower.startswith("code/") and lower.endswith(".py")):
            continue
        text = archive.read(name).decode("latin-1")
        for word in ("__setstate__", "PythonOp"):  # runs while it is loaded; takes down torch's compiler
            if word in text:
                raise Unsafe(f"it names `{word}`")
        for start, plain in _DEFAULTS.values():
            if not all(_ends(plain.match(text, found.start())) for found in start.finditer(text)):
                raise Unsafe("it has a default value that is computed while it is loaded")


def _ends(found: re.Match[str] | None) -> bool:
    """Whether a plain value was found, and no bracket in it goes on behind it."""
    return found is not None and all(found[1].count(pair[0]) == found[1].count(pair[1]) for pair in ("[]", "()"))


def check_graphs(unit: Any) -> None:
    """Raise Unsafe if a loaded program names what no model file may; its warnings are taken out.

    Args:
        unit: the `torch._C.CompilationUnit` that the file was loaded into.
    """
    for function in unit.get_functions():
        for node in list(_nodes(function.graph)):
            kind = node.kind()
            if kind == "aten::warn":  # functions of torch itself warn; the text would be printed as it is
                node.destroy()
                continue
            check_operations([kind])
            if kind == "prim::CreateObject" and ".torch.classes." in str(node.output().type()):
                raise Unsafe("it makes an object that is no tensor")


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)
