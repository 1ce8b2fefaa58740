"""Flow: a target and options -> the system to integrate, and where its tokens start.

Enters: a head, a layer, a `System` or the name of an example. Leaves: a `Flow`. The one place that
decides in which geometry a target is simulated.
"""

from dataclasses import dataclass, replace

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.flows.fields import lengths
from orbitlens.flows.normed import Norms, direction_system, typical_length, usual_length
from orbitlens.flows.real_tokens import LayerTokens
from orbitlens.flows.setup import Setup, SimulateOptions, build
from orbitlens.flows.system import Geometry, System, system_of_heads, system_of_layer
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer

MODEL_SPEEDS = {Geometry.SPHERE, Geometry.POST_LN, Geometry.PRE_LN}  # that a layer's outputs set


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What is integrated."""

    name: str  # whose flow it is
    system: System
    start: Tokens
    setting: str = ""  # of a model with norms: what is simulated, in words
    counts_layers: bool = True  # whether one unit of time is one layer of the model


def build_flow(
    target: object, options: SimulateOptions, tokens: Tokens | LayerTokens | None = None
) -> Flow:
    """Return the flow of a target under some options, from `tokens` or from normal ones.

    Raises:
        InputError: the target has no flow, or settings do not fit it.
    """
    given = tokens.before if isinstance(tokens, LayerTokens) else tokens
    if isinstance(target, (Head, AttentionLayer)):
        return _flow_of_heads(target, options, given)
    if isinstance(target, str):
        system, start = build(Setup.of(target, options))
        name = target
    elif isinstance(target, System):
        system, start = build(options, target)
        name = "a system"
    else:
        raise InputError(
            f"a {type(target).__name__} has no flow of its own; expected a head, an attention "
            "layer, a System or the name of an example system. A model's are "
            "model.head(layer, head) and model.layer(layer)."
        )
    return Flow(name=name, system=system, start=start if given is None else given)


def _flow_of_heads(
    target: Head | AttentionLayer, options: SimulateOptions, given: Tokens | None
) -> Flow:
    if isinstance(target, Head):
        plain, head, name = system_of_heads([target]), target, f"head {target.layer}.{target.index}"
    else:
        plain, head, name = system_of_layer(target), target.head(0), f"layer {target.index}"
    norms = Norms.of(head)
    if norms is None:
        system, drawn = build(options, plain)
        return Flow(name=name, system=system, start=drawn if given is None else given)
    geometry = options.geometry or norms.geometry(own_lengths=given is not None)
    if geometry is Geometry.FREE:
        return _without_norms(name, plain, norms, options, given)
    length = options.token_length
    if length is None:
        length = usual_length(plain.d_model)
        length = length if given is None else typical_length(norms.seen(given))
    moving = direction_system(plain, norms, geometry=geometry, length=length)
    asked = options if given is None else replace(options, n_tokens=len(given))
    system, drawn = build(asked, moving)
    if given is None:
        drawn = norms.seen(drawn)
        start = length * drawn / lengths(drawn)
    else:
        start = norms.seen(given.double())
    return Flow(
        name=name,
        system=system,
        start=start,
        setting=_setting(norms, geometry, length, own=given is not None),
        counts_layers=geometry in MODEL_SPEEDS,
    )


def _without_norms(
    name: str, plain: System, norms: Norms, options: SimulateOptions, given: Tokens | None
) -> Flow:
    """Return the flow that leaves the norms out: heads act on tokens as a norm hands them on."""
    system, start = build(options, plain)
    if given is not None:
        start = norms.seen(given.double())
        if norms.in_front:
            start = usual_length(plain.d_model) * start / lengths(start)
    setting = "raw tokens: the flow leaves out the norms that the model has"
    return Flow(name=name, system=system, start=start, setting=setting, counts_layers=False)


def _setting(norms: Norms, geometry: Geometry, length: float, *, own: bool) -> str:
    where = "in front of attention" if norms.in_front else "behind attention and MLP"
    seen = f"directions of tokens, as the model normalises them {where}"
    if geometry not in MODEL_SPEEDS:
        return f"{seen}; the speed is that of this geometry and not the model's"
    if own and not geometry.on_sphere:
        return f"{seen}; one unit of time is one layer, and each token has its own length"
    return f"{seen}; one unit of time is one layer of tokens of length {length:.4g}"
