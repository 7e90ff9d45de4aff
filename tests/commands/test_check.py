"""`pathx check` says in words what can be trusted, and draws it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from support.command_line import Pathx, scripted
from support.measured import document
from torch import Tensor, nn

import pathx
from pathx.commands import output
from pathx.engine.explain import explain_frozen
from pathx.engine.freeze import Frozen
from pathx.evaluation import check
from pathx.evaluation.check import Checked, Finding, judge_cascade
from pathx.explanation import Explanation
from pathx.images.find import images_in
from pathx.models.load import load_model
from pathx.pipeline import prepare

pytest.importorskip("captum")
pytest.importorskip("matplotlib")
pytestmark = pytest.mark.usefixtures("measured", "undrawn")


@pytest.mark.usefixtures("drawn")
def test_a_sound_model_passes_with_a_verdict_in_words(pathx_: Pathx) -> None:
    done = pathx_(
        "check", "pictures/cat/0.png", "--model", "model.pt", "--depth", "all", "--dtype", "float64", "--out", "out"
    )
    found = document("out/check.json")
    assert found["schema"] == "pathx/check@1"
    checks = found["checks"]
    assert list(checks) == ["completeness", "unwrapping", "randomisation", "stability", "removal", "device"]
    assert checks["completeness"]["passed"] and checks["completeness"]["figures"]["share"] < 1e-10
    assert checks["unwrapping"]["passed"] and checks["unwrapping"]["figures"]["share"] < 1e-10
    layers = checks["randomisation"]["figures"]["layers"]
    assert [line["module"] for line in layers] == ["7", "5", "2", "0"]  # from the output down
    assert "which is rounding" in done.out and "rank correlation" in done.out
    assert Path("out/randomisation.png").exists() and Path("out/randomisation.svg").exists()
    assert done.status == (0 if found["passed"] else 1)


def test_progress_counts_every_run(pathx_: Pathx, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "EVERY", 0)
    done = pathx_("check", "pictures/cat/0.png", "--model", "model.pt", "--out", "out")
    lines = [line.split(",")[0] for line in done.err.splitlines() if "checking" in line]
    total = 3 * 4 + 3  # three runs down four modules, and three more checks
    assert lines == [f"pathx: checking: {count} of {total}" for count in range(1, total + 1)]


def test_a_folder_of_several_images_is_not_checked_in_part(pathx_: Pathx) -> None:
    done = pathx_("check", "pictures", "--model", "model.pt", "--out", "out")
    assert (done.status, done.err) == (2, "pathx: pictures has 6 images, and a check takes one: name it\n")


CHECKS = ("completeness", "unwrapping", "randomisation", "device")


def test_the_model_is_not_randomised_itself(pathx_: Pathx) -> None:
    before = Path("model.pt").read_bytes()
    first = pathx_("check", "pictures/cat/0.png", "--model", "model.pt", "--format", "json", "--out", "out")
    again = pathx_("check", "pictures/cat/0.png", "--model", "model.pt", "--format", "json", "--out", "out")
    close = json.loads(first.out, parse_float=lambda text: pytest.approx(float(text), rel=1e-3, abs=1e-6))
    assert json.loads(again.out) == close
    assert Path("model.pt").read_bytes() == before


class Gated(nn.Module):
    """Gates, a norm and attention over channels: linear at one image only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, stride=2), nn.Conv2d(8, 8, 3)
        self.norm, self.squeeze, self.last = nn.GroupNorm(2, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.gelu(self.norm(self.second(nn.functional.silu(self.first(x)))))
        x = x * torch.sigmoid(self.squeeze(x.mean((2, 3))))[:, :, None, None]
        return self.last(x.mean((2, 3)))


def test_numbers_that_are_exact_at_the_image_alone_are_right_there() -> None:
    """The gradient of such a model differs from its frozen network's: the check must not ask for it."""
    torch.manual_seed(0)
    scripted(Gated())
    found = pathx.check(pathx.load_model("model.pt"), "pictures/cat/0.png", dtype="float64")
    arithmetic = {name: found.findings[name].passed for name in ("completeness", "unwrapping", "device")}
    assert arithmetic == {"completeness": True, "unwrapping": True, "device": True}
    assert "the frozen network's gradient" in found.findings["unwrapping"].verdict


def test_a_verdict_says_what_noise_does(pathx_: Pathx) -> None:
    """Beside units that change under a little noise, nothing is called right."""
    for width in (1, "all"):
        arguments = ("--model", "model.pt", "--depth", "all", "--width", width, "--alpha", 0)
        done = pathx_("check", "pictures/cat/0.png", *arguments, "--out", "out")
        found = document("out/check.json")
        figures = found["checks"]["stability"]["figures"]
        steady = min(figures["correlation"], figures["units_in_common"]) >= 0.7
        assert figures["steady"] == steady and found["verdict"] in done.out
        assert ("trusted as far as these checks go" in found["verdict"]) == (steady and found["passed"])
        assert "right" not in found["verdict"]


@pytest.mark.parametrize(
    "failing",
    [set(found) for count in range(4) for found in combinations(CHECKS, count)],
    ids=lambda found: "-".join(sorted(found)),
)
def test_only_wrong_numbers_are_called_wrong(failing: set[str]) -> None:
    """A map that says little is not to be taken for one that was computed wrongly, nor the other way round."""
    figures: dict[str, Any] = {"steady": True}
    findings = {name: Finding(name not in failing, "", figures) for name in (*CHECKS, "stability")}
    checked = Checked("cat.png", "cat", {}, {}, findings)
    assert checked.passed == (not failing)
    assert ("do not trust" in checked.verdict) == bool(failing - {"randomisation"})
    assert ("hardly depends" in checked.verdict) == (failing == {"randomisation"})
    assert ("trusted as far as" in checked.verdict) == (not failing)


def test_the_cascade_is_judged_along_the_way() -> None:
    """What keeps its shape until the first layers are reached fails, whatever is left of it in the end."""
    edges = [{"module": str(n), "signed": value} for n, value in enumerate((0.99, 0.98, 0.97, 0.96, 0.9, 0.6, 0.09))]
    finding = judge_cascade(edges)
    assert finding.passed is False and "0.96 down to 3, 0.09 down to 6" in finding.verdict
    depends = [{"module": str(n), "signed": value} for n, value in enumerate((0.5, 0.2, -0.1, 0.1, None, 0.1))]
    assert judge_cascade(depends).passed is True
    mirrored = [{"module": str(n), "signed": value} for n, value in enumerate((-0.9, -0.8, -0.9))]
    assert judge_cascade(mirrored).passed is False  # the same shape with its signs turned
    assert judge_cascade([{"module": "0", "signed": None}]).passed is None


def swap_last_unit(made: Explanation, times: float) -> Explanation:
    """With another unit in place of the last of the top layer, so many times as important."""
    top, *rest = made.path
    *first, last = top.units
    other = replace(last, index=(99, 0, 0), importance=last.importance * times)
    return replace(made, path=(replace(top, units=(*first, other)), *rest))


@pytest.mark.parametrize(
    ("change", "passed", "words"),
    [
        (lambda made: made, True, "same units in all 2 layers"),
        (lambda made: replace(made, attribution=made.attribution * 1.5), False, "more than rounding"),
        (lambda made: swap_last_unit(made, 1.0), True, "equal importance in layer 1 of 2"),
        (lambda made: swap_last_unit(made, 1.5), False, "keeps other units"),
    ],
)
def test_a_device_is_compared_with_float64(
    change: Callable[[Explanation], Explanation], passed: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def changed(frozen: Frozen, wanted: Any, **settings: Any) -> list[Explanation]:
        made = explain_frozen(frozen, wanted, **settings)
        return [change(one) for one in made] if frozen.images.dtype == torch.float32 else made

    monkeypatch.setattr(check, "explain_frozen", changed)
    prepared = prepare(load_model("model.pt"), device="cpu")
    seen = prepared.see_one(images_in(["pictures/cat/0.png"])[0])
    finding = check.device_agreement(prepared, seen, {"depth": 2, "width": 3, "alpha": 0.0})
    assert finding.passed is passed and words in finding.verdict
