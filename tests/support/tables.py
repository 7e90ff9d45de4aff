"""The tables of models that come with pathx. `PYTHONPATH=.:tests python -m support.tables` writes torchvision's again."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from pathx.errors import PathxError
from pathx.models.catalogue import TABLES, describe_model
from pathx.models.load import load_model
from pathx.models.named import model_names, no_initialisation, weights_file


def survey(source: str, name: str) -> dict[str, Any]:
    """The table's line about a model, found by tracing it."""
    called = f"timm:{name}" if source == "timm" else name
    facts: dict[str, Any] = {"hidden_layers": None, "exact": None, "refused": None}
    try:
        found = describe_model(called)
        facts |= {"hidden_layers": len(found.layers), "exact": found.exact, "parameters": found.parameters}
        size = found.preprocessing.input_size if found.preprocessing else ()
    except PathxError as error:
        with no_initialisation():
            loaded = load_model(called, weights="none")
        facts |= {"refused": refusal(error), "parameters": sum(one.numel() for one in loaded.module.parameters())}
        size = loaded.preprocessing.input_size
    return {**facts, "input_size": list(size), **({"file": weights_file(name)} if source == "torchvision" else {})}


def refusal(error: PathxError) -> str:
    """The operation and module that rule a network out, as its refusal names them; otherwise all that it says."""
    found = re.search(r"(?:: |\()(\w+ in [\w.]+)", str(error))
    return found[1] if found else str(error)


def write_table(source: str, facts: Mapping[str, Any]) -> None:
    """One line per model, so that changes can be read."""
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(facts.items()))
    release = version(source).partition("+")[0]
    TABLES[source].write_text(f'{{\n  "{source}": "{release}",\n  "models": {{\n{lines}\n  }}\n}}\n')


if __name__ == "__main__":
    write_table("torchvision", {name: survey("torchvision", name) for name in model_names()})
