"""Documents as their files have them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pathx.results.files import document_bytes

text = st.text(st.sampled_from('a"\\\né\u2028\udc80'))  # all that JSON escapes
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | text
values = st.recursive(plain, lambda inner: st.lists(inner) | st.dictionaries(text, inner), max_leaves=30)


@settings(max_examples=30)
@given(st.dictionaries(text, values))
def test_a_document_is_read_as_it_was_given(document: dict[str, Any]) -> None:
    assert json.loads(document_bytes(document)) == document


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        document_bytes({"rows": [[1.0, number]]})
