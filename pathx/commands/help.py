"""What --help looks like: options in groups, as plain text."""

from __future__ import annotations

from typing import Any

from typer.core import TyperCommand

from pathx.commands.options import PANELS


class GroupedCommand(TyperCommand):
    """A command whose help shows its options under the headings that they were declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], **{panel: [] for panel in PANELS}, "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups[getattr(parameter, "rich_help_panel", None) or title].append(record)
        for title, records in groups.items():
            if not records:
                continue
            with formatter.section(title):
                formatter.write_dl(records)
