from __future__ import annotations

import json
import pickle
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathx.errors import (
    PathxError,
    as_text,
    harmless,
    parse_json,
    public_address,
    shown,
    without_secrets,
)

HOSTILE = [chr(code) for code in (*range(32), *range(127, 160), 0x2028, 0x2029, *range(0x202A, 0x202F))]
HOSTILE += [chr(code) for code in (*range(0x2060, 0x2070), 0xFEFF, 0xAD, 0xD800, 0xDCFF, 0xE0001, 0x10FFFF)]


@given(st.text(st.characters(codec=None) | st.sampled_from(HOSTILE)))
def test_nothing_that_acts_on_a_terminal_is_left(text: str) -> None:
    shown = harmless(text)
    kinds = {unicodedata.category(character) for character in shown if character not in "\u200c\u200d"}
    assert not kinds & {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    assert harmless(shown) == shown
    shown.encode("utf-8")


def test_what_people_write_stays_as_it_is() -> None:
    for text in (
        "tiger cat",
        "Straße",
        "狐",
        "赤 い\u3000狐",
        "क्\u200dष",
        "naïve\u00a0café",
        "👩\u200d🔬",
    ):
        assert harmless(text) == text
    assert harmless("\x1b]0;title\x07\u202egnp.exe\n") == r"\x1b]0;title\x07\u202egnp.exe\n"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "＝1"])  # noqa: RUF001
def test_no_text_is_a_formula(text: str) -> None:
    assert as_text(text) == harmless("'" + text)
    assert as_text("a" + text) == harmless("a" + text)
    assert as_text("\x1b]0;\u202e\n") == r"\x1b]0;\u202e\n"
    assert as_text(-1.5) == -1.5


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "it is nested too deeply"),
        ("9" * 5000, "99… is too large a number"),
        ("-" + "9" * 301, "is too large a number"),
        ("[1e400]", "1e400 is too large a number"),
        ("[NaN]", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        (b"\xff\xfe\xff", "it is not UTF-8 text"),
        ("[1,]", "line 1 column"),
    ],
)
def test_json_that_others_wrote(text: str | bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason) as caught:
        parse_json(text)
    assert "\n" not in str(caught.value)


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_that_is_sound(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("https://me:secret@host/a.png", "https://host/a.png"),
        ("s3://KEY:secret@bucket/a.png", "s3://bucket/a.png"),
        ("sftp://me:s%40c@ret@host:22/a.tar#cat", "sftp://host:22/a.tar#cat"),
        ("https://token@host/a.png", "https://host/a.png"),
        ("https://host/@me/a.png", "https://host/@me/a.png"),
        ("abfss://container@account.example/a.png", "abfss://container@account.example/a.png"),
        ("s3://bucket/photo?.png", "s3://bucket/photo?.png"),
        ("photos/a?b=c.png", "photos/a?b=c.png"),
        ("https://host/a.png#access_token=secret", "https://host/a.png"),
    ],
)
def test_addresses_are_shown_without_logins(address: str, public: str) -> None:
    assert public_address(address) == public
    assert public_address(public) == public
    assert shown(address) == public
    assert without_secrets(f"x ({public}): y") == f"x ({public}): y"


SIGNED = {
    "amazon": "X-Amz-Algorithm=A&X-Amz-Credential=secret{0}&X-Amz-Expires={0}&X-Amz-Signature=secret{0}",
    "amazon-2": "AWSAccessKeyId=secret&Expires={0}&Signature=secret{0}",
    "google": "X-Goog-Date={0}&X-Goog-Signature=secret{0}",
    "azure": "sv=1&se={0}&sr=b&sp=r&sig=secret{0}",
}


@pytest.mark.parametrize("kind", SIGNED)
def test_a_signed_address_is_the_same_however_it_is_signed(kind: str) -> None:
    first, again, other = (f"https://host/a.png?v={v}&{SIGNED[kind].format(n)}" for v, n in ((1, 1), (1, 2), (2, 1)))
    assert public_address(first) == public_address(again) != public_address(other)
    assert re.fullmatch(r"https://host/a\.png\?\.\.\.[0-9a-f]{8}", public_address(first))
    for text in (f"cannot reach {first}: no", f"'{again}'", str(PathxError(f"{shown(first)} ({first})"))):
        assert "secret" not in without_secrets(text) and "https://host/a.png?..." in without_secrets(text)
    tokens = [public_address(f"https://host/a?token=secret{number}") for number in range(2)]
    assert tokens[0] != tokens[1] and "secret" not in "".join(tokens)


def test_nothing_is_added_to_a_message_on_its_way() -> None:
    error = PathxError("one line", usage=True)
    error.args = ("one line\n\nWhile executing %relu", *error.args[1:])  # as torch.fx does
    again = pickle.loads(pickle.dumps(error))
    assert str(error) == str(again) == "one line" and again.usage
