"""`python -m pathx`."""

from pathx.runs.stop import end_at_once


def run() -> None:
    """The entry point: signals are looked after before anything else is loaded."""
    end_at_once()

    from pathx.cli import no_more_results
    from pathx.cli import run as run_command

    try:
        run_command()
    finally:
        no_more_results()


if __name__ == "__main__":
    run()
