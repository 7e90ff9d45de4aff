"""`python -m pathx`."""

import os

from pathx.runs.stop import end_at_once


def run() -> None:
    """The entry point: signals are looked after before anything else is loaded."""
    end_at_once()
    # torch's threads wait for each other after every operation. While they wait they leave the cores to those who read,
    # draw and write, and to other programs: spinning takes several times as long on a machine that is busy.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

    from pathx.cli import no_more_results
    from pathx.cli import run as run_command

    try:
        run_command()
    finally:
        no_more_results()


if __name__ == "__main__":
    run()
