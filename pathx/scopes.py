"""Module paths for models that Python frames say nothing about: torch.export programs and TorchScript files."""
from __future__ import annotations
def exported_interpreter(model, recorder):
    return model
def script_scopes(model, nodes):
    return nodes
