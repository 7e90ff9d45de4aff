"""A real browser for pages: Chromium driven by Playwright, with everything that a page must not do written down."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

AXE = "axe-core@4.14.0"
_FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
)

OVERFLOWING = """() => {
  const out = [];
  if (document.documentElement.scrollWidth > innerWidth) out.push(`page ${document.documentElement.scrollWidth}`);
  const clips = (node) => ['auto', 'scroll', 'hidden'].includes(getComputedStyle(node).overflowX);
  const scrolls = (node) => node && (clips(node) || scrolls(node.parentElement));
  for (const node of document.querySelectorAll('body *')) {
    if (!node.checkVisibility() || node.closest('svg, .offscreen')) continue;
    const box = node.getBoundingClientRect();
    if (box.right <= innerWidth + 1 || scrolls(node.parentElement)) continue;
    out.push(`${node.tagName}.${node.className} ${Math.round(box.right)}`);
  }
  return out.slice(0, 5);
}"""
"""Elements that reach beyond the window and cannot be scrolled to."""


def missing(reason: str) -> Any:
    """Skip what needs something that is not here; where PATHX_REQUIRE_BROWSER is set, fail instead."""
    if os.environ.get("PATHX_REQUIRE_BROWSER"):
        pytest.fail(reason)
    pytest.skip(reason)


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser, with a fresh profile."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        missing("Playwright is not installed: pip install 'pathx-relu[browser]'")
    names = ("chromium", "chromium-browser", "google-chrome")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        missing("Chromium is not installed: apt install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, file: Path, *, width: int = 1280, height: int = 900) -> Iterator[Any]:
    """The browser's one page, with a file. Errors, messages on the console and requests that leave its folder fail the test."""
    if not browser.contexts:
        browser.new_context().new_page().set_default_timeout(10_000)
    (page,) = browser.contexts[0].pages
    trouble: list[str] = []
    places = (file.resolve().parent.as_uri(), "data:", "blob:", file.resolve().parent.parent.as_uri())
    listeners = {
        "console": lambda message: trouble.append(f"console: {message.text}"),
        "pageerror": lambda error: trouble.append(f"error: {error}"),
        "dialog": lambda dialog: trouble.append(f"dialog: {dialog.message}") or dialog.dismiss(),
        "request": lambda request: request.url.startswith(places) or trouble.append(f"request: {request.url[:200]}"),
    }
    for event, listener in listeners.items():
        page.on(event, listener)
    try:
        page.set_viewport_size({"width": width, "height": height})
        page.emulate_media(color_scheme="light")
        page.goto(file.resolve().as_uri())
        yield page
    finally:
        page.evaluate("localStorage.clear()")
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.goto("about:blank")
    assert trouble == []


def serious(page: Any, axe: str) -> list[Any]:
    """What the accessibility checker finds wrong with a page, light and dark."""
    page.evaluate(axe)
    found = []
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        found += page.evaluate(_SERIOUS)
    return found


_SERIOUS = """axe.run(document, { resultTypes: ['violations'] }).then(found => found.violations
  .filter(one => ['serious', 'critical'].includes(one.impact)).map(one => [one.id, one.nodes[0].target]))"""


def axe_source(folder: Path) -> str:
    """The accessibility checker, fetched into a temporary folder."""
    known = os.environ.get("PATHX_AXE")
    if known:
        return Path(known).read_text(encoding="utf-8")
    npm = shutil.which("npm")
    if npm is None:
        missing("npm is not installed: apt install npm")
    command = [str(npm), "install", "--prefix", str(folder), "--ignore-scripts", "--no-audit", "--no-fund", AXE]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        missing(f"npm cannot fetch {AXE}: {done.stderr.strip()[-200:]}")
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")
