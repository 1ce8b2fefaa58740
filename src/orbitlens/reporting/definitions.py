"""The terms that a report uses.

Enters: nothing. Leaves: text that the page escapes.
"""

DEFINITIONS = {
    "orbit": (
        "Orbit",
        "The way of a token through a model: its state in front of each layer and behind the last.",
    ),
    "direction": (
        "Directions, C and S",
        "The direction of a token is its state at length one (behind a LayerNorm, without its mean "
        "coordinate): what the next layer sees of it. C is the mean cosine over pairs of tokens of "
        "a context; 1 − C is half the mean squared distance between directions; S = ln(1 − C). "
        "Where S falls, directions gather: they come closer. Where it rises, they spread.",
    ),
    "share": (
        "What a head does to directions",
        "Its part of attention's change of S, integrated along the step of the layer: the parts of "
        "all heads and of biases add up to the change by attention.",
    ),
    "index": (
        "Expansion index; aligned and opposed",
        "From −1 to 1: the sum of a head's expansion rates over the sum of their moduli, read from "
        "its weights. Positive: its value map is aligned with its score map; negative: opposed to "
        "it; neutral where randomly turned maps would do the same. It is a property of two maps, "
        "not of what happens to tokens.",
    ),
    "certificate": (
        "Certificates",
        "Theorems on the flow of one head alone repeated at every depth: N1c, N2 and N4 where "
        "tokens are normalised, T1 to T5 where they are not. One that holds is proved for these "
        "weights; one that does not hold says which hypothesis fails.",
    ),
    "change": (
        "ΔS and ln change",
        "ΔS is a change of S = ln(1 − C): −0.69 halves the mean squared distance between "
        "directions, 0.69 doubles it. Attention, MLPs and norms add up. The ln change of raw "
        "distances is the same of squared distances in the raw stream.",
    ),
    "controls": (
        "Untrained twin and shuffled tokens",
        "The same trace of a model of the same config with fresh random weights, and of the same "
        "tokens in random order. What training or order does not change is no finding.",
    ),
    "closure": (
        "Predicted and simulated",
        "Predicted: from weights and from statistics of other contexts, by a closure that never "
        "sees the attention it predicts. Ceiling: the same measurement on other contexts. "
        "Simulated: the layer's own flow for one unit of time.",
    ),
    "order": (
        "Order sensitivity",
        "How far the prediction moves when earlier tokens are shuffled: Jensen-Shannon divergence "
        "in bits, or relative change of the output where a model predicts nothing. The 2 × 2 "
        "switches encoding and mask off one at a time; shares are Shapley values.",
    ),
    "reach": (
        "Reach of a context",
        "By how much more the same tokens lose (nats) behind a longer context than behind one as "
        "long as in training. Predicted: from short texts, some of whose tokens get positions far "
        "back and count for many. A plane is a pair of a head's coordinates that a rotary encoding "
        "turns; one whose period is longer than the trained context meets angles beyond it that no "
        "training text had. Attention over distance is that of tokens drawn at random (T7).",
    ),
    "cut": (
        "Cut",
        "The model run without one part: a layer hands on what it was given, a head adds nothing. "
        "Shown is the loss less that of the whole model on the same contexts, with its standard "
        "error. Weights are not touched. Beside it what each head does to directions, measured and "
        "predicted (ΔS, the change of ln(1 − C)).",
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
