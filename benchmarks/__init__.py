"""How fast pathx is, as ratios measured side by side. `python -m benchmarks --help`."""
