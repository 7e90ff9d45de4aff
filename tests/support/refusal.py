"""What `load_model` says of a model that it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from pathx.errors import PathxError
from pathx.models.load import load_model


def refusal(*arguments: Any, usage: bool = True, **options: Any) -> str:
    """One line, about the call unless something else failed."""
    with pytest.raises(PathxError) as caught:
        load_model(*arguments, **options)
    assert "\n" not in str(caught.value) and caught.value.usage is usage
    return str(caught.value)
