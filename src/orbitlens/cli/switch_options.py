"""Options of a command that follow from the switches of the lab's model."""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Annotated, Any

import typer

from orbitlens.orbit.switches import SWITCHES, Switch


def with_switches(
    command: Callable[..., None], declared: Mapping[str, Switch] = SWITCHES
) -> Callable[..., None]:
    """Give a command one option a switch, in place of its parameter `switches`.

    The command receives the switches that were given, by name.
    """
    own = inspect.signature(command)
    options = [_parameter(switch) for switch in declared.values()]
    others = [each for each in own.parameters.values() if each.name != "switches"]
    required = [each for each in others if each.default is inspect.Parameter.empty]
    optional = [each for each in others if each.default is not inspect.Parameter.empty]

    @wraps(command)
    def wrapped(**arguments: Any) -> None:  # noqa: ANN401 - what typer parsed
        given = {name: arguments.pop(name) for name in declared}
        chosen = {name: _value(declared[name], v) for name, v in given.items() if v is not None}
        command(**arguments, switches=chosen)

    parameters = [*required, *options, *optional]
    wrapped.__signature__ = own.replace(  # type: ignore[attr-defined]
        parameters=[each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    )
    wrapped.__annotations__ = {each.name: each.annotation for each in parameters}
    return wrapped


def _parameter(switch: Switch) -> inspect.Parameter:
    """Return the option of a switch; None stands for its default."""
    option = typer.Option(metavar=_metavar(switch), help=_help(switch))
    return inspect.Parameter(
        switch.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=None,
        annotation=Annotated[switch.kind | None, option],
    )


def _metavar(switch: Switch) -> str | None:
    """Return a placeholder of a value; a yes or no takes none."""
    return {str: "NAME", float: "NUMBER"}.get(switch.kind)


def _help(switch: Switch) -> str:
    """Return what a switch means, its values and its default."""
    images = "Images: " if switch.of_images else ""
    meaning = images + (
        switch.meaning if images else switch.meaning[0].upper() + switch.meaning[1:]
    )
    layers = ", or layers such as 0,2" if switch.takes_layers else ""
    values = f" ({', '.join(switch.values)}{layers})" if switch.values else ""
    return f"{meaning}{values}.  [default: {_shown(switch.default)}]"


def _shown(default: str | bool | float) -> str:
    """Return a default as one would type it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    return default if isinstance(default, str) else f"{default:g}"


def _value(switch: Switch, given: Any) -> Any:  # noqa: ANN401 - what typer parsed
    """Read "0,2" as two layers, where a switch takes layers."""
    if not switch.takes_layers or not all(part.strip().isdecimal() for part in given.split(",")):
        return given
    return [int(part) for part in given.split(",")]
