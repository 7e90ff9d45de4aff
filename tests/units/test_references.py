"""What was gathered, as people read it: words, entropy, the strongest channels, and the document that holds it all."""

from __future__ import annotations

import json
import math

import pytest

from pathx.explanation import LayerTensor
from pathx.units.files import Channel, Reference, Units


def channel(*labels: str, number: int = 0, images: int = 3, share: float = 0.5) -> Channel:
    references = tuple(
        Reference(f"{at}.png", "0" * 64, (number, 1, at), (0, 0, 4, 4), 1.0 / (at + 1), label, None)
        for at, label in enumerate(labels)
    )
    return Channel(2, "relu", number, references, images, share, (("cat", images),), 0.25)


def units(*channels: Channel) -> Units:
    own = {(one.tensor, one.channel): one for one in channels}
    tensors = {"relu": LayerTensor("relu", (9, 4, 4))}
    about = {"model": {}, "preprocessing": {}, "settings": {}}
    return Units(about, tensors, {"relu": 2}, own, 7, {"bad.png": "cut"})


@pytest.mark.parametrize(
    ("labels", "words", "entropy"),
    [
        (("cat", "dog", "cat", "cat"), "cat 3, dog 1 of 4", -(0.75 * math.log2(0.75) + 0.25 * math.log2(0.25))),
        (("dog", "cat"), "cat 1, dog 1 of 2", 1.0),  # among equals by name
        (("cat",) * 5, "cat 5 of 5", 0.0),
        (("a", "b", "c", "d"), "a 1, b 1, c 1, … of 4", 2.0),
        ((), "no references", 0.0),
    ],
)
def test_words_and_entropy_are_of_the_classes_of_references(
    labels: tuple[str, ...], words: str, entropy: float
) -> None:
    one = channel(*labels)
    assert one.words == words and one.entropy == pytest.approx(entropy)


def test_the_strongest_carry_most_in_all_and_have_references() -> None:
    found = units(
        channel("cat", number=0, images=2, share=0.5),
        channel("cat", number=1, images=10, share=0.2),
        channel(number=2, images=99, share=1.0),
        channel("cat", number=3, images=4, share=0.25),
    )
    assert [one.channel for one in found.strongest("relu")] == [1, 0, 3] and found.strongest("other") == []


def test_the_document_is_read_as_it_was_written() -> None:
    made = units(channel("cat", "dog", number=4), channel("dog", number=5))
    document = json.loads(json.dumps(made.document({"pathx": "0"})))
    assert Units.read(document) == made and document["failed"] == {"bad.png": "cut"}
    del document["layers"][0]["tensors"][0]["channels"][0]["mean"]
    with pytest.raises(KeyError):
        Units.read(document)
