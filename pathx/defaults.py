"""The settings of a path unless the user chooses others, for every command and every function.

They were chosen by measurement (docs/lab/path-map-2026-11.md). A path through the three topmost layers of feature maps, width 64,
ranks pixels about as well as one through half of all layers, width 1024, and takes a fraction of the time. `maps:3` passes through
layers that are vectors without counting them. With skips, a path that keeps everything is the gradient.
"""

from __future__ import annotations

DEPTH = "maps:3"
WIDTH = 64
SKIPS = "all"
EXACT = "image"
"""Explain every classifier; "region" refuses all but ReLU networks."""
IMPORTANCE = "paper"
