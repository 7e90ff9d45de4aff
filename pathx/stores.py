"""Files in stores such as `s3://`, read through fsspec with the user's own keys."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from pathx.errors import PathxError, has_login, public_address, reason_of, shown
from pathx.regular import file_errors, open_regular

INSTALL = "pip install 'pathx-relu[remote]'"
DRIVERS = {
    **{"hf": "huggingface_hub", "oss": "ossfs", "oci": "ocifs", "hdfs": "pyarrow", "memory": ""},
    **dict.fromkeys(("s3", "s3a"), "s3fs"),
    **dict.fromkeys(("gs", "gcs"), "gcsfs"),
    **dict.fromkeys(("az", "abfs", "abfss"), "adlfs"),
    **dict.fromkeys(("sftp", "ssh"), "paramiko"),
}
"""Schemes of addresses, and the package that fsspec needs for each. None of them reaches local files."""

_WITH_LOGIN = ("sftp", "ssh", "hdfs")  # their addresses may hold a user name
_BLOCK = 4 << 20  # bytes to read ahead
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_VERSIONS = ("ETag", "etag", "md5Hash", "content_md5", "blob_id", "checksum", "mtime", "last_modified", "created")


def is_stored(file: object) -> bool:
    """Whether a path is the address of something in a store."""
    if not isinstance(file, (str, os.PathLike)):
        return False
    found = _SCHEME.match(os.fspath(file))
    return found is not None and found[1].lower() in DRIVERS


def scheme_problem(place: str | Path) -> str | None:
    """Why an address names no store; None for stores and for paths."""
    found = _SCHEME.match(os.fspath(place))
    return None if found is None or is_stored(place) else f"{found[1]}:// is no store that pathx knows"


def store_of(address: str) -> tuple[Any, str]:
    """The file system of an address, and the path there. Raises PathxError."""
    scheme = address.partition("://")[0].lower()
    if scheme not in _WITH_LOGIN and has_login(address):
        remedy = "give keys as the store's own tools take them, in the environment or in their settings"
        raise PathxError(f"{shown(address)} holds a key or a password, which {scheme}:// does not take: {remedy}")
    try:
        core = import_module("fsspec.core")
    except ImportError:
        raise PathxError(f"{shown(address)} is in a store, which needs fsspec: {INSTALL}", usage=True) from None
    try:
        system, path = core.url_to_fs(address)
    except ImportError:
        driver = DRIVERS[scheme]
        raise PathxError(f"{scheme}:// needs {driver} besides fsspec: pip install {driver}", usage=True) from None
    except Exception as error:
        raise PathxError(f"{shown(address)} is no address of a store ({reason_of(error)}): check it") from None
    return system, path


@contextmanager
def store_errors(address: str) -> Iterator[None]:
    """What drivers raise, as a PathxError."""
    try:
        yield
    except PathxError:
        raise
    except FileNotFoundError:
        raise PathxError(f"{shown(address)}: the store holds nothing there; check the address") from None
    except Exception as error:  # drivers raise what their libraries raise
        reason = reason_of(error)
        remedy = "check the address, the keys and the connection"
        raise PathxError(f"{shown(address)} cannot be reached ({reason}): {remedy}") from error


@contextmanager
def _reach(address: str) -> Iterator[tuple[Any, str]]:
    """`store_of`, with what drivers raise meanwhile as a PathxError."""
    system, path = store_of(address)
    with store_errors(address):
        yield system, path


def open_stored(address: str) -> BinaryIO:
    """A file, opened for sequential reading. Raises PathxError."""
    with _reach(address) as (system, path):
        stream: BinaryIO = system.open(path, "rb", block_size=_BLOCK)
        return stream


def open_anywhere(file: str) -> BinaryIO:
    """A local file or one in a store, opened for reading. Raises PathxError."""
    if is_stored(file):
        return open_stored(file)
    with file_errors(file):
        return open_regular(file)


def version_anywhere(file: str) -> str:
    """A text that changes when a local file or one in a store does. Raises PathxError."""
    if is_stored(file):
        return stored_version(file)
    with file_errors(file):
        found = os.stat(file)
    return f"{found.st_dev}:{found.st_ino}:{found.st_size}:{found.st_mtime_ns}"


def check_size(file: str, size: int, limit: int) -> None:
    """Refuse to read an image of more bytes."""
    if size > limit:
        raise PathxError(f"{shown(file)} is larger than {limit >> 30} GiB: scale the image down first")


def fetch_stored(address: str, limit: int) -> bytes:
    """A whole file of at most so many bytes. Raises PathxError."""
    with _reach(address) as (system, path):
        about = system.info(path)
        if about["type"] == "directory":
            raise PathxError(f"{shown(address)} is a folder: name its images one by one, or the folder to a run")
        check_size(address, about.get("size") or 0, limit)
        data: bytes = system.cat_file(path)
        return data


def fetch_part(address: str, start: int, size: int) -> bytes:
    """Some bytes of a file. Raises PathxError."""
    with _reach(address) as (system, path):
        data: bytes = system.cat_file(path, start=start, end=start + size)
        return data


def version_of(about: dict[str, Any]) -> str:
    """A text that changes when the file does; empty if the store does not tell."""
    known = next((about[key] for key in _VERSIONS if about.get(key) is not None), None)
    known = known.timestamp() if isinstance(known, datetime) else known
    return "" if known is None else f"{about.get('size')}:{known}"


def stored_version(address: str) -> str:
    """`version_of` a file. Raises PathxError."""
    with _reach(address) as (system, path):
        return version_of(system.info(path))


def stored_matches(pattern: str) -> list[str]:
    """The addresses that a pattern matches, in order. Raises PathxError."""
    with _reach(pattern) as (system, path):
        system.invalidate_cache()
        found = [one for one in system.glob(path) if "/." in path or "/." not in one]  # as for local files
        return sorted(map(system.unstrip_protocol, found))


def stored_files(address: str) -> dict[str, str] | None:
    """All files below a folder, by their paths from there, with their versions; None where it is a file itself.

    Raises PathxError.
    """
    with _reach(address) as (system, path):
        system.invalidate_cache()
        if system.info(path)["type"] != "directory":
            return None
        found = system.find(path, detail=True)
        system.invalidate_cache()  # it holds another copy of the listing
    root = path.rstrip("/") + "/" if path.strip("/") else path
    return {name[len(root) :]: version_of(about) for name, about in found.items() if name.startswith(root)}


def join_address(address: str | Path, below: str) -> str:
    """The address of what is below a folder in a store."""
    return f"{os.fspath(address).rstrip('/')}/{below}"


class Address(PurePosixPath):
    """An address that can be joined and shown like a path, which would lose one of its two slashes."""

    def __str__(self) -> str:
        return public_address(re.sub(r"^([a-zA-Z0-9+.-]+):/(?!/)", r"\1://", super().__str__()))
