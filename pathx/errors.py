"""The one error type of pathx."""

from __future__ import annotations


class PathxError(Exception):
    """Something the user can mend: one line that says what is wrong and how to fix it.

    Args:
        usage: the call itself was wrong (exit status 2), rather than one piece of work having failed (exit status 1).
    """

    def __init__(self, message: str, *, usage: bool = False) -> None:
        super().__init__(message)
        self.usage = usage
