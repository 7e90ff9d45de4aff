"""Stores to read from and write to: one in memory, and a server that speaks S3 on this machine."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def put(address: str, data: bytes) -> str:
    """A file in a store."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    system.pipe_file(path, data)
    return address


def upload(folder: str | Path, address: str) -> str:
    """All files below a folder, in a store."""
    for file in sorted(Path(folder).rglob("*")):
        if file.is_file():
            put(f"{address}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    return address


def content(address: str) -> dict[str, bytes]:
    """Every file in a store below an address."""
    import fsspec

    system, path = fsspec.core.url_to_fs(address)
    system.invalidate_cache()
    root = path.rstrip("/") + "/"
    return {name[len(root) :]: system.cat_file(name) for name in system.find(path)}


@contextmanager
def s3_server() -> Iterator[str]:
    """A server that speaks S3, with an empty bucket; what is in the environment leads to it, in child processes too."""
    pytest.importorskip("s3fs", reason="s3:// needs s3fs: pip install s3fs")
    moto = pytest.importorskip("moto.server", reason="the S3 server of tests is moto's: pip install 'moto[server]'")
    server: Any = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    settings = {
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "no_proxy": "127.0.0.1",
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        system = s3fs.S3FileSystem()
        bucket = f"pathx-{secrets.token_hex(4)}"  # servers of one process share what they hold
        system.mkdir(bucket)
        try:
            yield f"s3://{bucket}"
        finally:
            s3fs.S3FileSystem.clear_instance_cache()
            server.stop()


@contextmanager
def store(kind: str) -> Iterator[str]:
    """The address of a store: in `memory`, or on a server that speaks `s3`."""
    if kind == "s3":
        with s3_server() as address:
            yield address
        return
    import fsspec

    fsspec.filesystem("memory").store.clear()
    yield "memory://bucket"
    fsspec.filesystem("memory").store.clear()
