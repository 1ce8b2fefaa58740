"""The thresholds of alarms, in one place.

Provisional: set by hand from theory, before any run was judged by them. The experiment of
docs/watch.md replaces them by numbers learned on half of its settings and frozen for the other.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """From where on an alarm is raised; an alarm stays on until its number is back below."""

    freezing: float = 1.0  # score spread over sqrt(2 ln n): where the softmax freezes (T7)
    sharpness: float = 0.9  # mean sum of squared attention weights, measured on tokens
    collapse: float = 0.98  # mean cosine between tokens
    dead_head: float = 1e-3  # what a head writes, over the length of the stream
    dead_share: float = 0.1  # and over the most it wrote in any reading before
    massive: float = 10.0  # length of a token over the median of its context
    idle_layer: float = 1e-3  # change of the stream by a layer, over its length
    horizon: float = 500.0  # steps ahead for which a threshold's crossing is told
    readings: int = 2  # in a row that it takes, but for weights that are NaN


DEFAULT = Thresholds()
