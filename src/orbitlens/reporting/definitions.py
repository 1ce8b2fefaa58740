"""The terms that a report uses.

Enters: nothing. Leaves: text that the page escapes.
"""

DEFINITIONS = {
    "orbit": (
        "Orbit",
        "The way of a token through a model: its state in front of each layer and behind the last.",
    ),
    "index": (
        "Expansion index",
        "From −1 to 1: the sum of a head's rates over the sum of their moduli. Positive: its value "
        "map is aligned with its score map; negative: opposed. Weights alone takes tokens as an "
        "isotropic cloud; the other reading uses the covariance measured in front of that layer.",
    ),
    "certificate": (
        "Certificates T1 to T5",
        "Theorems on the flow of one head repeated at every depth. One that holds is proved for "
        "these weights; one that does not hold says which hypothesis fails.",
    ),
    "change": (
        "ln change",
        "The natural logarithm of the factor by which the mean squared distance between pairs of "
        "tokens changes. 0.69 doubles it, −0.69 halves it.",
    ),
    "controls": (
        "Untrained twin and shuffled tokens",
        "The same trace of a model of the same config with fresh random weights, and of the same "
        "tokens in random order. What training or order does not change is no finding.",
    ),
    "closure": (
        "Predicted and simulated",
        "Predicted: from weights and from statistics of other contexts, by a closure that never "
        "sees the attention it predicts. Simulated: the layer's own flow for one unit of time.",
    ),
    "order": (
        "Order sensitivity",
        "How far the prediction moves when earlier tokens are shuffled: Jensen-Shannon divergence "
        "in bits, or relative change of the output where a model predicts nothing. The 2 × 2 "
        "switches encoding and mask off one at a time; shares are Shapley values.",
    ),
    "slice": (
        "Slice",
        "The column of states above one position. A probe asks whether it still stands for its own "
        "token and knows its place, with and without residual connections.",
    ),
    "check": (
        "Self-check",
        "A test on this very model that must come out one way for the numbers to mean anything.",
    ),
}
