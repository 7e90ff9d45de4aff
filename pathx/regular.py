"""Reading files from others: regular files only, so that nothing ever waits for a pipe or a device."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from pathx.errors import PathxError, reason_of, shown

NOT_REGULAR = "it is not a regular file"
MARKER = ".pathx.json"
"""The file that lists what pathx wrote to a folder which may hold other files."""


def path_problem(path: str | Path) -> str | None:
    """Why no file can have this path; None if one can, whether it exists or not."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    except ValueError as error:  # a null character in it
        return str(error)
    return None


def open_regular(path: str | Path) -> BinaryIO:
    """Open a regular file for reading, without waiting; anything else is an OSError."""
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags | getattr(os, "O_NOCTTY", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, NOT_REGULAR, os.fspath(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


@contextmanager
def file_errors(path: str | Path, *, usage: bool = False) -> Iterator[None]:
    """Turn what opening and reading a file raises into a PathxError."""
    try:
        yield
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        reason = getattr(error, "strerror", None) or reason_of(error)
        raise PathxError(f"{shown(path)} cannot be read: {reason}; check the path", usage=usage) from error


@contextmanager
def damage_errors(
    path: str | Path, otherwise: str, remedy: str = "fetch it again", *, usage: bool = False
) -> Iterator[None]:
    """Turn whatever a decoder raises into a PathxError.

    Args:
        otherwise: what the file is if it is not damaged, such as `no video`.
    """
    try:
        yield
    except PathxError:
        raise
    except Exception as error:  # damaged files make decoders raise anything
        reason = getattr(error, "strerror", None) or reason_of(error)  # without the number of an open file
        raise PathxError(f"{shown(path)} is damaged or {otherwise} ({reason}): {remedy}", usage=usage) from error


def read_regular(path: str | Path, limit: int | None = None) -> bytes:
    """The bytes of a regular file. Raises OSError, with the number EFBIG where there are more than `limit`.

    No more is read than the file claims to hold: files of /proc claim nothing, and some of them never end.
    """
    with open_regular(path) as stream:
        size = os.fstat(stream.fileno()).st_size
        if limit is not None and size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit} bytes", os.fspath(path))
        return stream.read(size)


def written_by_pathx(file: str | Path) -> bool:
    """Whether a file begins as the documents of pathx do."""
    try:
        with open_regular(file) as stream:
            return begins_as_ours(stream.read(64))
    except OSError:
        return False


def begins_as_ours(start: bytes) -> bool:
    """Whether these are the first bytes of a document of pathx."""
    return re.match(rb'\s*\{\s*"schema": "pathx/', start) is not None


def sha256_of(path: str | Path) -> str:
    """The SHA-256 of a regular file, in hexadecimal digits. Raises OSError."""
    with open_regular(path) as stream:
        left, digest = os.fstat(stream.fileno()).st_size, hashlib.sha256()
        while left > 0 and (block := stream.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()
