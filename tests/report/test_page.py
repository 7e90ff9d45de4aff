"""A page is one file under a strict policy, and whatever stands in its data is data."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections import Counter
from html.parser import HTMLParser
from importlib.resources import files

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.reports import HOSTILE, data_of

from pathx.report.page import joined_modules, json_in_page, page

SCRIPTS = ("explanation.js", "gallery.js", "measures.js")
TEXT = st.one_of(
    st.text(), st.sampled_from(HOSTILE), st.sampled_from(["</script>", "<!--", "]]>", "\u2028", "{{data}}"])
)
VALUES = st.recursive(
    TEXT | st.integers() | st.booleans() | st.none() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()
        self.attributes: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[tag] += 1
        self.attributes += attrs


@settings(max_examples=10)
@given(st.dictionaries(TEXT, VALUES, max_size=4), TEXT)
def test_data_and_title_never_become_markup(data: dict[str, object], title: str) -> None:
    plain, made = page("gallery.js", "plain", {}), page("gallery.js", title, data)
    assert Tags(made).found == Tags(plain).found
    assert data_of(made) == json.loads(json.dumps(data))


def test_what_is_no_number_is_null() -> None:
    assert json.loads(json_in_page({"a": [float("nan"), float("inf"), 1.5], "b": (float("-inf"),)})) == {
        "a": [None, None, 1.5],
        "b": [None],
    }


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_policy_allows_the_own_style_and_script_and_nothing_else(script: str) -> None:
    made = page(script, "x", {})
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', made)
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy[1].split(";"))
    for tag, rule in (("<style>", "style-src"), ('<script type="module">', "script-src")):
        start = made.index(tag) + len(tag)
        content = made[start : made.index("</", start)] if tag == "<style>" else made[start : made.rindex("</script>")]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["default-src"] == rules["base-uri"] == rules["form-action"] == "'none'"
    assert "unsafe" not in policy[1] and "http" not in policy[1]
    assert not [name for name, _ in Tags(made).attributes if name.startswith("on") or name == "style"]


@pytest.mark.parametrize("script", SCRIPTS)
def test_joined_modules_are_whole(script: str) -> None:
    joined = joined_modules(script)
    names = re.findall(r"^(?:async )?(?:function|const|let|class) (\w+)", joined, re.MULTILINE)
    assert [name for name, count in Counter(names).items() if count > 1] == []  # they share one scope
    assert not re.search(r"^(import|export)\b", joined, re.MULTILINE)


def test_scripts_never_write_markup() -> None:
    for module in files("pathx.report").joinpath("assets").iterdir():
        if module.name.endswith(".js"):
            text = module.read_text(encoding="utf-8")
            assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", text)
            assert not re.search(
                r"fetch\(|XMLHttpRequest|WebSocket|sendBeacon|https?://(?!www\.w3\.org/2000/svg)", text
            )
