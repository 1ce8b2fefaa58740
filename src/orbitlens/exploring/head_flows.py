"""The flows of a model's own heads, from its own tokens, as the page integrates them.

Enters: a model and a sentence. Leaves: a `LayerFlow` a layer: the plain system of all its heads,
the tokens of the sentence in front of it, the axes of the picture, where the model itself took
these tokens (the ghost), and the certificates of every head's flow. Arrays are float32,
little-endian, base64.
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens._types import Tokens
from orbitlens.errors import InputError
from orbitlens.exploring.sentence import MOST_TOKENS, Prompt, Sentence, sentence_of
from orbitlens.families.architecture import Pairing
from orbitlens.flows.flow import build_flow
from orbitlens.flows.normed import Norms, typical_length
from orbitlens.flows.outcome import log_spreads
from orbitlens.flows.prediction import predict
from orbitlens.flows.real_tokens import ContextStates, context_states, tokens_of_states
from orbitlens.flows.setup import SimulateOptions
from orbitlens.flows.system import Geometry, Mask, System, system_of_heads
from orbitlens.heads.head import Head
from orbitlens.heads.layers import AttentionLayer
from orbitlens.heads.rotary import resolve_rotary
from orbitlens.running.model import Model
from orbitlens.running.threads import one_thread

MOST_BYTES = 1_200_000  # of weights in a page, before base64
ONE_LAYER = 8_000_000  # up to which a page holds one layer at least
AXES = 3  # of the picture
TWO_STACKS = (
    "It has an encoder and a decoder, and flows start from real tokens of models with one stack."
)


@dataclass(frozen=True, kw_only=True)
class HeadRotary:
    """How queries and keys turn."""

    base: float
    d_rotary: int
    halves: bool
    frequencies: tuple[float, ...]
    factor: float
    plain: bool  # whether the frequencies are those of the base alone


@dataclass(frozen=True, kw_only=True)
class HeadCertificate:
    """A theorem about one head's flow at its own settings."""

    name: str
    holds: bool
    margin: float
    why: str


@dataclass(frozen=True, kw_only=True)
class LayerFlow:
    """One layer: what moves its tokens, and what the model itself did to them."""

    layer: int
    n_heads: int
    d_model: int
    d_head: int
    n_tokens: int
    causal: bool
    window: int | None
    rotary: HeadRotary | None
    slopes: tuple[float, ...] | None
    normed: bool  # whether attention sees directions
    in_front: bool  # the norm stands in front of attention, else on the stream
    length: float  # typical, of the tokens
    centred: bool  # the norm takes away the mean coordinate
    weights: str  # heads x (w_q, w_k, w_v: d x r; w_o: r x d)
    b_q: str  # heads x r, "" where there are none
    b_k: str
    drift: str  # heads x d: what each adds to every token
    b_o: str  # d: what the layer adds besides
    tokens: str  # n x d, as the norm sees them
    axes: str  # AXES x d
    ghost: tuple[str, ...]  # depth by depth from here: n x AXES, directions on the axes
    ghost_cosine: tuple[float, ...]  # mean cosine over pairs at each of them
    head_cosine: tuple[float, ...]  # after one head alone; empty where that is not defined
    certificates: Mapping[str, tuple[tuple[HeadCertificate, ...], ...]]  # geometry, head


@dataclass(frozen=True, kw_only=True)
class ModelFlows:
    """The layers that a page holds, and why it holds no others."""

    tokens: tuple[str, ...]  # names
    layers: tuple[LayerFlow, ...]
    why_missing: str


@dataclass(frozen=True, kw_only=True)
class AnsweredLayer:
    """One layer as a server answers it, and the tokens that it moves."""

    tokens: tuple[str, ...]  # names
    flow: LayerFlow


def model_flows(model: Model, given: Prompt, *, budget: int = MOST_BYTES) -> ModelFlows:
    """Return the layers of a model whose weights fit a page, evenly spread over its depth."""
    if len(model.architecture.stacks) > 1:
        return ModelFlows(tokens=(), layers=(), why_missing=TWO_STACKS)
    try:
        first = model.running.layer(0)
        system_of_heads(list(first))  # says why, where a head has no flow
        n_layers = model.architecture.stacks[0].n_layers
        size = _weight_bytes(first)
        chosen = _spread(n_layers, max(budget // size, 1 if size <= ONE_LAYER else 0))
        sentence = sentence_of(model.running, given)
        seen = _read(model, sentence, range(n_layers))
    except InputError as error:
        return ModelFlows(tokens=(), layers=(), why_missing=str(error))
    missing = "" if len(chosen) == n_layers else _too_large(model, n_layers, len(chosen))
    return ModelFlows(
        tokens=sentence.names,
        layers=tuple(layer_flow(model, seen, layer) for layer in chosen),
        why_missing=missing,
    )


def read_layer(model: Model, given: Prompt, layer: int) -> AnsweredLayer:
    """Return the flow of one layer from the tokens of a sentence in front of it.

    Raises:
        InputError: there is no such layer, it has no flow, or the sentence cannot be run.
    """
    if len(model.architecture.stacks) > 1:
        raise InputError(TWO_STACKS)
    n_layers = model.architecture.stacks[0].n_layers
    if not 0 <= layer < n_layers:
        raise InputError(f"there is no layer {layer}: the model has layers 0 to {n_layers - 1}.")
    sentence = sentence_of(model.running, given)
    seen = _read(model, sentence, range(layer, n_layers))
    return AnsweredLayer(tokens=sentence.names, flow=layer_flow(model, seen, layer))


def _read(model: Model, sentence: Sentence, layers: range) -> ContextStates:
    return context_states(model, sentence.fed, n_tokens=MOST_TOKENS, layers=layers)


def _spread(n_layers: int, fits: int) -> list[int]:
    """Return as many layers as fit, evenly spread, the first and the last among them.

    >>> _spread(4, 9), _spread(10, 3), _spread(10, 0)
    ([0, 1, 2, 3], [0, 4, 9], [])
    """
    count = min(n_layers, fits)
    if count < 2:
        return list(range(count))
    return [k * (n_layers - 1) // (count - 1) for k in range(count)]


def _weight_bytes(layer: AttentionLayer) -> int:
    head = layer.head(0)
    return 4 * 4 * layer.n_heads * head.d_model * head.d_head


def _too_large(model: Model, n_layers: int, held: int) -> str:
    return (
        f"This page holds {held} of {n_layers} layers: the weights of all would make it too large. "
        f"Run `orbitlens explore {model.name}` for the others."
    )


def layer_flow(model: Model, seen: ContextStates, index: int) -> LayerFlow:
    """Return one layer of a context."""
    layer = model.running.layer(index)
    heads = list(layer)
    plain = system_of_heads(heads)
    norms = Norms.of(heads[0])
    own = tokens_of_states(layer, seen.states[index])
    before = own.before if norms is None else norms.seen(own.before)
    axes = picture_axes(before)
    depths = [seen.states[k].before[0] for k in sorted(seen.states) if k >= index]
    streams = [x.double().cpu() for x in (*depths, seen.states[max(seen.states)].after[0])]
    streams = streams if norms is None else [norms.seen(x) for x in streams]
    parts = [] if own.heads is None else [own.before + part for part in own.heads]
    return LayerFlow(
        layer=index,
        n_heads=len(heads),
        d_model=plain.d_model,
        d_head=plain.d_head,
        n_tokens=len(before),
        causal=plain.mask is Mask.CAUSAL,
        window=plain.window,
        rotary=_rotary(plain, len(before)),
        slopes=None if plain.alibi_slopes is None else tuple(plain.alibi_slopes.tolist()),
        normed=norms is not None,
        in_front=norms is not None and norms.in_front,
        length=typical_length(before),
        centred=norms is not None and norms.centres,
        weights=_packed(*(w for head in _maps(plain) for w in head)),
        b_q=_bias(plain.b_q),
        b_k=_bias(plain.b_k),
        drift=_bias(torch.stack([head.value_shift for head in heads])),
        b_o=_bias(layer.b_o.double()),
        tokens=_packed(before),
        axes=_packed(axes),
        ghost=tuple(_packed(_directions(x) @ axes.T) for x in streams),
        ghost_cosine=tuple(_cosine(x) for x in streams),
        head_cosine=tuple(_cosine(x if norms is None else norms.seen(x)) for x in parts),
        certificates=_certificates(heads, own.before, normed=norms is not None),
    )


def picture_axes(tokens: Tokens) -> Float[Tensor, "axes d_model"]:
    """Return the three directions in which the directions of tokens vary most, signs settled."""
    y = _directions(tokens)
    _, _, found = torch.linalg.svd(y - y.mean(dim=0), full_matrices=False)
    axes = torch.zeros(AXES, tokens.shape[1], dtype=torch.float64)
    axes[: len(found[:AXES])] = found[:AXES]
    # A singular vector's sign is arbitrary: its largest coordinate is made positive.
    return axes * axes.gather(1, axes.abs().argmax(dim=1, keepdim=True)).sign()


def _maps(system: System) -> list[tuple[Tensor, ...]]:
    maps = (system.w_q, system.w_k, system.w_v, system.w_o)
    return [tuple(w[h] for w in maps) for h in range(system.n_heads)]


def _rotary(system: System, n_tokens: int) -> HeadRotary | None:
    spec = system.rotary
    if spec is None:
        return None
    turns = resolve_rotary(spec, n_tokens)
    return HeadRotary(
        base=spec.base,
        d_rotary=spec.d_rotary,
        halves=spec.pairing is Pairing.HALVES,
        frequencies=tuple(turns.frequencies.tolist()),
        factor=turns.factor,
        plain=spec.kind == "default" and spec.frequency_divisors is None,
    )


def _certificates(
    heads: Sequence[Head], before: Tokens, *, normed: bool
) -> dict[str, tuple[tuple[HeadCertificate, ...], ...]]:
    """Return what theorems say of each head's flow from these tokens, in each geometry."""
    shown = (Geometry.SPHERE, Geometry.FREE) if normed else (Geometry.FREE,)
    with one_thread():  # many small matrices: more would wait for each other
        return {
            geometry.value: tuple(_of_head(head, before, geometry) for head in heads)
            for geometry in shown
        }


def _of_head(head: Head, before: Tokens, geometry: Geometry) -> tuple[HeadCertificate, ...]:
    flow = build_flow(head, SimulateOptions(geometry=geometry, n_tokens=len(before)), before)
    return tuple(
        HeadCertificate(name=c.name, holds=c.holds, margin=c.margin, why=c.why)
        for c in predict(flow.system, flow.start).certificates
    )


def _directions(x: Tokens) -> Tokens:
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-300)


def _cosine(x: Tokens) -> float:
    return 1.0 - log_spreads(x[None]).exp().item()


def _bias(values: Tensor | None) -> str:
    return "" if values is None or not bool(values.any()) else _packed(values)


def _packed(*arrays: Tensor) -> str:
    data = b"".join(a.float().contiguous().numpy().astype("<f4").tobytes() for a in arrays)
    return base64.b64encode(data).decode()
