"""What people type: labels, photos and paths with a loaded model, small networks, and what objects look like."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image
from support.small import images, loaded, network, picture
from torch import Tensor, nn

import pathx
from pathx import PathxError
from pathx.runs.run import explain_files


def test_a_loaded_model_takes_photos_paths_and_labels(tmp_path: Path) -> None:
    model, file = loaded(), picture(tmp_path / "photo.png", (40, 24))
    with Image.open(file) as photo:
        photo.load()
    inputs = model.preprocessing(photo)[None]
    (expected,) = pathx.explain(model, inputs, target=model.labels.index("dog"))
    for given in (photo, file, str(file), [photo], (file,)):
        (made,) = pathx.explain(model, given, target="Dog")
        assert made.path == expected.path and made.label == "dog"
        assert torch.equal(made.attribution, expected.attribution)
    several = pathx.explain(model, [photo, file], target=["cat", 2], against="red fox")
    assert [(one.label, one.other_label) for one in several] == [("cat", "red fox"), ("dog", "red fox")]
    (split,) = pathx.decompose(model, file, target="dog")
    assert split.whole.label == "dog"
    (ablation,) = pathx.ablate(model, photo, path=expected, target="dog")
    assert ablation.target == expected.target


def test_pictures_are_drawn_on_the_photo_that_was_given(tmp_path: Path) -> None:
    model, file = loaded(), picture(tmp_path / "photo.png", (600, 400))
    (made,) = pathx.explain(model, file)
    assert made.overlay().size == (600, 400)
    assert made.decompose().whole.origin is made.origin
    (plain,) = pathx.explain(model, model.preprocessing(Image.open(file))[None])
    assert plain.overlay().size != (600, 400)


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (torch.zeros(3, 10, 10), {}, "images must be a batch, and this is one image: give image[None]"),
        ([], {}, "there are no images in the list"),
        (3, {}, "images must be a tensor (B, …), an image of Pillow, a path, or a list of these, not an int"),
        ("nowhere.png", {}, "nowhere.png: no such file; check the path"),
        (torch.zeros(1, 3, 10, 10), {"target": "dgo"}, "no class is called 'dgo': did you mean 'dog'?"),
    ],
)
def test_what_a_loaded_model_is_told(given: object, options: dict[str, str], message: str) -> None:
    with pytest.raises(PathxError) as caught:
        pathx.explain(loaded(), given, **options)  # type: ignore[arg-type]
    assert str(caught.value) == message


def test_a_module_has_no_labels_and_takes_batches() -> None:
    with pytest.raises(PathxError, match="target dog is a label, and the model brings none: give the number"):
        pathx.explain(network(), images(), target="dog")
    with pytest.raises(PathxError, match=r"or give a single image as image\[None\]$"):
        pathx.explain(network(), images()[0])


@pytest.mark.parametrize(
    "layers",
    [
        (nn.Flatten(), nn.Linear(192, 5), nn.ReLU(), nn.Linear(5, 3)),
        (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)),
        (nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.SiLU(), nn.Flatten(), nn.Linear(64, 3)),
    ],
)
def test_defaults_work_on_networks_of_one_or_two_layers(layers: tuple[nn.Module, ...]) -> None:
    net, inputs = nn.Sequential(*layers), torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for made in pathx.explain(net, inputs, removal=True):
        assert made.complete and made.removal is not None
        assert float(made.attribution.sum()) + made.bias == pytest.approx(made.score, abs=1e-4)
        assert made.figure().width > 400 and made.decompose().figure().width > 400


def test_everything_public_is_shown_in_one_line(tmp_path: Path) -> None:
    model, file = loaded(), picture(tmp_path / "photo.png", (40, 24))
    first, second = pathx.explain(model, [file, file], target=["cat", "dog"], removal=True)
    split, contrast = first.decompose(), pathx.Contrast.of([first, second])
    (result,) = explain_files(model, [file], tmp_path / "out")
    shown: list[object] = [model, first, split, contrast, result, [first, second], pathx.Drawing(), first.removal]
    shown += [*first.path, *first.path[0].edges, first.path[0].units[0], *split.features, *contrast.pairs]
    shown += pathx.ablate(model, file, path=first)
    shown += [pathx.describe_model("squeezenet1_1"), first.report()]
    shown += [pathx.units(model, [file], tmp_path / "units"), pathx.check(model, file)]
    for one in shown:
        text = repr(one)
        assert "\n" not in text and len(text) < 300, text
        assert not isinstance(one, Tensor)
