"""Trajectory: tokens at each depth. Simulation and measurement both return it.

Enters: nothing (plain data). Leaves: a result. Tokens that ran to infinity are kept as
unit-size tokens and the logarithm of their scale, so that nothing overflows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from orbitlens.draw.figure import GRID
from orbitlens.errors import InputError
from orbitlens.results.base import Result
from orbitlens.results.html import HtmlTable
from orbitlens.results.plotting import GATHER
from orbitlens.results.tidy import data_frame

if TYPE_CHECKING:
    import pandas

FRAMES = 40  # moments of a moving figure, about
HUGE = 20.0  # log of a scale beyond which a figure shows unit tokens


class Status(StrEnum):
    """How a trajectory ended; `Trajectory.ending` says it in words, with the time."""

    FINISHED = "finished"
    DIVERGED = "diverged"
    CONVERGED = "converged"
    COLLAPSED = "collapsed"
    STEP_LIMIT = "step limit"


ENDINGS = {
    Status.FINISHED: "ran to t = {until:g}; tokens neither ran away nor settled",
    Status.DIVERGED: "tokens ran away: they left every bounded region at t = {time:.4g}",
    Status.CONVERGED: "all tokens settled at one point at t = {time:.4g}",
    Status.COLLAPSED: "tokens collapsed to {clusters} clusters at t = {time:.4g}",
    Status.STEP_LIMIT: "stopped at t = {time:.4g} by the limit on steps: ask for more steps, a "
    "looser tolerance or a shorter time",
}


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened on the way."""

    time: float
    what: str


@dataclass(frozen=True, kw_only=True, repr=False)
class Trajectory(Result):
    """Tokens at saved times (or layers)."""

    KIND: ClassVar[str] = "trajectory"

    times: Float[Tensor, " steps"]
    unit_tokens: Float[Tensor, "steps tokens d_model"]  # tokens divided by exp(log_scale)
    log_scale: Float[Tensor, " steps"]  # 0 where tokens are stored as they are
    status: Status
    status_time: float
    n_clusters: int  # at the end
    n_evaluations: int
    n_steps: int
    events: tuple[Event, ...]

    @property
    def tokens(self) -> Float[Tensor, "steps tokens d_model"]:
        """The tokens themselves; infinite where they are too large for a float64."""
        grown = self.unit_tokens * torch.exp(self.log_scale)[:, None, None]
        return torch.where(self.unit_tokens == 0, 0.0, grown)  # not NaN where the scale is infinite

    @property
    def final(self) -> Float[Tensor, "tokens d_model"]:
        """The tokens at the end."""
        return self.tokens[-1]

    @property
    def ending(self) -> str:
        """What happened, in words."""
        until = self.times[-1].item()
        clusters = self.n_clusters
        return ENDINGS[self.status].format(until=until, time=self.status_time, clusters=clusters)

    def summary(self) -> str:
        """Return how many tokens were followed and how it ended."""
        n_steps, n_tokens, d_model = self.unit_tokens.shape
        return f"{n_tokens} tokens of width {d_model} at {n_steps} times: {self.ending}."

    def to_pandas(self) -> "pandas.DataFrame":
        """Return one row a token and time; `x0`, `x1`, ... are what `tokens` holds."""
        return data_frame(self._token_rows())

    def _token_rows(self) -> Iterator[dict[str, object]]:
        names = [f"x{k}" for k in range(self.unit_tokens.shape[2])]
        columns = (values.tolist() for values in (self.times, self.log_scale, self.tokens))
        for time, log_scale, tokens in zip(*columns, strict=True):
            for number, token in enumerate(tokens):
                place = {"time": time, "token": number, "log_scale": log_scale}
                yield place | dict(zip(names, token, strict=True))

    def _tables(self) -> Sequence[HtmlTable]:
        chosen = _moments(self)[:: max(1, FRAMES // 10)].tolist()
        top = self.unit_tokens.abs().amax(dim=(1, 2)).clamp(min=1e-300)  # squares may overflow
        unit = self.unit_tokens / top[:, None, None]
        sizes = unit.norm(dim=-1).amax(dim=-1).log() + top.log() + self.log_scale
        rows = [[f"{self.times[k]:.4g}", sizes[k].item(), self.log_scale[k].item()] for k in chosen]
        columns = ["time", "ln of the largest token", "ln of the scale"]
        return [HtmlTable(caption="Size over time", columns=columns, rows=rows)]

    def _figure(self, go: Any) -> Any:  # noqa: ANN401 - plotly ships no types
        moments = _moments(self)
        if not len(moments):
            raise InputError("no moment of this trajectory has finite tokens: nothing to draw.")
        return _moving(go, self, moments)


def _moments(trajectory: Trajectory) -> Int[Tensor, " frames"]:
    """Return saved moments with finite tokens, at an equal stride, the last one included."""
    usable = _finite(trajectory).nonzero()[:, 0]
    stride = max(1, round(len(usable) / FRAMES))
    return usable.flip(0)[::stride].flip(0)


def _finite(trajectory: Trajectory) -> Bool[Tensor, " steps"]:
    tokens = trajectory.unit_tokens.isfinite().flatten(1).all(dim=1)
    return tokens & trajectory.log_scale.isfinite()


def _plane(trajectory: Trajectory, moments: Int[Tensor, " frames"]) -> Float[Tensor, "frames n 2"]:
    """Return tokens in the plane in which they vary most; of unit size where they ran away."""
    x = trajectory.unit_tokens[moments].detach().cpu().double()
    scale = trajectory.log_scale[moments].detach().cpu().double()
    if scale.max() <= HUGE:
        x = x * scale.exp()[:, None, None]
    if x.shape[2] > 2:
        points = x.flatten(0, 1)
        _, _, directions = torch.linalg.svd(points - points.mean(dim=0), full_matrices=False)
        x = x @ directions[:2].T
    return torch.nn.functional.pad(x, (0, 2 - x.shape[2]))


def _moving(go: Any, trajectory: Trajectory, moments: Int[Tensor, " frames"]) -> Any:  # noqa: ANN401
    places = _plane(trajectory, moments)
    times = trajectory.times[moments].tolist()

    def tokens(k: int) -> Any:  # noqa: ANN401
        x, y = places[k].T.tolist()
        return go.Scatter(x=x, y=y, mode="markers", marker={"color": GATHER, "size": 9})

    frames = [go.Frame(data=[tokens(k)], name=str(k)) for k in range(len(times))]
    drawn = go.Figure(data=[tokens(len(times) - 1)], frames=frames)
    steps = [
        {"label": f"{t:.3g}", "method": "animate",
         "args": [[str(k)], {"mode": "immediate", "frame": {"duration": 0}}]}
        for k, t in enumerate(times)
    ]  # fmt: skip
    play = {"label": "Play", "method": "animate", "args": [None, {"frame": {"duration": 60}}]}
    drawn.update_layout(
        title=trajectory.ending,
        xaxis={"range": _range(places[..., 0]), "gridcolor": GRID},
        yaxis={"range": _range(places[..., 1]), "gridcolor": GRID},
        sliders=[{"active": len(steps) - 1, "steps": steps, "currentvalue": {"prefix": "t = "}}],
        updatemenus=[{"type": "buttons", "buttons": [play], "y": 1.15, "x": 1}],
    )
    return drawn


def _range(values: Float[Tensor, "frames n"]) -> list[float]:
    low, high = values.min().item(), values.max().item()
    room = 0.05 * (high - low) or 1.0
    return [low - room, high + room]
