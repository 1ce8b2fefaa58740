"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.breaking_symmetry import exact, learning, real, slices
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": exact.full_is_blind,
    "1b": real.blind_without_both,
    "2a": exact.encoding_breaks,
    "2b": exact.mask_breaks,
    "2c": exact.one_causal_layer_is_blind,
    "2d": exact.without_residuals,
    "2e": real.either_breaks,
    "2f": real.one_layer_is_blind,
    "3a": learning.mask_is_enough,
    "3b": learning.full_meets_ceiling,
    "4a": slices.position_is_decodable,
    "4b": slices.neighbours_are_close,
    "5a": partial(learning.trained_slices, over="last"),
    "5b": partial(learning.trained_slices, over="mean"),
    "5c": slices.slices_keep_identity,
    "5d": partial(learning.trained_slices, over="least"),
    "6a": partial(learning.residuals_keep_trained_slices, over="last"),
    "6b": learning.residuals_help_learning,
    "6c": partial(learning.one_residual_suffices, kept="attention"),
    "6d": partial(learning.one_residual_suffices, kept="mlp"),
    "6e": partial(learning.residuals_keep_trained_slices, over="least"),
    "6f": slices.residuals_keep_identity,
}
