"""Tensors in, explanations out: knows no files, no terminal, no pictures."""
