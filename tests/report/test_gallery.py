"""Galleries: rows with labels, predictions and failures, and nothing of an earlier report."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from PIL import Image, ImageChops
from support.command_line import Pathx, network, picture, scripted
from support.reports import data_of


def test_the_gallery_knows_labels_predictions_and_failures(here: Path, pathx_: Pathx) -> None:
    model = scripted(network())
    for number, folder in enumerate(("cat", "red fox", "dog", "cat")):
        picture(f"photos/{folder}/{number}.png", seed=number)
    Path("photos/dog/broken.png").write_text("no picture")
    ran = pathx_("explain", "photos", "--model", model, "--out", "out", "--report")
    assert ran.status == 1 and "out/report/index.html" in ran.err
    data = data_of(Path("out/report/index.html"))
    lines = {line["file"]: line for line in map(json.loads, Path("out/index.jsonl").read_text().splitlines())}
    assert {row["file"] for row in data["rows"]} == set(lines)
    for row in data["rows"]:
        line = lines[row["file"]]
        if "error" in line:
            assert row["error"] == line["error"]
            continue
        top = line["top"]
        assert (row["truth"], row["predicted"]) == (line["label"], top[0]["label"])
        assert row["margin"] == pytest.approx(top[0]["probability"] - top[1]["probability"])
        assert row["wrong"] is (not line["correct"])
        assert _differs(Path("out/report") / row["thumbnail"], row["file"])
        around = data_of(Path("out/report") / row["page"])["around"]
        assert Path("out/report/pages", around["index"]).resolve() == Path("out/report/index.html").resolve()
    shown = [row for row in data["rows"] if "error" not in row]
    assert [row["wrong"] for row in shown] == sorted((row["wrong"] for row in shown), reverse=True)  # wrong ones first
    chain = [data_of(Path("out/report") / row["page"])["around"] for row in shown]
    assert [one["next"] for one in chain[:-1]] == [os.path.basename(row["page"]) for row in shown[1:]]
    assert chain[0]["previous"] is None and chain[-1]["next"] is None


def _differs(small: Path, photo: str) -> bool:
    """Whether something is drawn on the small picture of a photo."""
    with Image.open(small) as drawn, Image.open(photo) as plain:
        difference = ImageChops.difference(drawn.convert("RGB"), plain.convert("RGB").resize(drawn.size))
    return max(high for _, high in difference.getextrema()) > 40
