"""One self-contained HTML page: its own style, its own scripts, and the data as JSON, under a strict security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import math
import os
import re
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image

from pathx.errors import PathxError, shown
from pathx.images.read import open_image
from pathx.regular import read_regular
from pathx.results.files import foreign, replace_file

_DATA = '<script type="application/json" id="data">'
_IMPORT = re.compile(r'^import\s+\{[^}]*\}\s+from\s+"\./[\w-]+\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(async )?(function|const|class|let)\b)", re.MULTILINE)
_SOURCES = re.compile(r'^import\s+\{[^}]*\}\s+from\s+"\./([\w-]+\.js)";', re.MULTILINE)


def page(script: str, title: str, data: dict[str, Any], *, pictures: str = "data: blob:") -> str:
    """A page as text.

    Nothing in the data is ever markup: it stands in the page as JSON whose every `<` is escaped, and the scripts put it
    on the screen as text. The policy allows the page's own style and script by their hash, and no request at all.

    Args:
        script: the module that draws the page, such as `explanation.js`.
        title: of the window.
        pictures: where pictures may come from, as the security policy says it.
    """
    style, code = _asset("report.css"), joined_modules(script)
    policy = (
        f"default-src 'none'; script-src '{_hash(code)}'; style-src '{_hash(style)}'; img-src {pictures}; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = {
        "policy": policy,
        "title": html.escape(title.encode("utf-8", "replace").decode()),
        "style": style,
        "data": json_in_page(data),
        "script": code,
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("page.html"))


def is_page(file: Path) -> bool:
    """Whether a file is a page of pathx, or empty, so that nothing of others is in it."""
    try:
        data = read_regular(file)
    except OSError:
        return False
    return not data or _DATA.encode() in data


def json_in_page(data: Any) -> str:
    """JSON that may stand in a script element of a page: ASCII, no `<`, `>` or `&`, and null for what is no number."""
    text = json.dumps(_finite(data), ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@lru_cache(maxsize=8)
def joined_modules(script: str) -> str:
    """A module and all that it imports as one module, for a page that is a single file: each module once, used ones first.

    Browsers refuse imports between files that are opened with a double click.
    """
    ordered: list[str] = []
    _collect(script, ordered, set())
    return "\n".join(_EXPORT.sub("", _IMPORT.sub("", _asset(name))) for name in ordered)


def _collect(name: str, ordered: list[str], met: set[str]) -> None:
    met.add(name)
    for used in _SOURCES.findall(_asset(name)):
        if used not in met:
            _collect(used, ordered, met)
    ordered.append(name)


@lru_cache(maxsize=32)
def _asset(name: str) -> str:
    return files("pathx.report").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


_HEIGHT = 900  # of the page in a notebook's cell, in pixels


@dataclass(frozen=True, eq=False, repr=False)
class Report:
    """A page; notebooks show it by themselves.

    Args:
        html: the page, whole.
    """

    html: str

    def __repr__(self) -> str:
        return f"<Report of {len(self.html) / 1e6:.1f} MB>"

    def save(self, file: str | PathLike[str]) -> Path:
        """Write the page to a file, at once and whole. A file of others that is called the same stays."""
        path = Path(file)
        if os.path.isdir(path):
            raise PathxError(
                f"{shown(path)} is a folder: name a file, such as {shown(path / 'report.html')}", usage=True
            )
        if os.path.lexists(path) and not is_page(path):
            raise foreign(path)
        replace_file(path, self.html.encode())
        return path

    def _repr_html_(self) -> str:
        inside = html.escape(self.html, quote=True)
        return (
            f'<iframe srcdoc="{inside}" sandbox="allow-scripts" title="pathx report" width="100%" height="{_HEIGHT}" '
            'frameborder="0"></iframe>'
        )


PHOTO_SIDE = 900
"""Photos are scaled down to this on their longer side."""


def encode_photo(image: Image.Image) -> dict[str, Any]:
    """A photo as the page's `src`, `width` and `height`; a few pixels stay as they are."""
    if max(image.size) <= 128:
        return {"src": encode_png(image.convert("RGB")), "width": image.width, "height": image.height}
    small = shrink(image, PHOTO_SIDE)
    return {"src": encode_small(small, PHOTO_SIDE, 82), "width": small.width, "height": small.height}


def encode_small(image: Image.Image, side: int, quality: int = 80) -> str:
    """A small copy of a photo as a data address."""
    return _address(encode_jpeg(image, side, quality), "jpeg")


def encode_png(image: Image.Image) -> str:
    """A picture as it is."""
    return _address(_encode(image, "PNG", optimize=True), "png")


def read_picture(file: Path) -> Image.Image | None:
    """A picture that pathx wrote; None where there is none."""
    try:
        return open_image(file).pixels
    except PathxError:
        return None


def encode_jpeg(image: Image.Image, side: int, quality: int = 80) -> bytes:
    """A small copy of a photo as the bytes of a file."""
    return _encode(shrink(image, side), "JPEG", quality=quality)


def shrink(image: Image.Image, side: int) -> Image.Image:
    """A picture in RGB of at most so many pixels on its longer side."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    return small


def _address(data: bytes, kind: str) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def _encode(image: Image.Image, kind: str, **how: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **how)
    return stream.getvalue()
