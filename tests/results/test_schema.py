"""Documents in folders of results may be damaged, or somebody else's: each costs itself and nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.saved import explained

from pathx.errors import PathxError
from pathx.evaluation.common import common_of_results
from pathx.results.schema import misfit, read_document, shape_of


def places(shape: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every value that documents must hold."""
    if place:
        yield place
    for key, inner in shape.items() if isinstance(shape, dict) else [(0, shape[0])] if isinstance(shape, list) else ():
        if key not in (None, "*") and not str(key).endswith("?") and not (isinstance(inner, dict) and None in inner):
            yield from places(inner, (*place, key))


def damaged(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The document with each of its values gone, or of another type."""
    for place in {*places(shape_of("path")), ("files", "tensors")} - {("schema",)}:
        for wrong in (None, True, {"x": 1}, [[]], "../../x"):
            changed = copy.deepcopy(document)
            inside: Any = changed
            for key in place[:-1]:
                inside = inside[key]
            same_type = isinstance(wrong, type(inside[place[-1]])) or (wrong == "../../x" and place == ("width",))
            if wrong is None and isinstance(inside, dict) and inside is not changed["files"]:
                del inside[place[-1]]
            elif same_type:
                continue
            else:
                inside[place[-1]] = wrong
            yield f"{place} {wrong}", changed


def test_a_damaged_document_costs_itself(tmp_path: Path) -> None:
    (made,) = explained(tmp_path, "cat", depth=1, width=2, pictures=False, save_tensors=True)
    assert misfit(made.document, shape_of("path")) is None
    file = made.folder / "path.json"
    tried = 0
    for what, document in damaged(made.document):
        file.write_text(json.dumps(document))
        with pytest.raises(PathxError, match=r"path\.json is damaged \(.+\): make it again$"):
            read_document(file)
        tried += bool(what)
    assert tried > 100
    with pytest.raises(PathxError, match=r"there is no explanation to use in .+path\.json is damaged"):
        common_of_results([str(tmp_path / "out")])
