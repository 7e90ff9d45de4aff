"""The files of results: written, read back and redrawn."""
