"""From a function that lists groups of options to a command: its signature, its settings file, its --help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, ClassVar, cast, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from pathx.commands.options import PANELS, RUN, Option
from pathx.commands.output import errors, keep_stdout_for_results
from pathx.errors import shown
from pathx.regular import read_regular

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SETTINGS: dict[str, dict[str, str]] = {}
"""For every command what only its settings file sets, and what --help says of that."""

FILE = "In the file of --config only"


@dataclass(frozen=True)
class _Setting:
    """An option of a command, or what only the settings file sets."""

    name: str
    kind: Any
    default: Any
    option: Option

    @property
    def names(self) -> tuple[str, ...]:
        return self.option.names or (f"--{self.name.replace('_', '-')}",)

    @property
    def keys(self) -> tuple[str, ...]:
        """What a settings file calls it."""
        return tuple(name.partition("/")[0][2:] for name in self.names)

    def parameter(self, panel: str | None) -> Parameter:
        """As typer takes it."""
        option = self.option
        made = typer.Option(
            *self.names,
            metavar=option.metavar,
            help=option.help,
            autocompletion=(lambda: list(option.choices)) if option.choices else None,
            rich_help_panel=option.panel or panel,
            callback=option.check,
        )
        annotation: Any = cast("Any", Annotated)[self.kind, made]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=self.default, annotation=annotation)

    def read(self, value: Any) -> Any:
        """A value of the settings file, as the command line would give it."""
        wrong = typer.BadParameter(f"{self.keys[0]} cannot be {value!r}")
        is_bool = bool in (self.kind, *get_args(self.kind))
        if is_bool or isinstance(value, (bool, dict)):
            if not is_bool or not isinstance(value, bool):
                raise wrong
            return value
        texts = [str(part) for part in (value if isinstance(value, list) else [value])]
        return texts if list[str] in (self.kind, *get_args(self.kind)) else ",".join(texts)


def command(interrupted: str = "nothing is lost that was written", *, rare: bool = False) -> Callable[[Any], Any]:
    """A command of a function whose parameters are options, or groups of them; its errors are one line.

    Args:
        interrupted: what Ctrl-C leaves behind, for people to read.
        rare: what is rare elsewhere has options here.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, Any] = {}
        parameters: list[Parameter] = []
        settings: dict[str, _Setting] = {}
        filed: dict[str, _Setting] = {}

        def add(name: str, hint: Any, default: Any, panel: str | None = None) -> None:
            kind, *extras = get_args(hint)
            if not isinstance(extras[0], Option):
                argument = Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=hint)
                parameters.append(argument)
                return
            one = _Setting(name, kind, default, extras[0])
            if one.option.rare and not rare:
                filed[name] = one
            else:
                settings[name] = one
                parameters.append(one.parameter(panel))

        # Not get_type_hints, which makes Optional[Annotated[…]] of a default of None in Python 3.10.
        for name, parameter in signature(function, eval_str=True).parameters.items():
            hint = parameter.annotation
            if is_dataclass(hint):
                groups[name] = hint
                types = get_type_hints(hint, include_extras=True)
                for field in fields(hint):
                    add(field.name, types[field.name], field.default, getattr(hint, "panel", None))
            else:
                add(name, hint, parameter.default)

        def read_config(context: typer.Context, file: str | None) -> Any:
            if file is None:
                return {}
            found = _read_settings(
                file, {key: one for one in (*settings.values(), *filed.values()) for key in one.keys}
            )
            context.default_map = {key: value for key, value in found.items() if key in settings}
            return {key: value for key, value in found.items() if key in filed}

        if "model" in settings:
            help_text = "Settings file: options by name, as width = 64; those of the command line win."
            config = typer.Option(
                "--config",
                metavar="FILE.toml",
                help=help_text,
                callback=read_config,
                is_eager=True,
                rich_help_panel=RUN,
            )
            kind = Annotated[str | None, config]
            parameters.append(Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=kind))

        def run(**given: Any) -> None:
            values = {name: one.default for name, one in filed.items()} | (given.pop("config", None) or {}) | given
            built = {
                name: group(**{field.name: values.pop(field.name) for field in fields(group)})
                for name, group in groups.items()
            }
            with errors(interrupted):
                keep_stdout_for_results()
                function(**built, **values)

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        SETTINGS[function.__name__] = {one.keys[0]: one.option.help for one in filed.values()}
        return run

    return decorate


def _read_settings(file: str, known: dict[str, _Setting]) -> dict[str, Any]:
    """What a settings file says, by the names of parameters."""
    try:
        found = tomllib.loads(read_regular(file).decode())
    except OSError as error:
        raise typer.BadParameter(f"{shown(file)} cannot be read ({error.strerror}): give a TOML file") from None
    except ValueError as error:
        raise typer.BadParameter(f"{shown(file)} is not TOML ({error}): write lines such as width = 64") from None
    for name in found:
        if name not in known:
            close = get_close_matches(name, known, 1, 0.5)
            remedy = f"did you mean {close[0]}" if close else f"it takes {', '.join(known)}"
            raise typer.BadParameter(f"{shown(file)} sets {name!r}, which this command does not have: {remedy}")
    return {known[name].name: known[name].read(value) for name, value in found.items()}


class GroupedCommand(TyperCommand):
    """A command whose help shows its options under the headings that they were declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "The measure": []}
        groups |= {panel: [] for panel in PANELS} | {"Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Arguments" if parameter.param_type_name == "argument" else "Options"
                groups[getattr(parameter, "rich_help_panel", None) or title].append(record)
        groups[FILE] = list(SETTINGS.get(str(self.name), {}).items())
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class GroupedCommands(TyperGroup):
    """The commands in groups: `groups` names them."""

    groups: ClassVar[dict[str, tuple[str, ...]]] = {}

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for title, names in self.groups.items():
            with formatter.section(title):
                formatter.write_dl([(f"{name:9}", str(self.commands[name].help).partition("\n")[0]) for name in names])
