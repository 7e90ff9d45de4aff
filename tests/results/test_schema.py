"""Documents in folders of results may be damaged, or somebody else's: each costs itself and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Pathx, network, picture, scripted

from pathx.errors import PathxError
from pathx.evaluation.common import common_of_results
from pathx.results.files import read_document
from pathx.results.schema import PATH_SHAPE, misfit

pytestmark = pytest.mark.usefixtures("one_thread", "here")


@pytest.fixture
def folder(pathx_: Pathx) -> Path:
    """Results of two images; that of the first is to be damaged."""
    done = pathx_("explain", picture("a.png"), picture("b.png"), "--model", scripted(network()), "--save-tensors")
    assert done.status == 0, done.err
    (folder,) = Path("pathx-out/a.png").iterdir()
    return folder


def places(shape: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value that documents must hold."""
    if place:
        yield place
    for key, inner in shape.items() if isinstance(shape, dict) else ((0, one) for one in shape or ()):
        if isinstance(inner, (dict, list)):
            yield from places(inner, (*place, key))
        else:
            yield (*place, key)


def damaged(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document with each of its values gone, or of another type."""
    for place in places(PATH_SHAPE):
        for wrong in (None, True, {"x": 1}, [[]], "../../x"):
            changed = copy.deepcopy(document)
            inside: Any = changed
            for key in place[:-1]:
                inside = inside[key]
            same_type = isinstance(wrong, type(inside[place[-1]])) or (wrong == "../../x" and place == ("width",))
            if wrong is None and isinstance(inside, dict):
                del inside[place[-1]]
            elif same_type:
                continue
            else:
                inside[place[-1]] = wrong
            yield f"{place} {wrong}", changed


def test_what_is_written_fits(folder: Path) -> None:
    assert misfit(json.loads((folder / "path.json").read_text()), PATH_SHAPE) is None


def test_a_damaged_document_costs_itself(folder: Path) -> None:
    file = folder / "path.json"
    count = 0
    for what, document in damaged(json.loads(file.read_text())):
        file.write_text(json.dumps(document))
        with pytest.raises(PathxError, match=r"path\.json is damaged \(.+\): make it again$"):
            read_document(file)
        if count % 25 == 0:
            made = common_of_results(["pathx-out"])
            assert list(made.unread) == [str(file)] and len(made.paths) == 1, what
        count += 1
    assert count > 100
