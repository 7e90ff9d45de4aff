"""What pathx knows about each operation: one record each, a file per family."""

from pathx.engine.rules import arithmetic, convolutions, gates, pooling, shapes  # noqa: F401  they fill the table
