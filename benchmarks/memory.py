"""One call in a process of its own: `python -m benchmarks.memory NAME saliency|path [WIDTH|all|default] [once]`.

Prints JSON: MiB of the process with its model loaded (`model`), the peak above that of the `first` call (which analyses the
network) and of `later` ones, and the CPU time of the first call (`seconds`).
"""

from __future__ import annotations

import json
import resource
import sys
from pathlib import Path
from time import process_time
from typing import Any

import torch

import pathx
from benchmarks.measure import THREADS
from benchmarks.subjects import Subject, network, photo


def main(name: str, method: str, width: str = "5", once: str = "") -> None:
    torch.set_num_threads(THREADS)
    module, images = network(name), photo()
    measured = Subject(name, module, images, target=0)
    if method == "saliency":
        call = measured.saliency()
    else:
        settings: dict[str, Any] = {"depth": "all", "width": int(width)} if width.isdigit() else {}
        if width == "all":  # adjacent, as in version 0.2: rows that jump need W of a whole dense block
            settings = {"depth": "all", "width": "all", "skips": "adjacent"}
        call = measured.path(**settings)
        pathx.explain(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), torch.ones(1, 4), depth=1)  # imports
    model = resident()
    result = {"model": model}
    for which in ("first",) if once else ("first", "later"):
        _reset_peak()
        start = process_time()
        call()
        result[which] = _peak() - model
        result.setdefault("seconds", process_time() - start)
    print(json.dumps(result))


def resident() -> float:
    """What the process holds now; where the system does not tell, the most it ever held."""
    return _status("VmRSS") or _most()


def _peak() -> float:
    """The most that the process held since the last reset; where that cannot be told, ever."""
    return _status("VmHWM") or _most()


def _reset_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # not Linux: loading the model may hide a smaller peak


def _most() -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**20


def _status(field: str) -> float:
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in lines if line.startswith(field)), 0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
