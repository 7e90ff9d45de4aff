"""From a function that lists groups of options to a command: its signature, its settings file, its --help."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import Field, dataclass, fields, is_dataclass, replace
from difflib import get_close_matches
from inspect import Parameter, Signature, signature
from types import UnionType
from typing import Annotated, Any, cast, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from pathx.commands.options import PANELS, RUN, Option, number_or_text, parse
from pathx.commands.output import keep_stdout_for_results, print_errors
from pathx.errors import PathxError, shown
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
    annotation: Any
    default: Any
    option: Option

    @property
    def kind(self) -> Any:
        """What a value is, but for None."""
        return get_args(self.annotation)[0] if isinstance(self.annotation, UnionType) else self.annotation

    @property
    def names(self) -> tuple[str, ...]:
        return self.option.names or (f"--{self.name.replace('_', '-')}",)

    @property
    def keys(self) -> tuple[str, ...]:
        """What a settings file calls it."""
        return tuple(name.partition("/")[0][2:] for name in self.names if name.startswith("--"))

    @property
    def help(self) -> str:
        """With the choices in front, where no metavar shows them."""
        choices = " or ".join(self.option.choices) if self.option.rare else ""
        return f"{choices}. {self.option.help}" if choices else self.option.help

    def parameter(self, panel: str | None) -> Parameter:
        """As typer takes it: bools, pairs, and texts that `read` makes values of."""
        option, choices, origin = self.option, list(self.option.choices), get_origin(self.kind)
        declared = typer.Option(
            *self.names,
            metavar=option.metavar or "|".join(choices) or None,
            help=option.help,
            autocompletion=(lambda: choices) if choices else None,
            rich_help_panel=option.panel or panel,
        )
        kind: Any = self.annotation
        if self.kind is not bool and origin is not tuple:
            kind = (list[str] if origin is list else str) | None
        default = self.default if self.default in (None, False) else str(self.default or "") or None
        if isinstance(self.default, float):
            default = f"{self.default:g}"
        annotation: Any = cast("Any", Annotated)[kind, declared]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def from_file(self, value: Any) -> Any:
        """A value of the settings file, as the command line would give it."""
        if self.kind is bool or isinstance(value, (bool, dict)):
            if self.kind is not bool or not isinstance(value, bool):
                wanted = "true or false" if self.kind is bool else "a number, a text or a list"
                raise typer.BadParameter(f"{self.keys[0]} takes {wanted}, not {value!r}")
            return value
        texts = [str(part) for part in (value if isinstance(value, list) else [value])]
        return texts if get_origin(self.kind) in (list, tuple) else ",".join(texts)

    def read(self, text: Any) -> Any:
        """The value that a text of the command line or of the settings file stands for."""
        if text is None or text == []:
            return self.default
        if self.option.parse is not None:
            return self.option.parse(text)
        name = self.keys[0] if self.option.rare else self.names[0]
        if self.option.choices and text not in self.option.choices:
            raise PathxError(f"{name} takes {' or '.join(self.option.choices)}, not {text!r}", usage=True)
        if self.annotation == int | str:
            return number_or_text(text)
        for number, words in ((int, "a whole number"), (float, "a number")):
            if self.kind is number:
                return parse(text, number, f"{name} takes {words}, not {text!r}")
        return text


def command(interrupted: str = "all that was written is kept", *, rare: bool = False) -> Callable[[Any], Any]:
    """A command of a function whose parameters are arguments, options, or groups of options; its errors are one line.

    Args:
        interrupted: what Ctrl-C leaves behind, for people to read.
        rare: what only the settings file sets elsewhere has options here.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, type] = {}
        parameters: list[Parameter] = []
        settings: dict[str, _Setting] = {}

        def add(name: str, annotation: Any, default: Field[Any], panel: str | None = None) -> None:
            option = default.metadata["option"]
            option = replace(option, rare=option.rare and not rare)
            one = settings[name] = _Setting(name, annotation, default.default, option)
            if not option.rare:
                parameters.append(one.parameter(panel))

        def add_group(kind: Any) -> None:
            types = get_type_hints(kind)
            for field in fields(kind):
                if is_dataclass(types[field.name]):
                    add_group(types[field.name])
                else:
                    add(field.name, types[field.name], field, getattr(kind, "panel", None))

        for name, parameter in signature(function, eval_str=True).parameters.items():
            kind = parameter.annotation
            if is_dataclass(kind):
                groups[name] = cast("type", kind)
                add_group(kind)
            elif isinstance(parameter.default, Field):
                add(name, kind, parameter.default)
            else:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))

        def read_config(context: typer.Context, file: str | None) -> Any:
            known = {key: one for one in settings.values() for key in one.keys}
            found = {} if file is None else _read_settings(file, known)
            context.default_map = found
            return found

        if "model" in settings:
            config = typer.Option(
                "--config",
                metavar="FILE.toml",
                help="Settings file: options by name, as width = 64; the command line wins.",
                callback=read_config,
                is_eager=True,
                rich_help_panel=RUN,
            )
            annotation = Annotated[str | None, config]
            parameters.append(Parameter("config", Parameter.KEYWORD_ONLY, default=None, annotation=annotation))

        def run(**given: Any) -> None:
            given = (given.pop("config", None) or {}) | given
            with print_errors(interrupted):
                keep_stdout_for_results()
                values = given | {name: one.read(given.get(name)) for name, one in settings.items()}
                values |= {name: _fill_group(group, values) for name, group in groups.items()}
                function(**values)

        run.__name__, run.__doc__, run.__module__ = function.__name__, function.__doc__, function.__module__
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        SETTINGS[function.__name__] = {one.keys[0]: one.help for one in settings.values() if one.option.rare}
        return run

    return decorate


def _fill_group(group: Any, values: dict[str, Any]) -> Any:
    """A group of options, or of such groups, with the values that are its own, which are taken out."""
    types = get_type_hints(group)
    kinds = {field.name: types[field.name] for field in fields(group)}
    return group(**{n: _fill_group(kind, values) if is_dataclass(kind) else values.pop(n) for n, kind in kinds.items()})


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
            remedy = f"did you mean {close[0]}?" if close else f"it takes {', '.join(known)}"
            raise typer.BadParameter(f"{shown(file)} sets {name!r}, which this command does not have: {remedy}")
    return {known[name].name: known[name].from_file(value) for name, value in found.items()}


class GroupedCommand(TyperCommand):
    """A command whose help shows its options under the headings that they were declared with."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {title: [] for title in ("Arguments", "Options", *PANELS, "Help")}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                title = "Help" if parameter.name == "help" else "Options"
                if parameter.param_type_name == "argument":
                    title, record = "Arguments", (str(parameter.metavar), record[1])
                groups[getattr(parameter, "rich_help_panel", None) or title].append(record)
        groups[FILE] = list(SETTINGS.get(str(self.name), {}).items())
        for title, records in groups.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)
