"""The thresholds of alarms, in one place.

Most are set by hand. Those of collapse and freezing were put to the test of docs/watch.md: learned
on half of its settings, so that 5 % of sound runs exceed them, and judged on the other half.
Collapse has the learned number, which 10 % of the sound runs judged exceeded. Freezing stays where
theory has it: 72 % of them exceeded it, and the learned number, 472, tells next to no failure in
time. A head that freezes is a fact of attention, and by itself no forecast.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Thresholds:
    """From where on an alarm is raised; an alarm stays on until its number is back below."""

    freezing: float = 1.0  # score spread over sqrt(2 ln n): where the softmax freezes (T7)
    sharpness: float = 0.9  # mean sum of squared attention weights, measured on tokens
    collapse: float = 0.9954  # mean cosine between tokens; learned
    dead_head: float = 1e-3  # what a head writes, over the length of the stream
    dead_share: float = 0.1  # and over the most it wrote in any reading before
    massive: float = 10.0  # length of a token over the median of its context
    idle_layer: float = 1e-3  # change of the stream by a layer, over its length
    horizon: float = 500.0  # steps ahead for which a threshold's crossing is told
    readings: int = 2  # in a row that it takes, but for weights that are NaN


DEFAULT = Thresholds()
