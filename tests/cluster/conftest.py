"""Tests on a real Ray, which all tests of this folder share; where Ray is not installed they are left out."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.cluster import photos_and_model, two_nodes


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Two nodes on this machine, which this process has joined."""
    pytest.importorskip("ray", reason="Ray is an extra: pip install 'pathx-relu[ray]'")
    with two_nodes() as made:
        yield made


@pytest.fixture
def load(here: Path) -> partial[Any]:
    """Seven photos in `photos`, and what loads the network `model.pt`."""
    return photos_and_model(here)
