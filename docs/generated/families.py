"""The tables of docs/families.md: what is known about each family, from its file."""

from collections.abc import Callable
from typing import Any

from generated.tables import table

from orbitlens.errors import CheckpointError
from orbitlens.families.family import Family
from orbitlens.families.layout import Layout
from orbitlens.families.registry import FAMILIES, GGUF_ARCHITECTURES
from orbitlens.families.settings import ROTARY_KINDS, Settings
from orbitlens.running.gguf_models import runnable_gguf

USUAL = Settings({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}, "usual")
ORDER = {None: "apart", "blocks": "q, k, v in one tensor", "groups": "in one tensor, by group"}


def families() -> str:
    """Return one row for each stack of each family."""
    header = ["`model_type`", "Stack", "Mask", "Norm in front", "Positions", "q, k, v stored"]
    rows = [
        _row(name, family, layout)
        for name, family in sorted(FAMILIES.items())
        for layout in family.stacks
    ]
    return table([*header, "Also", "Audit"], rows)


def rotary_kinds() -> str:
    """Return the kinds of rotary encodings."""
    return f"Scaling types: {_listed(ROTARY_KINDS)}."


def gguf() -> str:
    """Return the GGUF architectures that are read, and those that can be run."""
    read, run = sorted(GGUF_ARCHITECTURES), sorted(runnable_gguf())
    return (
        f"Read, as GGUF's `general.architecture` spells them: {_listed(read)}."
        f"\n\nAlso run, by transformers: {_listed(run)}."
    )


def _row(name: str, family: Family, layout: Layout) -> tuple[str, ...]:
    kind = _usual(layout.norm_kind, lambda value: value.value).removesuffix("†")
    stored = "through latents" if layout.latent else _usual(layout.fused_order, ORDER.__getitem__)
    return (
        f"`{name}`",
        layout.stack,
        _usual(layout.causal, lambda causal: "causal" if causal else "full"),
        _usual(layout.norm, lambda norm: "none" if norm is None else kind),
        _usual(layout.position, lambda position: position.value),
        stored,
        _extras(layout),
        _audit(family, layout),
    )


def _audit(family: Family, layout: Layout) -> str:
    feed = family.other_feeds.get(layout.stack, family.feed)
    if feed is None:
        return "no"
    return "as it is" if feed.obstacle_encoding else "yes"


def _usual(entry: Any, show: Callable[[Any], str]) -> str:  # noqa: ANN401
    """Return an entry as it is for a config that leaves everything else out."""
    if not callable(entry):
        return show(entry)
    try:
        return show(entry(USUAL)) + "†"
    except CheckpointError:
        return "†"


def _extras(layout: Layout) -> str:
    known = {
        "QK-norm": layout.qk_norm,
        "soft cap": layout.softcap,
        "clipping": layout.clip,
        "norm on output": layout.output_norm,
        "parallel MLP": layout.parallel,
        "layers without attention": layout.attention_layers,
    }
    return ", ".join(k + ("†" if callable(v) else "") for k, v in known.items() if v) or "–"


def _listed(names: Any) -> str:  # noqa: ANN401
    return ", ".join(f"`{name}`" for name in names)
