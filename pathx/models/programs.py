"""What the program in a TorchScript file may name: nothing that reads or writes files.

Such a program runs when the network is called, and part of it (`__setstate__`) while it is loaded, so its text is looked
at before. It is never taken apart: a parser of ours could read it otherwise than torch does. Words are looked for wherever
they stand, in texts too, and names that a text could spell with escapes are refused.
"""

from __future__ import annotations

import re

from pathx.models.exported import Archive, Unsafe

_FILES = re.compile(
    r"(?<!\w)(?:save|\w*_file)(?!\w)", re.ASCII
)  # torch.save, torch.from_file, torchvision's write_file, …
_BY_NAME = re.compile(
    r'getattr\((?:(?!getattr)[\w.()\[\]])+, "[^"\\]*"\)', re.ASCII
)  # as torch writes it, for names such as "0"
_NESTED = 100  # calls of getattr inside of each other


def check_program(archive: Archive) -> None:
    """Raise Unsafe if the program of a TorchScript archive could reach for a file."""
    for name in archive.names:
        lower = name.lower()  # torch's reader does not mind upper and lower case
        if lower == "model.json":
            raise Unsafe("it has the layout of an early version of torch")
        if not (lower.startswith("code/") and lower.endswith(".py")):
            continue
        text = archive.read(name).decode("latin-1")
        if found := _FILES.search(text):
            raise Unsafe(f"it names `{found.group()}`, as operations that read or write files are called")
        for _ in range(_NESTED):  # from the inside out, until none is left that names its attribute plainly
            text, replaced = _BY_NAME.subn("_", text)
            if not replaced:
                break
        if "getattr" in text:
            raise Unsafe("it hides the names of what it calls")
