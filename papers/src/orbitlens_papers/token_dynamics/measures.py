"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens.flows.system import Mask
from orbitlens_papers.study import Measure
from orbitlens_papers.token_dynamics import arms, encodings, flows, real, rotary, training


def _compared(task: str, worse: str, better: str) -> Measure:
    return partial(training.compare, task=task, worse=worse, better=better)


def _arms(plan: str, worse: str, better: str) -> Measure:
    return partial(arms.compare, plan=plan, worse=worse, better=better)


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
    "6a": _arms("arms-narrow", "released-negative", "released-positive"),
    "6b": _arms("arms-mnist", "released-negative", "released-positive"),
    "6c": _compared("text", "anti", "guard"),
    "6d": _compared("digits", "anti", "guard"),
    "6e": partial(
        arms.across,
        worse=("arms-text", "theorem-negative"),
        better=("arms-text", "theorem-positive"),
    ),
    "7a": _arms("arms-narrow", "plain", "released-positive"),
    "7b": _arms("arms-mnist", "plain", "released-positive"),
    "7c": _arms("arms-rotary", "plain", "diagonal"),
    "7d": _compared("digits", "none", "diagonal"),
    "7e": partial(
        arms.across,
        worse=("arms-text", "plain"),
        better=("arms-narrow", "released-positive"),
    ),
}
