"""How good explanations are: measured, compared and checked."""
