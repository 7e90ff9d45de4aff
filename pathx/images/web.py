"""Images at `https://` addresses, fetched within limits of size and time."""

from __future__ import annotations

import concurrent.futures
import os
import re
import ssl
import urllib.error
import urllib.request
from concurrent.futures import Future
from http.client import HTTPException
from threading import Thread
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

from pathx.errors import PathxError, address_hash, harmless, reason_of, shown

SIZE_LIMIT = 64 << 20
"""Largest image, in bytes."""

TIME_LIMIT = 30.0
"""Seconds for all of it, from finding the server to the last byte."""

_ADDRESS = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)


def is_address(file: str | os.PathLike[str]) -> bool:
    """Whether a name is an address of any scheme, and not a file."""
    return _ADDRESS.match(os.fspath(file)) is not None and not os.path.lexists(file)


def address_name(address: str) -> str:
    """The folder of results of an image on the web, below the output folder: host, path, and the hash of a query."""
    try:
        parts = urlsplit(address)
    except ValueError:  # reported when it is fetched
        parts = urlsplit(re.sub(r"[\[\]]", "_", address))
    steps = [parts.netloc.rpartition("@")[2], *parts.path.split("/")]
    safe = [re.sub(r"[^\w.%+-]", "_", step) for step in steps if step not in ("", ".", "..")]
    mark = f"-{address_hash(address)}" if parts.query else ""
    return "/".join(safe or ["web"]) + mark


def fetch(address: str, *, size: int = SIZE_LIMIT, seconds: float = TIME_LIMIT) -> bytes:
    """The bytes at an `https://` address. Raises PathxError for whatever is wrong."""
    _check(address, address)
    answer: Future[bytes] = Future()

    def attempt() -> None:
        try:
            answer.set_result(_fetch_all(address, size, seconds))
        except Exception as error:
            answer.set_exception(error)

    # In another thread: name lookup has no time limit, and a server may send single bytes for ever.
    Thread(target=attempt, daemon=True).start()
    try:
        return answer.result(seconds)
    except (TimeoutError, concurrent.futures.TimeoutError):
        problem = f"{shown(address)} took more than {seconds:g} seconds: fetch it yourself and give the file"
    except urllib.error.HTTPError as error:
        said = harmless(str(error.reason).partition("\n")[0][:160])
        problem = f"{shown(address)}: the server says {error.code} {said}; check the address"
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, urllib.error.URLError) else error
        reason = reason_of(cause) if isinstance(cause, BaseException) else str(cause)
        problem = f"{shown(address)} cannot be fetched ({reason}): check the address and the connection"
    raise PathxError(problem)


def _fetch_all(address: str, size: int, seconds: float) -> bytes:
    opener = urllib.request.OpenerDirector()  # build_opener would also read files and FTP
    for handler in (
        urllib.request.ProxyHandler(),
        urllib.request.HTTPSHandler(context=ssl.create_default_context()),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPDefaultErrorHandler(),
        _Redirects(),
    ):
        opener.add_handler(handler)
    headers = {"User-Agent": "pathx", "Accept": "image/*", "Accept-Encoding": "identity"}
    with opener.open(urllib.request.Request(_encode(address), headers=headers), timeout=seconds) as answer:
        announced = answer.headers.get("Content-Length", "")
        data: bytes = b"" if announced.isdigit() and int(announced) > size else answer.read(size + 1)
        if len(data) > size or (announced.isdigit() and int(announced) > size):
            raise PathxError(f"{shown(address)} is larger than {size >> 20} MiB: fetch it yourself and scale it down")
        if announced.isdigit() and len(data) < int(announced):
            raise PathxError(f"{shown(address)} was cut short on the way: try again")
        return data


def _encode(address: str) -> str:
    """An address as servers accept it: special characters and spaces are encoded."""
    parts = urlsplit(address)
    host = parts.netloc if parts.netloc.isascii() else parts.netloc.encode("idna").decode()
    path, query = (quote(part, safe="/%:;=&?@!$'()*+,~") for part in (parts.path, parts.query))
    return urlunsplit((parts.scheme, host, path, query, ""))


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to `https://` addresses only."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        _check(newurl, req.full_url)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _check(address: str, asked: str) -> None:
    """Refuse everything but `https://` with a host and without a password."""
    leads = "" if address == asked else f" leads to {shown(address)}"
    try:
        parts = urlsplit(address)
        host, scheme = parts.hostname, parts.scheme.lower()
    except ValueError:
        host, scheme = None, ""
    if scheme not in ("", "https"):
        raise PathxError(
            f"{shown(asked)}{leads or ' is refused'}: pathx fetches https:// only, so save the image to a file"
        )
    if not host:
        raise PathxError(f"{shown(asked)}{leads} has no host: give it as https://host/image.jpg")
    if parts.username is not None or parts.password is not None:
        raise PathxError(f"an address on {host} holds a user name: fetch the image yourself and give the file")
