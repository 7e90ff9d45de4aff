"""Files of one JSON document per line, which several threads and processes may add to, and which a crash may tear."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from pathx.regular import NOT_REGULAR, read_regular
from pathx.results.files import lock, replace_file

Line = dict[str, Any]

_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOFOLLOW", 0)
"""A link in the place of such a file leads to one that is not ours to add lines to."""


class JsonLines:
    """A file of JSON lines. What is torn or no JSON object is left out when it is read and cut off when it is added to."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._synced = 0.0

    def read(self) -> list[Line]:
        """The lines that are whole; none where there is no such file. Raises OSError."""
        try:
            return _parse_lines(read_regular(self.file))
        except FileNotFoundError:
            return []

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Add lines in one write: all of them or none. Raises OSError."""
        data = lines_bytes(lines)
        with self.lock() as descriptor:
            before = _cut_broken_line(descriptor)
            try:
                if os.write(descriptor, data) < len(data):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(descriptor, before)
                raise
            if time.monotonic() - self._synced > 1:  # lines are quickly made again; results are synced one by one
                os.fsync(descriptor)
                self._synced = time.monotonic()

    def rewrite(self, change: Callable[[list[Line]], Iterable[Mapping[str, Any]]]) -> None:
        """Replace the lines, while nobody adds any. Raises OSError or PathxError."""
        with self.lock() as descriptor:
            before = _read(descriptor)
            after = lines_bytes(change(_parse_lines(before)))
            if after != before:
                replace_file(self.file, after)

    @contextmanager
    def lock(self) -> Iterator[int]:
        """The file, opened for appending; nobody else appends to it or replaces it meanwhile, where the file system has locks."""
        while True:
            descriptor = os.open(self.file, _FLAGS, 0o666)
            try:
                if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                    raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(self.file))
                lock(descriptor)
                if _is_still(self.file, descriptor):
                    yield descriptor
                    return
            finally:
                os.close(descriptor)


def lines_bytes(lines: Iterable[Mapping[str, Any]]) -> bytes:
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _parse_lines(data: bytes) -> list[Line]:
    lines = []
    for text in data.split(b"\n"):
        with suppress(ValueError, RecursionError):
            line = json.loads(text)
            if isinstance(line, dict):
                lines.append(line)
    return lines


def _cut_broken_line(descriptor: int) -> int:
    """Cut off a last line that has no end, and say how long the file is then."""
    size = os.fstat(descriptor).st_size
    end = size
    while end > 0:
        start = max(0, end - 4096)
        os.lseek(descriptor, start, os.SEEK_SET)
        at = os.read(descriptor, end - start).rfind(b"\n")
        if at >= 0:
            end = start + at + 1
            break
        end = start
    if end != size:
        os.ftruncate(descriptor, end)
    return end


def _is_still(file: Path, descriptor: int) -> bool:
    """Whether nobody replaced the file while we waited for it."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def _read(descriptor: int) -> bytes:
    with open(os.dup(descriptor), "rb") as stream:
        stream.seek(0)
        return stream.read()
