"""What pathx knows about each operation: one record each, one file per family."""

from pathx.engine.rules import (  # noqa: F401  they fill the table
    arithmetic,
    convolutions,
    fixed,
    gates,
    masks,
    parts,
    pooling,
    products,
    routes,
    shapes,
)
