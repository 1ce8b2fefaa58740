"""Tables of docs/lab.md: the switches of the model, and the models of the zoo."""

from collections.abc import Mapping

from generated.tables import table

from orbitlens.orbit.switches import SWITCHES, Switch


def switches(declared: Mapping[str, Switch] = SWITCHES) -> str:
    """Return one row a switch: its name, values, default and meaning."""
    rows = [
        (f"`{each.name}`", _values(each), f"`{_shown(each.default)}`", _meaning(each))
        for each in declared.values()
    ]
    return table(("switch", "values", "default", "meaning"), rows)


def _values(switch: Switch) -> str:
    if switch.kind is bool:
        return "`True`, `False`"
    if not switch.values:
        return switch.expected.removeprefix("a finite ")
    listed = ", ".join(f"`{value}`" for value in switch.values)
    return f"{listed}, or a list of layers" if switch.takes_layers else listed


def _meaning(switch: Switch) -> str:
    return f"images: {switch.meaning}" if switch.of_images else switch.meaning


def _shown(default: str | bool | float) -> str:
    return f"{default:g}" if isinstance(default, float) else str(default)


def rounding() -> str:
    """Return by how much storing weights in float16 moves the loss."""
    from orbitlens.checkpoint.zoo import zoo_model, zoo_names

    recipes = [zoo_model(name).recipe for name in zoo_names()]
    largest = max(abs(each["test_loss"] - each["test_loss_float32"]) for each in recipes)
    return f"Rounding moves the loss by {largest:.1e} nats at most."
