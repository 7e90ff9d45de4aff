"""Labels of a loaded network."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.small import LABELS, loaded

from pathx.errors import PathxError


def test_one_label_per_class_or_names_by_number() -> None:
    model = loaded()
    assert model.labels_for(4) == LABELS
    bare = replace(model, labels=())
    assert bare.labels_for(3) == ("class 0", "class 1", "class 2")
    assert bare.labels_for(1) == ("negative", "positive")
    assert replace(model, labels=("no", "yes")).labels_for(1) == ("no", "yes")


@pytest.mark.parametrize("classes", [1, 3, 5])
def test_labels_that_do_not_fit_are_refused(classes: int) -> None:
    expected = 2 if classes == 1 else classes
    with pytest.raises(
        PathxError, match=f"4 labels were given, but small has {expected} classes: give one label per class"
    ):
        loaded().labels_for(classes)
