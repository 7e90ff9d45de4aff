"""One self-contained HTML page: its own style, its own scripts, and the data as JSON, under a strict security policy."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pathx.regular import read_regular

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
