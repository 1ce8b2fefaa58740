"""What measures each claim of the study, by the claim's key."""

from functools import partial

from orbitlens_papers.causal_attention import identity, recommending
from orbitlens_papers.study import Measure

MEASURES: dict[str, Measure] = {
    "1a": identity.skeleton_comes_back,
    "1b": identity.rows_may_be_scaled,
    "2a": partial(identity.share_of, part="recalled", whole="edges"),
    "2b": partial(identity.share_of, part="unlinked", whole="found"),
    "2c": partial(identity.share_of, part="arrows, right", whole="arrows"),
    "2d": identity.learners_agree,
    "3a": recommending.fewer_calls,
    "3b": recommending.no_longer,
    "3c": partial(recommending.smaller, than="attention"),
    "3d": partial(recommending.smaller, than="other session"),
    "3e": partial(recommending.smaller, than="attention, all sets", number="calls"),
    "4a": recommending.hits_parents,
    "4b": recommending.above_random,
    "4c": recommending.has_edges,
    "5a": partial(recommending.unchanged, what="moves", control="stays"),
    "5b": partial(recommending.unchanged, what="columns", control="entries"),
    "6a": partial(recommending.robust, to="samples", value="256"),
    "6b": partial(recommending.robust, to="level", value="0.05"),
    "7a": recommending.same_in_heads,
    "8a": recommending.paper_data,
}
