"""Code of a user, outside of the package: `mypy --strict` must accept it."""

import torch
from torch import Tensor, nn

import pathx

network = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 3))
images: Tensor = torch.randn(2, 4)
explanations: list[pathx.Explanation] = pathx.explain(
    network, images, target=[0, 1], depth="all", width=5, exact="region"
)
for explanation in explanations:
    layer: pathx.PathLayer = explanation.path[0]
    units: tuple[pathx.Unit, ...] = layer.units
    contribution: float = sum(unit.contribution for unit in units)
    attribution: Tensor = explanation.attribution
    score: float = explanation.score
try:
    ablations: list[pathx.Ablation] = pathx.ablate(network, images, [])
except pathx.PathxError as error:
    print(error)
model = pathx.load_model("squeezenet1_1")
labels: tuple[str, ...] = tuple(model.labels)
