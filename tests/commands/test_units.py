"""`pathx units`: what is refused, and what is shown of one channel."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx
from support.gathered import OPTIONS, channels, document, photos

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture
def folder() -> str:
    return photos()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--by", "luck"), "contribution or activation"),
        (("--top", "0"), "too few"),
        (("--layers", "9"), "no layer 9"),
        (("--layers", "1"), "not on the path"),
        (("--channels", "x"), "--channels takes numbers"),
        (
            ("--show", "4", "x"),
            "--show takes an activation or a layer, and a channel's number, such as 17 50; not '4 x'",
        ),
    ],
)
def test_what_is_refused(pathx_: Pathx, folder: str, options: tuple[str, str], message: str) -> None:
    done = pathx_("units", folder, *OPTIONS, *options, "--out", "out")
    assert done.status == 2
    assert message in done.err
    assert not Path("out").exists()


def test_more_references_than_images_take_no_memory(pathx_: Pathx, folder: str) -> None:
    assert pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures", "--top", 10**12).status == 0
    assert max(len(entry["references"]) for _, entry in channels(document())) == document()["images"]


def test_one_channel_is_shown(pathx_: Pathx, folder: str) -> None:
    pathx_("units", folder, *OPTIONS, "--out", "out", "--no-pictures", "--channels", "0-3")
    name, entry = next((name, entry) for name, entry in channels(document()) if entry["references"])
    done = pathx_("units", "--show", name, entry["channel"], "--out", "out")
    assert done.status == 0
    assert entry["words"] in done.out
    assert entry["references"][0]["file"] in done.out
    assert (
        pathx_("units", "--show", "4", entry["channel"], "--out", "out", "--format", "json").documents[0]["layer"] == 4
    )
    for arguments, message in (
        (("nothing", 0, "--out", "out"), "has no units of 'nothing'"),
        ((name, 99, "--out", "out"), "has no channel 99"),
        ((name, 0, "--out", "photos"), "no units.json"),
    ):
        done = pathx_("units", "--show", *arguments)
        assert done.status == 2
        assert message in done.err
    nothing = pathx_("units")
    assert nothing.status == 2 and "give images or folders of them, or --show LAYER CHANNEL" in nothing.err
