"""How much a trace runs and works out."""

from dataclasses import dataclass

from orbitlens.running.inputs import NORMALISE


@dataclass(frozen=True, kw_only=True)
class TraceOptions:
    """How much is run, and what is worked out besides the measurements."""

    max_tokens: int = 20_000
    context: int | None = None  # tokens of a context; 128 or the model's positions if not given
    batch: int = 8  # contexts run at once
    shuffle: bool = False  # control: tokens in random order
    twin: bool = False  # control: an untrained model of the same config, traced as well
    mechanisms: bool = False  # induction, saturation and margin of heads, beside a twin's
    by_token: bool = False  # also follow each token of the first context
    normalise: tuple[float, float] = NORMALISE  # mean and deviation for images of whole numbers

    direction_closures: tuple[str, ...] = ("mean", "three-points", "points")  # beside the ceiling
    forecasts: tuple[str, ...] = ("embedding", "embedding-zipf")  # of directions, without a text
    closures: tuple[str, ...] = ("plain", "frozen", "points")  # for raw distances
    closure: str = "points"  # the one that "predicted" means for raw distances
    n_kept: int = 1024  # tokens kept, in whole contexts, for patterns, flows and surrogates
    seed: int = 0
    flow_steps: int = 4  # Runge-Kutta steps a layer
