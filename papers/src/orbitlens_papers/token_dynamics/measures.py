"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens.flows.system import Mask
from orbitlens_papers.study import Measure
from orbitlens_papers.token_dynamics import encodings, flows, real, rotary, training


def _compared(task: str, position: str, worse: str, better: str) -> Measure:
    return partial(training.compare, task=task, position=position, worse=worse, better=better)


MEASURES: dict[str, Measure] = {
    "1a": flows.diverges,
    "1b": flows.pairs_never_shrink,
    "1c": flows.converges,
    "1d": flows.decay_exponent,
    "1e": flows.mixed_at_first,
    "1f": flows.euclidean_pairs,
    "1g": flows.mixed_for_good,
    "2a": partial(flows.conditions, twist=0.0, mask=Mask.FULL),
    "2b": flows.by_twist,
    "2c": partial(flows.conditions, twist=0.0, mask=Mask.CAUSAL),
    "3a": encodings.input_keeps_regime,
    "3b": encodings.reinjected_limit,
    "4a": encodings.rotary_voids,
    "4b": rotary.closure_follows,
    "4c": rotary.slows_with_context,
    "4d": real.rotary_damps_heads,
    "5a": real.heads_as_predicted,
    "5b": real.layers_shorten,
    "6a": _compared("text", "learned", "definite-negative", "definite-positive"),
    "6b": _compared("digits", "learned", "definite-negative", "definite-positive"),
    "6c": _compared("text", "rotary", "anti", "guard"),
    "6d": _compared("digits", "rotary", "anti", "guard"),
    "7a": _compared("text", "learned", "none", "definite-positive"),
    "7b": _compared("digits", "learned", "none", "definite-positive"),
    "7c": _compared("text", "rotary", "none", "diagonal"),
    "7d": _compared("digits", "rotary", "none", "diagonal"),
}
