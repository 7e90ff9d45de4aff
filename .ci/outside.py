"""A user's code, with every public name of pathx: `mypy --strict` must accept it. It is checked, not run."""

from pathlib import Path

import torch
from PIL import Image
from torch import Tensor, nn

import pathx

network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
images: Tensor = torch.randn(2, 4)
try:
    explanations: list[pathx.Explanation] = pathx.explain(
        network, images, target=[0, 1], depth="all", width=5, exact="region", removal=True
    )
except pathx.PathxError as error:
    print(error)
for explanation in explanations:
    layer: pathx.PathLayer = explanation.path[0]
    units: tuple[pathx.Unit, ...] = layer.units
    edges: tuple[pathx.Edges, ...] = layer.edges
    contribution: float = sum(unit.contribution for unit in units)
    attribution: Tensor = explanation.attribution
    score: float = explanation.score
    removal: pathx.Removal | None = explanation.removal
decompositions: list[pathx.Decomposition] = pathx.decompose(network, images, features=2)
parts: tuple[pathx.Explanation, ...] = decompositions[0].paths
contrast = pathx.Contrast(tuple(explanations), ())
ablations: list[pathx.Ablation] = pathx.ablate(network, images, path=explanations)

names: list[str] = [entry.name for entry in pathx.models("resnet*")]
layers: int = len(pathx.describe_model("resnet18").layers)
model = pathx.load_model("squeezenet1_1")
labels: tuple[str, ...] = tuple(model.labels)
photo: Tensor = model.preprocessing(Image.open("cat.png"))
for result in pathx.explain_files(model, ["photos"], "out", decompose={"features": 3}):
    print(result)
for result in pathx.redraw("out", pathx.Drawing(smoothing=0.1)):
    print(result)
page: Path = pathx.report(["out"])
print(pathx.merge("out"), pathx.units(model, ["photos"], "units"))
passed: bool = pathx.check(model, "cat.png").passed
documents = [pathx.common(model, ["photos"]), pathx.evaluate(model, ["photos"], methods=["path_map"])]
