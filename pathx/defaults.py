"""How far a path goes and how many units it keeps unless somebody says otherwise: in every command and every function.

Chosen for the path map by insertion minus deletion (protocol `rise`, ties at random) on half of the images of each network,
SqueezeNet 1.1, MobileNetV2, a ResNet-20 and the CNN of the paper, and measured on the other half (docs/lab/path-map-2026-11.md).

- Layers: a path through the three topmost layers of feature maps, width 256, ranks pixels about as well as one through half of
  all layers, width 1024: 0.574 against 0.595 on MobileNetV2, 0.484 against 0.497 on SqueezeNet, 0.507 against 0.490 on the
  ResNet-20.
- Width: there, 5 units are too few (0.427 on the ResNet-20), 16 do (0.490), and 64 (0.526) do as well as 256, at 1.1 to 3 times
  the time of a plain gradient; half of the layers at a width of 1024 take 8 to 48 times that.
- Skips: counted or not, there was no difference to be measured; with them, a path that keeps everything is the gradient.

Layers that are vectors (fully connected ones) have no place in the image: `maps:3` runs through them and does not count them.
"""

from __future__ import annotations

DEPTH = "maps:3"
WIDTH = 64
SKIPS = "all"
EXACT = "image"
"""Explain every classifier; "region" refuses all but ReLU networks."""
IMPORTANCE = "paper"
