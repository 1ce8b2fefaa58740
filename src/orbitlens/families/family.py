"""Family: all that orbitlens knows about one family of models, in one object and one file.

Enters: nothing (plain data). Leaves: where its weights are (`stacks`), how it is fed (`feed`),
where hooks go (`hooks`), how GGUF files store it (`gguf`). `registry.py` lists them all.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from orbitlens.families.feed import Feed, as_it_is, settled, settled_rotary
from orbitlens.families.gguf import Storage
from orbitlens.families.layout import Layout

# What transformers puts behind a family's name in the names of its classes.
CLASS_ENDINGS = (
    r"(LMHead|DoubleHeads|Text|Encoder|Decoder|PreTrained)?Model|For[A-Z]\w*|WithLMHead\w*"
)


@dataclass(frozen=True, kw_only=True)
class Hooks:
    """Where transformers' modules differ from what the names of tensors say."""

    renamed: tuple[tuple[str, str], ...] = ()  # parts of tensor names -> of module names
    # The two norms on the residual stream of post-norm layers, within the layer.
    post_norms: tuple[str, str] | None = None
    first_number: bool = False  # the layer ends at the first number of a name, not at the last


@dataclass(frozen=True, kw_only=True)
class RotationSwitches:
    """Where a running model of the family keeps what decides over its rotation.

    Without any, layers are handed their angles, or the numbers of their tokens, and the base is
    that of one table called `inv_freq`.
    """

    layers: str | None = None  # setting of the config: the numbers of rotated layers, or "all"
    attention: str | None = None  # attribute of a layer's attention: whether it is rotated
    by_layer: str | None = (
        None  # setting that stands for it in config.json: a 1 or 0 for each layer
    )
    base: str | None = None  # setting of the config
    kept: str | None = None  # the part of the module that must `forget` once a setting has changed


@dataclass(frozen=True, kw_only=True)
class Family:
    """One family of models."""

    model_type: str  # of config.json
    stacks: tuple[Layout, ...]  # an encoder-decoder has two
    classes: tuple[str, ...] = ()  # names of its classes in transformers, or what they begin with
    feed: Feed | None = None  # None: only scanned
    other_feeds: Mapping[str, Feed] = field(default_factory=dict)  # by stack, where they differ
    feed_by_config: Callable[[Feed, Any], Feed] = as_it_is
    hooks: Hooks = Hooks()
    rotation: RotationSwitches = RotationSwitches()
    gguf: Mapping[str, Storage] = field(default_factory=dict)  # by GGUF's general.architecture
    is_own: bool = False  # its classes are orbitlens' own, not transformers'

    def has_class(self, name: str) -> bool:
        """Say whether a class of transformers builds models of this family."""
        return any(
            name == stem or re.fullmatch(re.escape(stem) + f"({CLASS_ENDINGS})", name)
            for stem in self.classes
        )

    def feed_for(self, config: Any, stack: str | None = None) -> Feed | None:  # noqa: ANN401
        """Return how a model with this config is fed; `stack` picks a tower where it has two."""
        feed = self.other_feeds.get(stack or "", self.feed)
        if feed is None:
            return None
        return settled_rotary(self.feed_by_config(settled(feed, config), config), config)
