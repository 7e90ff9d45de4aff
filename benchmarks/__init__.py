"""How fast pathx is, as ratios measured side by side. `python -m benchmarks --help`."""

import sys
from pathlib import Path

sys.path.append(
    str(Path(__file__).resolve().parents[1] / "tests")
)  # for `support`: Algorithm 1 as published, and counters
