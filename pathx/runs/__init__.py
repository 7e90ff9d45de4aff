"""From image files to files of results."""
