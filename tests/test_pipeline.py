"""From a file to the network: all pixels, the right way up, in the channels that it takes."""

from __future__ import annotations

from pathlib import Path

import torch
from PIL import Image
from support.small import loaded, picture

from pathx.images.find import ImageFile
from pathx.images.read import KEPT_PIXELS, open_image
from pathx.models.preprocessing import Preprocessing
from pathx.pipeline import Input, read_input


def read(file: Path, preprocessing: Preprocessing) -> Input:
    found = read_input(ImageFile(str(file), file.name), preprocessing)
    assert isinstance(found, Input)
    return found


def test_the_input_is_made_of_all_pixels_and_a_smaller_copy_is_kept(tmp_path: Path) -> None:
    preprocessing = loaded().preprocessing
    file = picture(tmp_path / "large.png", (2400, 1800))
    assert KEPT_PIXELS < 2400 * 1800
    found = read(file, preprocessing)
    assert torch.equal(found.tensor, preprocessing(open_image(file).pixels))
    assert found.image.pixels.size == (1200, 900) and (found.image.width, found.image.height) == (2400, 1800)


def test_a_network_of_four_channels_sees_what_is_transparent(tmp_path: Path) -> None:
    """The colours below it too, which all others see on white; upright like the rest."""
    bands = [Image.frombytes("L", (4, 2), bytes(range(start, start + 80, 10))) for start in (0, 60, 120, 170)]
    stored = Image.merge("RGBA", bands)
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned clockwise
    stored.save(tmp_path / "turned.png", exif=exif)
    upright = stored.transpose(Image.Transpose.ROTATE_270)
    for channels, seen in ((4, upright), (3, Image.alpha_composite(Image.new("RGBA", (2, 4), "white"), upright))):
        plain = Preprocessing((channels, 4, 2), (0.0,) * channels, (1.0,) * channels)
        found = read(tmp_path / "turned.png", plain)
        pixels = torch.tensor(list(seen.tobytes())).reshape(4, 2, 4)[..., :channels].permute(2, 0, 1) / 255
        torch.testing.assert_close(found.tensor, pixels)
        assert found.image.pixels.mode == "RGB" and found.image.layer is None
