"""How pages of pictures are looked at."""

from __future__ import annotations

from PIL import Image, ImageChops


def paper_around(page: Image.Image, border: int = 8) -> bool:
    """Whether the outermost pixels are blank."""
    blank = page.copy()
    blank.paste("white", (border, border, page.width - border, page.height - border))
    return ImageChops.difference(blank, Image.new("RGB", page.size, "white")).getbbox() is None
