"""`python -m pathx`."""

from pathx.cli import run

run()
