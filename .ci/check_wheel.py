"""What a wheel may hold: the package alone, and no more than six megabytes."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path

MOST = 6_000_000

for name in sys.argv[1:]:
    size = Path(name).stat().st_size
    inside = zipfile.ZipFile(name).namelist()
    strangers = [entry for entry in inside if not entry.startswith(("pathx/", "pathx_relu-"))]
    missing = {"pathx/py.typed", "pathx/models/data/squeezenet1_1.safetensors"} - set(inside)
    if size > MOST or strangers or missing:
        sys.exit(f"{name}: {size} bytes of {MOST}, does not belong: {strangers[:5]}, missing: {sorted(missing)}")
    print(f"{Path(name).name}: {size} bytes, {len(inside)} files")
