"""Make the pictures of README.md and docs/pictures.md that pathx draws: `python docs/pictures.py`."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
PICTURES = {
    "cat": ("figure.png", ("explain", "examples/cat.png")),
    "cat-not-lynx": ("figure.png", ("explain", "examples/cat.png", "--target", "tiger cat", "--against", "lynx")),
    "coffee-features": ("sheet.png", ("decompose", "examples/coffee.png", "--features", "5")),
}
"""By the name of the picture: the file that pathx writes, and how it is called."""


def main() -> None:
    for name, (file, arguments) in PICTURES.items():
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "pathx", *arguments, "--out", out, "--quiet"]
            subprocess.run(command, cwd=ROOT, check=True)
            (made,) = Path(out).rglob(file)
            Image.open(made).convert("RGB").save(ROOT / f"docs/images/{name}.jpg", quality=82, optimize=True)


if __name__ == "__main__":
    main()
