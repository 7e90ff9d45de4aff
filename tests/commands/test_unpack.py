"""`pathx unpack`, and what is said where results are packed or are not."""

from __future__ import annotations

import pytest
from support.command_line import Pathx
from support.gathered import photos

pytestmark = pytest.mark.usefixtures("one_thread", "here")
QUICK = ("--no-pictures", "--depth", 2, "--width", 3, "--batch-size", 2)


def test_what_cannot_be_packed_is_one_line(pathx_: Pathx) -> None:
    folder, model = photos(), "model.pt"
    ended = pathx_("explain", folder, "--model", model, "--pack", "zip")
    assert ended.status == 2 and "into tar or parquet, not into 'zip'" in ended.err
    ended = pathx_("explain", "photos", "--model", model, "--pack", "tar", "--report")
    assert ended.status == 2 and "--report" in ended.err
    assert pathx_("explain", "photos", "--model", model, *QUICK, "--pack", "tar").status == 0
    for command in ("report", "sheet"):
        ended = pathx_(command, "pathx-out")
        assert ended.status == 2 and "pathx unpack pathx-out FOLDER" in ended.err
    ended = pathx_("unpack", "photos", "elsewhere")
    assert ended.status == 2 and "holds no packed results" in ended.err
