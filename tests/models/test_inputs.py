"""The one way from a file to what the network sees of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.small import loaded, picture

from pathx.errors import PathxError
from pathx.images.read import KEPT_PIXELS, open_image
from pathx.models.inputs import read_input
from pathx.models.preprocessing import Preprocessing


def test_the_input_is_made_of_all_pixels_and_a_smaller_copy_is_kept(tmp_path: Path) -> None:
    preprocessing = loaded().preprocessing
    file = picture(tmp_path / "large.png", (2400, 1800))
    assert KEPT_PIXELS < 2400 * 1800
    found = read_input(file, preprocessing)
    assert torch.equal(found.tensor, preprocessing(open_image(file).pixels))
    assert found.image.pixels.size == (1200, 900) and (found.image.width, found.image.height) == (2400, 1800)


def test_whatever_is_wrong_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preprocessing = loaded().preprocessing
    with pytest.raises(PathxError, match="no such file"):
        read_input(tmp_path / "none.png", preprocessing)

    def trips(self: Preprocessing, image: object) -> None:
        raise ZeroDivisionError("over")

    monkeypatch.setattr(Preprocessing, "__call__", trips)
    with pytest.raises(PathxError, match=r"unexpected ZeroDivisionError: over \(set PATHX_DEBUG=1"):
        read_input(picture(tmp_path / "a.png"), preprocessing)
