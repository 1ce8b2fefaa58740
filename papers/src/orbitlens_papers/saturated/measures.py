"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.saturated import certificates, compiling, learned, majority, precision
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": majority.decides_majority,
    "2a": majority.is_limit,
    "3a": certificates.few_bits_decide,
    "3b": certificates.wrong_on_majority,
    "3c": certificates.deeper_too,
    "4a": compiling.same_function,
    "4b": compiling.constant_depth,
    "4c": compiling.polynomial_size,
    "5a": precision.few_bits,
    "5b": precision.second_layer_needs_more,
    "6a": learned.generalises,
    "6b": partial(learned.encoding_hurts, encoding="sinusoidal"),
    "6c": partial(learned.encoding_hurts, encoding="learned"),
    "6d": learned.hard_fails,
}
