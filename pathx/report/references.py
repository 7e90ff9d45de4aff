"""What channels look for, from the units.json of `pathx units`: words, and crops of the images where each matters most."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from PIL import Image

from pathx.errors import PathxError
from pathx.images.read import open_image
from pathx.models.preprocessing import Preprocessing
from pathx.report.encoding import encode_small
from pathx.results.files import UNFIT, channel_key

MOST_CHANNELS, _CROPS, _SIDE = 32, 3, 72


class References:
    """What is known of the channels of networks; crops are made when a page first asks for them.

    Args:
        units: what every units.json says.
    """

    def __init__(self, units: Sequence[dict[str, Any]]) -> None:
        self._known: dict[tuple[str, str, int], tuple[dict[str, Any], Preprocessing]] = {}
        self._shown: dict[tuple[str, str, int], dict[str, Any]] = {}
        for document in units:
            with suppress(*UNFIT, PathxError):  # not written by a pathx that we know
                self._add(document)

    def _add(self, document: dict[str, Any]) -> None:
        seen, sha256 = Preprocessing(**document["preprocessing"]), document["model"]["sha256"]
        for layer in document["layers"]:
            for tensor in layer["tensors"]:
                for channel in tensor["channels"]:
                    if channel["references"]:
                        self._known.setdefault((sha256, tensor["name"], channel["channel"]), (channel, seen))

    def of(
        self, channels: Iterable[tuple[str, int]], sha256: str, most: int = MOST_CHANNELS
    ) -> dict[str, dict[str, Any]]:
        """By `tensor[channel]`, what is known of the first channels asked for.

        Args:
            sha256: of the model; what was gathered of others is left out.
            most: how many channels at most.
        """
        wanted = [(sha256, *channel) for channel in dict.fromkeys(channels) if (sha256, *channel) in self._known]
        return {channel_key(*place[1:]): self._of(place) for place in wanted[:most]}

    def _of(self, place: tuple[str, str, int]) -> dict[str, Any]:
        if place not in self._shown:
            channel, seen = self._known[place]
            crops = [_crop(one, seen) for one in channel["references"][:_CROPS]]
            self._shown[place] = {"words": channel["words"], "crops": [one for one in crops if one]}
        return self._shown[place]


def _crop(reference: dict[str, Any], preprocessing: Preprocessing) -> dict[str, str] | None:
    """The part of an image that a unit saw; None where the image is gone or has changed, or nothing can be made of it."""
    try:
        return _cut(reference, preprocessing)
    except (PathxError, *UNFIT):
        return None


def _cut(reference: dict[str, Any], preprocessing: Preprocessing) -> dict[str, str] | None:
    image = open_image(reference["file"])
    if image.sha256 != reference["sha256"]:
        return None
    _, height, width = preprocessing.input_size
    left, top, right, bottom = preprocessing.region(image.width, image.height)
    across, down = (right - left) / width, (bottom - top) / height
    a, b, c, d = reference["receptive_field"]
    box = (left + a * across, top + b * down, left + c * across, top + d * down)
    size = (_SIDE, min(10 * _SIDE, max(1, round(_SIDE * (box[3] - box[1]) / (box[2] - box[0])))))
    crop = image.pixels.transform(size, Image.Transform.EXTENT, box, Image.Resampling.BILINEAR)
    return {
        "src": encode_small(crop, max(size)),
        "file": str(reference["file"]),
        "label": str(reference.get("label") or ""),
    }
