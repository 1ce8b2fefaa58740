"""The thresholds of alarms, in one place.

Freezing, collapse and gathering were learned in the experiment of docs/watch.md: they are what no
sound run of 100 settings went beyond, so that a sound run of a new setting does so in each of them
with a chance of less than 2 %. The others are set by hand. Numbers below them are readings: shown,
and no alarm. That the softmax over random scores freezes at a ratio of 1 (theory T7) is such a
reading: most sound runs have heads beyond it.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """From where on an alarm is raised; an alarm stays on until its number is back below."""

    freezing: float = 3890.0  # score spread over sqrt(2 ln n); learned
    collapse: float = 1.14  # effective rank of the tokens' directions; learned
    gathering: float = 0.989  # rise of the mean cosine above its least so far; learned
    dead_head: float = 1e-3  # what a head writes, over the length of the stream
    dead_share: float = 0.1  # and over the most it wrote in any reading before
    massive: float = 10.0  # length of a token over the median of its context
    idle_layer: float = 1e-3  # change of the stream by a layer, over its length
    horizon: float = 500.0  # steps ahead for which a threshold's crossing is told
    readings: int = 1  # in a row that it takes


DEFAULT = Thresholds()
