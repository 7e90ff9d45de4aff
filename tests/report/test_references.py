"""What channels look for, on pages: of the same model only, of images that are still the same, and not too many."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.small import picture

from pathx.images.read import open_image
from pathx.report.collect import References

SEEN = {"input_size": (3, 10, 10), "mean": (0.5,) * 3, "std": (0.25,) * 3}


def units(photo: Path, channels: int = 1, **changes: Any) -> dict[str, Any]:
    """A units.json whose channels each have one reference, to a photo."""
    about = {"file": str(photo), "sha256": open_image(photo).sha256, "receptive_field": [0, 0, 5, 10], "label": "cat"}
    entries = [
        {"channel": number, "words": f"cat {number}", "references": [about | changes]} for number in range(channels)
    ]
    tensors = [{"name": "relu", "channels": [*entries, {"channel": 99, "words": "", "references": []}]}]
    return {"preprocessing": SEEN, "model": {"sha256": "ours"}, "layers": [{"layer": 1, "tensors": tensors}]}


def test_a_channel_has_words_and_crops_of_what_it_saw(tmp_path: Path) -> None:
    file = picture(tmp_path / "photo.png", (20, 20))
    found = References([units(file)]).of([("relu", 0), ("relu", 99), ("other", 0), ("relu", 0)], "ours")
    assert list(found) == ["relu[0]"] and found["relu[0]"]["words"] == "cat 0"
    (crop,) = found["relu[0]"]["crops"]
    assert crop["src"].startswith("data:image/") and (crop["file"], crop["label"]) == (str(file), "cat")


def test_what_is_of_another_model_is_left_out(tmp_path: Path) -> None:
    assert References([units(picture(tmp_path / "photo.png"))]).of([("relu", 0)], "theirs") == {}


@pytest.mark.parametrize("change", [{"sha256": "0" * 64}, {"file": "nowhere.png"}])
def test_an_image_that_is_gone_or_another_has_no_crop(tmp_path: Path, change: dict[str, str]) -> None:
    found = References([units(picture(tmp_path / "photo.png"), **change)]).of([("relu", 0)], "ours")
    assert found == {"relu[0]": {"words": "cat 0", "crops": []}}


def test_a_document_that_is_none_adds_nothing(tmp_path: Path) -> None:
    good = units(picture(tmp_path / "photo.png"))
    assert list(References([{}, {"preprocessing": 3}, good]).of([("relu", 0)], "ours")) == ["relu[0]"]
