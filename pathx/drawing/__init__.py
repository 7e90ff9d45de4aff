"""Attributions as pictures."""
