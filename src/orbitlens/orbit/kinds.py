"""Which attention layer a config asks for.

Enters: an `OrbitConfig`. Leaves: a fresh layer of the kind that `attention` names; softmax comes in
the form of its refinement.
"""

from collections.abc import Callable

from orbitlens.orbit.attention import OrbitAttention
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.plastic import PlasticAttention
from orbitlens.orbit.refinements import ATTENTIONS

KINDS: dict[str, Callable[[OrbitConfig], OrbitAttention]] = {"plastic": PlasticAttention}


def make_attention(config: OrbitConfig) -> OrbitAttention:
    """Return the attention layer of a config, its weights not yet drawn."""
    return KINDS.get(config.attention, ATTENTIONS[config.refinement])(config)
