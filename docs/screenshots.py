"""Make the pictures of docs/report.md: `python docs/screenshots.py`, with Chromium and Playwright installed."""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
CROPS = 6


def pathx(*arguments: object) -> None:
    subprocess.run([sys.executable, "-m", "pathx", *map(str, arguments)], cwd=ROOT, check=True)


def crops(folder: Path) -> Path:
    """A folder of images for a gallery: parts of the two photographs that come with pathx."""
    for name, label in (("cat", "tiger cat"), ("coffee", "espresso")):
        photo = Image.open(ROOT / f"examples/{name}.png").convert("RGB")
        (folder / label).mkdir(parents=True)
        for number in range(CROPS):
            side = round(min(photo.size) * (1 - 0.1 * (number % 4)))
            left = round((photo.width - side) * number / (CROPS - 1))
            top = round((photo.height - side) * (number % 3) / 2)
            photo.crop((left, top, left + side, top + side)).save(folder / label / f"{number + 1}.png")
    return folder


def hold(page: Any) -> None:
    """A channel is held, so that the panel tells of it."""
    page.locator(".node.channel").nth(10).dispatch_event("click")


def nothing(page: Any) -> None:
    """The page as it opens."""


def shot(browser: Any, file: Path, name: str, size: tuple[int, int], scheme: str, act: Callable[[Any], None]) -> None:
    page = browser.new_page(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)
    page.goto(file.resolve().as_uri())
    page.wait_for_timeout(500)
    act(page)
    page.wait_for_timeout(500)
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    page.close()
    image.save(ROOT / f"docs/images/report-{name}.jpg", quality=80, optimize=True)


def main() -> None:
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        photos, units, one, many = folder / "photos", folder / "units", folder / "one", folder / "many"
        crops(photos)
        pathx("units", photos, "-q", "--out", units)
        pathx("explain", "examples/cat.png", "--units", units, "--report", "-q", "--out", one)
        pathx("decompose", "examples/coffee.png", "--features", 5, "--report", "-q", "--out", one)
        pathx("explain", photos, "--report", "-q", "--out", many)
        pathx("report", units, "-q")
        cat, coffee = sorted(one.rglob("report.html"))
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=FLAGS)
        shot(browser, cat, "cat", (1280, 1080), "light", hold)
        shot(browser, coffee, "features", (1280, 760), "dark", nothing)
        shot(browser, many / "report/index.html", "gallery", (1280, 760), "light", nothing)
        shot(browser, units / "report.html", "atlas", (1280, 760), "light", nothing)
        browser.close()


if __name__ == "__main__":
    main()
