"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.autoregression import angles, augmented, plain
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": plain.reaches_zero,
    "1b": plain.diagonal,
    "1c": plain.last_place,
    "1d": plain.applies_estimate,
    "1e": plain.loss_formula,
    "2a": plain.heads_are_orthogonal,
    "3a": plain.capacity,
    "4a": plain.half_suffices,
    "4b": plain.half_is_needed,
    "4c": plain.half_rule,
    "4d": plain.family,
    "5a": partial(augmented.direction, kind="structured", what="aligned"),
    "5b": partial(augmented.error, kind="structured", both_sides=True),
    "5c": partial(augmented.direction, kind="free", what="cosine"),
    "5d": partial(augmented.error, kind="free", both_sides=False),
    "5e": partial(augmented.error, kind="free", both_sides=True),
    "5f": partial(augmented.direction, kind="structured", what="cosine"),
    "6a": angles.small_angles,
    "7a": partial(plain.order_is_needed, how="shuffled"),
    "7b": partial(plain.order_is_needed, how="constant"),
}
