"""A config with another base, or other layers rotated: the repairs that no order of rows makes.

Enters: a config as its file has it, and a `Repair`. Leaves: the config changed in these settings
alone. What a family's config has no setting for is refused with the reason.
"""

import copy
from collections.abc import Mapping
from typing import Any

from orbitlens.encodings.positions_result import Repair
from orbitlens.errors import InputError
from orbitlens.families.architecture import Position, Stack
from orbitlens.families.family import Family


def repaired_config(
    config: Mapping[str, Any], family: Family, stack: Stack, repair: Repair
) -> dict[str, Any] | None:
    """Return the config with what a repair changes in it; None where it changes nothing.

    Raises:
        InputError: the config has no setting for it.
    """
    if repair.base is None and not repair.unrotated and not repair.rotated:
        return None
    new = copy.deepcopy(dict(config))
    if repair.base is not None:
        _set_base(new, family, repair.base)
    if repair.unrotated or repair.rotated:
        _set_layers(new, family, stack, repair)
    return new


def _set_base(config: dict[str, Any], family: Family, base: float) -> None:
    nested = (config.get("rope_parameters"), config.get("rope_scaling"))
    places = [(place, "rope_theta") for place in (*nested, config) if isinstance(place, dict)]
    places += [(config, "rotary_emb_base")]
    if family.rotation.base is not None:
        places += [(config, family.rotation.base)]
    there = [(place, key) for place, key in places if key in place]
    if not there:
        raise InputError(
            f"config.json names no base that could be changed. Add rope_theta: {base:g} to it."
        )
    for place, key in there:
        place[key] = base


def _set_layers(config: dict[str, Any], family: Family, stack: Stack, repair: Repair) -> None:
    now = {k for k, layer in enumerate(stack.layers) if layer.rotary is not None}
    chosen = (now | {*repair.rotated}) - {*repair.unrotated}
    switches = family.rotation
    if switches.layers is not None and stack.position is Position.ROTARY:
        config[switches.layers] = sorted(chosen)
    elif switches.by_layer is not None:
        config[switches.by_layer] = [int(k in chosen) for k in range(stack.n_layers)]
    else:
        raise InputError(
            f"configs of {family.model_type!r} have no setting that says which layers are rotated, "
            "and no order of rows does. The code that runs the model must leave them out."
        )
