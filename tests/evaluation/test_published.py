"""What others published comes out again. It takes minutes: by hand, before a release."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.command_line import Pathx
from support.measured import document
from torch import Tensor, nn

from pathx.engine.replay import Classifier
from pathx.evaluation.check import cascade, judge_cascade
from pathx.evaluation.choices import METHODS
from pathx.evaluation.methods import Subject
from pathx.images.find import images_in
from pathx.models.load import load_model
from pathx.pipeline import prepare

pytest.importorskip("captum")
pytestmark = pytest.mark.usefixtures("here", "undrawn")

# The paper's table, insertion and deletion: the paper's figures are of the whole test set; ours of its first 500 pictures,
# whose insertion lies low by chance (docs/lab compares them with the rest of the test set).
PAPER = {
    "pathx": (0.833, 0.239),
    "saliency": (0.518, 0.198),
    "input_x_gradient": (0.742, 0.142),
    "integrated_gradients": (0.790, 0.148),
    "guided_backprop": (0.677, 0.386),
    "guided_gradcam": (0.683, 0.396),
    "blur_ig": (0.772, 0.163),
}
FIRST_500 = {
    "pathx": (0.827, 0.238),
    "saliency": (0.489, 0.194),
    "input_x_gradient": (0.722, 0.142),
    "integrated_gradients": (0.763, 0.147),
    "guided_backprop": (0.665, 0.379),
    "guided_gradcam": (0.671, 0.395),
    "blur_ig": (0.755, 0.169),
}


@pytest.mark.slow
def test_the_papers_table_comes_out(pathx_: Pathx, shared_data: Path) -> None:
    model = shared_data / "models" / "cifar10-toycnn.pt"
    arguments = ("--protocol", "paper", "--ties", "rows", "--depth", "all", "--width", 1024)
    arguments += ("--methods", ",".join(PAPER))
    assert pathx_("evaluate", shared_data / "cifar10", "--model", model, *arguments, "--out", "out").status == 0
    found = document("out/evaluation.json")["methods"]
    for name, paper in PAPER.items():
        for measure, of_all, of_these in zip(("insertion", "deletion"), paper, FIRST_500[name], strict=True):
            figure = found[name][measure]
            assert figure["mean"] == pytest.approx(of_these, abs=0.002), (name, measure)
            error = (figure["high"] - figure["low"]) / (2 * 1.96)
            assert abs(figure["mean"] - of_all) < 3 * error, (name, measure)


@pytest.mark.slow
def test_guided_backprop_fails(shared_data: Path) -> None:
    model = load_model("mobilenet_v2", weights=shared_data / "models" / "mobilenet_v2.safetensors")
    ready = prepare(model)
    file = sorted((shared_data / "imagenet").glob("*.JPEG"))[0]
    ((seen,),) = ready.see(images_in([str(file)]), 1, lambda source, error: None)

    def maps(module: nn.Module) -> dict[str, Tensor]:
        subject = Subject(Classifier(module, seen.input), seen.input[None], [seen.target], ["a"])
        return {"signed": METHODS["guided_backprop"].compute(subject)[0].sum(0)}

    finding = judge_cascade(cascade(ready, maps(ready.module), maps))
    assert finding.passed is False
