"""One type for what became of an image, with a state."""

from __future__ import annotations

import pytest

from pathx.errors import PathxError
from pathx.results.result import Kind, Result, State


def test_a_failure_says_why_and_holds_nothing() -> None:
    failed = Result.failure("cat.png", PathxError("it is empty"))
    assert failed.failed and str(failed.error) == "it is empty" and not failed.files and not failed.document
    with pytest.raises(AttributeError, match="this is a explanation that is failed: there is no explanation in it"):
        _ = failed.explanation


def test_only_what_was_made_is_in_it() -> None:
    kept = Result("cat.png", State.kept, Kind.decomposition)
    assert not kept.failed
    with pytest.raises(AttributeError, match="a decomposition that is kept: there is no contrast in it"):
        _ = kept.contrast
    with pytest.raises(AttributeError, match="there is no decomposition in it"):  # not computed just now
        _ = kept.decomposition
