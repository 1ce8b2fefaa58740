"""What `Watch` returns and writes: one `WatchReading` a reading, as one line of JSON.

Enters: numbers. Leaves: frozen dataclasses. Numbers by head are rows of one layer each, in the
order of `WatchHeader.layers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from orbitlens.watching.alarm import Alarm, Forecast

ByLayer = tuple[float, ...]
ByHead = tuple[ByLayer, ...]


@dataclass(frozen=True, kw_only=True)
class WatchedLayer:
    """One attention layer, as readings name it."""

    stack: str
    number: int  # in the model
    n_heads: int


@dataclass(frozen=True, kw_only=True)
class WatchHeader:
    """The first line of a record: what is watched."""

    model: str
    layers: tuple[WatchedLayer, ...]
    every: int
    tokens_every: int

    def name(self, layer: int) -> str:
        """Return what words call the layer of row `layer`."""
        found = self.layers[layer]
        alone = len({other.stack for other in self.layers}) == 1
        return f"layer {found.number}" if alone else f"{found.stack} layer {found.number}"


@dataclass(frozen=True, kw_only=True)
class TokenReading:
    """What a small batch of tokens did in the model; directions are those of theory section 7."""

    n_tokens: int  # of a context
    cosine: ByLayer  # C, mean cosine between tokens, in front of each layer and behind the last
    log_spread: ByLayer  # S = ln(1 - C)
    effective_rank: ByLayer  # of the tokens in front of each layer and behind the last
    direction_rank: ByLayer  # the same of tokens scaled to one length
    massive: ByLayer  # largest length of a token over its context's median, behind each layer
    massive_position: tuple[int, ...]  # of that token
    attention_update: ByLayer  # what attention adds, over the length of the stream
    block_update: ByLayer  # what the whole layer changes, over the length of the stream
    sharpness: ByHead  # mean of sum_j p_ij^2 over tokens that see at least half of a context
    largest_score: ByHead  # largest score (logit) of a visible pair
    written: ByHead  # what a head writes, over the length of the stream


@dataclass(frozen=True, kw_only=True)
class WatchReading:
    """One reading: the state of a model at a step of its training."""

    step: int
    loss: float | None
    seconds: float  # the reading took
    n_tokens: int  # of a context, for entropy floor and freezing
    heads: Mapping[str, ByHead]  # by the names of `head_measures.QUANTITIES`
    growth: Mapping[str, ByHead]  # d ln(quantity) / d step over the newest readings
    tokens: TokenReading | None = None
    broken: tuple[int, ...] = ()  # layers whose weights are NaN, infinite or beyond all bounds
    overflowed: tuple[int, ...] = ()  # layers behind which tokens are NaN or infinite
    alarms: tuple[Alarm, ...] = ()  # that are on
    expected: tuple[Forecast, ...] = ()  # heads that freeze soonest, if they go on as they do
    stop: bool = False  # whether an alarm that training is to stop on is on
    notes: tuple[str, ...] = ()  # what could not be read or written

    @property
    def new_alarms(self) -> tuple[Alarm, ...]:
        """The alarms that this reading raised."""
        return tuple(alarm for alarm in self.alarms if alarm.raised == self.step)

    def summary(self) -> str:
        """Return the reading in sentences."""
        loss = "" if self.loss is None else f", loss {self.loss:.3f}"
        said = [f"Step {self.step}{loss}: {len(self.alarms) or 'no'} alarms."]
        said += [f"{str(alarm)[0].upper()}{str(alarm)[1:]}." for alarm in self.alarms[:3]]
        if len(self.alarms) > 3:
            said.append(f"{len(self.alarms) - 3} more.")
        said += [
            f"{one.place}: at this pace an alarm in about {one.steps:.0f} steps."
            for one in self.expected[:1]
        ]
        return " ".join([*said, *self.notes])
