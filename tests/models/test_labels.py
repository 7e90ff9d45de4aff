from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathx.errors import PathxError
from pathx.models.labels import (
    Targets,
    parse_targets,
    read_labels,
    resolve_target,
    slug,
    target_slug,
    true_classes,
)

LABELS = ("tench", "red fox", "tiger cat", "Cardigan", "cardigan", "jack-o'-lantern", "crane", "tiger", "crane")


@pytest.mark.parametrize("text", ["red fox", "Red Fox", "red_fox", "RED-FOX", " red  fox ", "1", "+1"])
def test_a_class_by_index_or_label(text: str) -> None:
    assert resolve_target(text, LABELS) == 1


def test_exact_spellings_and_numbers_tell_labels_apart() -> None:
    assert resolve_target("Cardigan", LABELS) == 3
    assert resolve_target("cardigan", LABELS) == 4
    assert resolve_target("JACK O' LANTERN", LABELS) == 5
    assert [resolve_target(text, ("7", "3", "1")) for text in ("2", "7")] == [2, 0]  # labels that are numbers


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("crane", "target 'crane' is the label of classes 6, 8: give the index"),
        ("CARDIGAN", "target 'CARDIGAN' is the label of classes 3, 4: give the index"),
        ("9", "target 9 is out of range: the classes are 0 to 8"),
        ("-1", "target -1 is out of range: the classes are 0 to 8"),
        ("tigre cat", "no class is called 'tigre cat': did you mean 'tiger cat'?"),
        ("xylophone", "no class is called 'xylophone': give a label or an index from 0 to 8"),
        ("top:0", "target 'top:0' must be top:K with K from 1 to 9"),
        ("top:10", "target 'top:10' must be top:K with K from 1 to 9"),
        ("top:x", "target 'top:x' must be top:K with K from 1 to 9"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_remedy(text: str, message: str) -> None:
    with pytest.raises(PathxError, match=f"^{re.escape(message)}$") as caught:
        parse_targets([text], LABELS)
    assert caught.value.usage


def test_targets_keep_their_order_and_come_once() -> None:
    ranking = [5, 1, 2, 0, 3, 4, 6, 7, 8]
    assert parse_targets([], LABELS).targets_for(ranking) == (5,)
    assert parse_targets(["top:3"], LABELS).targets_for(ranking) == (5, 1, 2)
    assert parse_targets(["tench", "TOP:2", "1", "red_fox", "7"], LABELS).targets_for(ranking) == (0, 5, 1, 7)
    assert parse_targets(["Positive"], ("negative", "positive")).targets_for([0, 1]) == (1,)


@given(st.text(max_size=300))
def test_every_slug_is_a_safe_file_name(label: str) -> None:
    name = slug(label)
    assert name
    assert len(name.encode()) <= 126
    assert not re.search(r"[\s/\\:*?\"<>|.\x00-\x1f]", name)
    assert slug(name) == name


def on_any_file_system(name: str) -> str:
    """What is left of a name where neither case nor the normal form of Unicode counts."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFKC", name).casefold())


LOOKALIKES = [
    *("a", "A", "a 1", "a-1", "a 1 1", "A_2", "a-2-2"),
    *("é", "e\u0301", "É", "\uff21", "¹", "1", "con", "CON", "!", "?"),
]


@given(st.lists(st.sampled_from(LOOKALIKES) | st.text(max_size=5), min_size=1, max_size=12))
def test_the_folders_of_different_classes_differ(labels: list[str]) -> None:
    names = [target_slug(index, labels) for index in range(len(labels))]
    assert len({on_any_file_system(name) for name in names}) == len(labels)
    assert not any(re.fullmatch(r"(?i)(con|prn|aux|nul|com[\d¹²³]|lpt[\d¹²³])(\..*)?", name) for name in names)
    assert not any(name.endswith((".", " ")) for name in names)


def test_the_folder_carries_the_index_only_where_needed() -> None:
    for label, expected in {
        "jack-o'-lantern": "jack-o-lantern",
        "../etc": "etc",
        "Straße": "strasse",
        "NUL": "class-nul",
    }.items():
        assert slug(label) == expected
    assert [target_slug(index, LABELS) for index in (2, 4, 6)] == ["tiger-cat", "cardigan-4", "crane-6"]
    assert [target_slug(index, ("a", "a", "a 1")) for index in range(3)] == ["a-0", "a-1-1", "a-1"]


@pytest.mark.parametrize(
    "content",
    [
        "cat\nred fox\n\n",
        "\ufeffcat\r\n  red fox \r\n",
        '["cat", "red fox"]',
        '{"1": "red fox", "0": "cat"}',
        '{"0": ["n01", "cat"], "1": ["n02", "red fox"]}',
    ],
)
def test_label_files(tmp_path: Path, content: str) -> None:
    file = tmp_path / "labels"
    file.write_bytes(content.encode())
    assert read_labels(file) == ("cat", "red fox")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cat\n\ndog", "label 1 in {} must be a text that is not empty, not ''"),
        (b"", 'the labels in {} must be a list such as ["cat", "dog"]'),
        (b"[1, 2]", "label 0 in {} must be a text that is not empty, not 1"),
        (b'{"1": "cat"}', 'the labels in {} must have the keys "0" to "0"'),
        *(
            (text, "the labels in {} are not valid JSON: ")
            for text in (b'["cat"', b"[" * 10**5, b"[%s]" % (b"9" * 5000), b'["a", NaN]', b"[1e400]")
        ),
        (b'{"0": "a", "1": {}}', "label 1 in {} must be a text that is not empty, not {{}}"),
        (
            b"\xff\xfe",
            "the labels in {} cannot be read (it is not UTF-8 text): give a text file with one label per line, or JSON",
        ),
    ],
)
def test_label_files_that_are_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "labels.txt"
    file.write_bytes(content)
    with pytest.raises(PathxError) as caught:
        read_labels(file)
    assert str(caught.value).startswith(message.format(file))
    assert caught.value.usage
    with pytest.raises(PathxError, match=r"cannot be read \(No such file.*\): give a text file"):
        read_labels(tmp_path / "none.txt")


def test_a_true_class_is_explained_beside_a_wrong_prediction_only() -> None:
    assert Targets().targets_for([2, 0, 1], truth=0) == (2, 0)
    assert Targets().targets_for([2, 0, 1], truth=2) == (2,)
    assert Targets((1,)).targets_for([2, 0, 1], truth=0) == (1,)
    assert Targets((1, range(2))).targets_for([2, 0, 1], truth=1) == (1, 2, 0)


def test_a_folder_is_a_label_only_by_name() -> None:
    labels = ("cat", "red fox", "crane", "crane", "7")
    assert true_classes(None, "photos/Red_Fox/1.png", labels) == [1]
    assert true_classes(None, "photos/x/../cat/1.png", labels) == [0]
    assert true_classes(None, "cat/photos/1.png", labels) == []
    assert true_classes(None, "crane/1.png", labels) == [2, 3]  # either of two
    assert true_classes(None, "0/1.png", labels) == []  # not the class of that number
    assert true_classes(None, "7/1.png", labels) == [4]
    assert true_classes("red-fox", "cat/1.png", labels) == [1]
    assert true_classes("0", None, labels) == [0]
    assert true_classes(None, None, labels) == []
    with pytest.raises(PathxError, match="no class is called 'dog'"):
        true_classes("dog", None, labels)
