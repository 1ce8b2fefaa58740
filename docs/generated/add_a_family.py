"""The tables of docs/add-a-family.md: what a family can say, with defaults from the source."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from generated.tables import table

from orbitlens.families.family import Family, Hooks, RotationSwitches
from orbitlens.families.feed import Feed
from orbitlens.families.gguf import Storage
from orbitlens.families.layout import Layout

LAYOUT = {
    "stack": "`decoder` or `encoder`",
    "causal": "a token sees only what came before",
    "prefixes": "what may stand in front of every name; the first that fits is taken",
    "layer": "name of a layer, with `{layer}` for its number",
    "qkv": "names of the query, key and value weights; one name if they are fused",
    "o": "name of the output weight",
    "fused_order": "`blocks`: q, k, v one after another; `groups`: queries, key, value by group",
    "transposed": "weights are stored as (in, out), as in Conv1D",
    "norm": "name of the norm in front of attention, or none",
    "norm_kind": "LayerNorm or root mean square",
    "norm_weightless": "the norm has no gain to read",
    "norm_gain_offset": "added to stored gains",
    "norm_epsilon": "where the config gives none",
    "output_norm": "name of a norm on attention's output",
    "post_norm": "where there is neither of these norms: norms stand on the stream itself",
    "qk_norm": "names of the norms on queries and keys; `{head}` for one a head",
    "qk_norm_kind": "LayerNorm or root mean square",
    "qk_norm_scope": "within each head, or over all heads",
    "clip": "bound on queries, keys and values",
    "softcap": "scores become cap · tanh(score / cap)",
    "parallel": "attention and MLP read the same input",
    "position": "kind of position encoding",
    "positions": "name of the table of absolute positions",
    "position_offset": "rows of that table that no token uses",
    "relative_bias": "name of T5's table of biases",
    "pairing": "which coordinates a rotary encoding turns together",
    "rotary_base": "where the config gives none",
    "rotary_share": "part of a head that is turned, where the config does not say",
    "rotary_layer_type": "which of several encodings a layer has",
    "is_turned": "whether the rotary encoding acts in a layer",
    "alibi_scale": "multiplies the standard slopes",
    "window": "how many tokens a token sees, itself included",
    "scale": "multiplies query-key products",
    "n_layers": "layers of the stack",
    "attention_layers": "numbers of the layers with attention, where not all have it",
    "n_heads": "query heads a layer",
    "n_kv_heads": "key/value heads a layer",
    "d_head": "width of a head; none: d_model / n_heads",
    "latent": "bottlenecks that queries, keys and values come through, in place of `qkv`",
    "recipe": "how maps are computed from parameters, where the file has no weights of heads",
    "recipe_extra": "a third tensor that maps are computed from",
    "refusal": "why heads have no maps that could be read, in words",
    "fading": "attention has no softmax; what a score keeps from one token to the next",
    "flags": "what the reading leaves out, in words",
}
FEED = {
    "kind": "decoder, encoder, image, or a tower of an encoder-decoder",
    "encoding": "how positions enter",
    "ids": "the argument that takes position ids",
    "ids_follow_mask": "ids that are not given are counted along the attention mask",
    "first_id": "the id of the first token",
    "mask": "the argument that takes a 4-D mask; none: a hook gives it",
    "by_layer_type": "the mask argument takes one mask for each type of layer",
    "window": "sliding window of all layers, or of the sliding ones by type",
    "attention": "class of the modules that a hook gives masks and biases to",
    "steer": "what that hook does to the arguments of such a module",
    "mask_buffers": "class and buffer, where modules keep masks of their own",
    "n_special": "tokens in front that are no items, such as a class token",
    "causal": "the model's own mask",
    "companion": "config to the other tower's input, where only one is given",
    "shift_matters": "whether shifting all ids moves the output; none: unknown",
    "obstacle_encoding": "why the encoding cannot be removed, in words",
    "obstacle_mask": "why the mask cannot be changed, in words",
}
HOOKS = {
    "renamed": "parts of tensor names, and of module names where they differ",
    "post_norms": "the two norms on the residual stream of post-norm layers",
    "first_number": "a layer's name ends at its first number, not at the last",
}
STORAGE = {
    "pairing": "which coordinates turn together, after the converter's reordering; none: no rotary",
    "kv_heads_by_layer": "the count of key heads may be a list; `config` reads it",
    "layer_norm": "LayerNorm, else root mean square; says which epsilon counts",
    "config": "metadata to further keys of a Hugging Face config",
    "names": "metadata to names of tensors that are not the usual ones",
    "stack_names": "names that differ from stack to stack",
    "flags": "metadata to what the reading leaves out, in words",
}
FAMILY = {
    "model_type": "the `model_type` of `config.json`",
    "stacks": "a `Layout` for each tower: where the weights are",
    "classes": "how its classes in transformers begin, for configs without `model_type`",
    "feed": "a `Feed`: how it is told positions and masks; none: it is only scanned",
    "other_feeds": "by stack, where a second tower is fed in another way",
    "feed_by_config": "what of the feed depends on the config",
    "hooks": "a `Hooks`: where modules differ from what names of tensors say",
    "rotation": "a `RotationSwitches`: where a running model keeps which layers are rotated",
    "gguf": "a `Storage` for each GGUF architecture it is stored as",
    "is_own": "its classes are orbitlens' own",
}


def family() -> str:
    """Return what a `Family` holds."""
    return _fields(Family, FAMILY)


def layout() -> str:
    """Return what a `Layout` holds."""
    return _fields(Layout, LAYOUT)


def feed() -> str:
    """Return what a `Feed` holds."""
    return _fields(Feed, FEED)


def hooks() -> str:
    """Return what `Hooks` hold."""
    return _fields(Hooks, HOOKS)


def storage() -> str:
    """Return what a `Storage` holds."""
    return _fields(Storage, STORAGE)


def _fields(kind: Any, meanings: Mapping[str, str]) -> str:  # noqa: ANN401
    fields = dataclasses.fields(kind)
    assert [field.name for field in fields] == list(meanings), kind
    rows = [(f"`{field.name}`", meanings[field.name], _default(field)) for field in fields]
    return table(["Entry", "Meaning", "Default"], rows)


def _default(field: "dataclasses.Field[Any]") -> str:
    value = field.default
    if value is dataclasses.MISSING:
        return "none" if field.default_factory is not dataclasses.MISSING else "(required)"
    if value is None or value in ((), Hooks(), RotationSwitches()):
        return "none"
    if callable(value):
        return "from the config" if value.__name__ == "<lambda>" else f"`{value.__name__}`"
    if isinstance(value, tuple):
        return ", ".join(f'`"{part}"`' for part in value)
    return f"`{value}`"
