"""Separable attention (arXiv 2203.09581): layers attend along columns and along rows of a grid.

Enters: the tokens of an image or a spectrogram, row by row, behind a class token. Leaves: the same
tokens one layer on. Each line of the grid, a column or a row, is a short sequence of its own with
its own copy of the class token in front; the copies are averaged after the layer. A layer computes
hw(h + w)/2 scores instead of (hw)², and positions are encoded along one axis at a time, by a table
of h + 1 or w + 1 rows in each layer.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import Cache

from orbitlens.errors import InputError
from orbitlens.orbit.attention import Given, OrbitAttention
from orbitlens.orbit.block import OrbitBlock
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.masks import Call, Surroundings
from orbitlens.orbit.position import SinusoidalPositions

Axis = Literal["columns", "rows"]
BatchTokens = Float[Tensor, "batch tokens d_model"]
Lines = Float[Tensor, "lines line d_model"]
TABLES = {"learned": nn.Embedding, "sinusoidal": SinusoidalPositions}


def axes_of(config: OrbitConfig) -> tuple[Axis, ...]:
    """Return for every layer whether tokens of one column see each other, or those of one row."""
    turns: dict[str, tuple[Axis, ...]] = {
        "columns-rows": ("columns", "rows"),
        "rows-columns": ("rows", "columns"),
        "columns": ("columns",),
        "rows": ("rows",),
    }
    turn = turns[config.axes]
    return tuple(turn[layer % len(turn)] for layer in range(config.num_hidden_layers))


@dataclass(frozen=True)
class Grid:
    """Where tokens stand: row by row, behind one class token."""

    n_rows: int
    n_columns: int

    def n_lines(self, axis: Axis) -> int:
        """Return how many columns, or rows, there are."""
        return self.n_columns if axis == "columns" else self.n_rows

    def length(self, axis: Axis) -> int:
        """Return how many tokens a column, or a row, has; its class token is not counted."""
        return self.n_rows if axis == "columns" else self.n_columns

    def lines(self, x: BatchTokens, axis: Axis) -> Lines:
        """Return every column, or row, as a sequence behind its copy of the class token."""
        cells = x[:, 1:].unflatten(1, (self.n_rows, self.n_columns))
        if axis == "columns":
            cells = cells.transpose(1, 2)
        front = x[:, None, :1].expand(-1, cells.shape[1], -1, -1)
        return torch.cat([front, cells], dim=2).flatten(0, 1)

    def whole(self, lines: Lines, axis: Axis) -> BatchTokens:
        """Return the tokens of lines in their places, the copies of the class token averaged."""
        split = lines.unflatten(0, (-1, self.n_lines(axis)))
        cells = split[:, :, 1:]
        if axis == "columns":
            cells = cells.transpose(1, 2)
        return torch.cat([split[:, :, 0].mean(dim=1, keepdim=True), cells.flatten(1, 2)], dim=1)

    def members(self, axis: Axis) -> Int[Tensor, "lines line"]:
        """Return the numbers of each line's tokens; the class token, 0, comes first in each."""
        numbers = torch.arange(self.n_rows * self.n_columns).view(self.n_rows, self.n_columns) + 1
        numbers = numbers.T if axis == "columns" else numbers
        return torch.cat([torch.zeros(len(numbers), 1, dtype=torch.long), numbers], dim=1)

    def spread(
        self, patterns: Float[Tensor, "lines head line line"], axis: Axis
    ) -> Float[Tensor, "batch head tokens tokens"]:
        """Return attention within lines as attention between all tokens; rows still sum to 1."""
        split = patterns.unflatten(0, (-1, self.n_lines(axis))).clone()
        split[:, :, :, 0] /= self.n_lines(axis)  # the class token's copies are averaged
        members, n = self.members(axis).to(patterns.device), self.n_rows * self.n_columns + 1
        places = (members[:, :, None] * n + members[:, None, :]).flatten()
        values = split.transpose(1, 2).flatten(2)
        whole = values.new_zeros(*values.shape[:2], n * n).index_add(2, places, values)
        return whole.unflatten(2, (n, n))


@dataclass(frozen=True)
class LineGiven(Given):
    """What layers along lines are given: for each axis a `Given`, and ids of places or None."""

    along: Mapping[Axis, Given] = field(default_factory=dict)
    places: Mapping[Axis, Tensor | None] = field(default_factory=dict)


class LineSurroundings(Surroundings):
    """Makes the `Given` of each axis from positions and masks of the whole grid."""

    def __init__(self, config: OrbitConfig, relative_bias: nn.Embedding | None) -> None:
        """Read the grid and the axes of its layers."""
        super().__init__(config, relative_bias)
        self.grid, self.axes = Grid(*config.grid), tuple(dict.fromkeys(axes_of(config)))

    def given(self, call: Call, like: Tensor) -> LineGiven:
        """Return what all layers are given in a call; `like` is the stream itself."""
        if call.n_past or call.n_tokens != self.grid.n_rows * self.grid.n_columns + 1:
            raise InputError(
                f"{call.n_tokens} tokens behind {call.n_past} cached ones; separable attention "
                f"takes the class token and all of a grid of {self.grid.n_rows} x "
                f"{self.grid.n_columns} at once."
            )
        calls: dict[Axis, Call] = {axis: self._along(call, like, axis) for axis in self.axes}
        return LineGiven(
            patterns=call.patterns,
            along={axis: super(LineSurroundings, self).given(calls[axis], like) for axis in calls},
            places={axis: calls[axis].position_ids for axis in calls},
        )

    def _along(self, call: Call, like: Tensor, axis: Axis) -> Call:
        ids, mask = call.position_ids, call.attention_mask
        return Call(
            n_tokens=self.grid.length(axis) + 1,
            position_ids=None if ids is None else self._ids(ids, len(like), axis),
            attention_mask=None if mask is None else self._mask(mask, len(like), axis),
            patterns=call.patterns,
        )

    def _ids(self, ids: Tensor, batch: int, axis: Axis) -> Int[Tensor, "lines line"]:
        """Return places along lines: the id k of a token means the place of token k."""
        cell, n_columns = (ids - 1).clamp(min=0), self.grid.n_columns
        place = cell // n_columns if axis == "columns" else cell % n_columns
        place = torch.where(ids == 0, 0, place + 1).expand(batch, -1)
        return place[:, self.grid.members(axis).to(ids.device)].flatten(0, 1)

    def _mask(self, mask: Tensor, batch: int, axis: Axis) -> Tensor:
        if mask.ndim != 4:
            raise InputError(
                f"attention_mask has shape {list(mask.shape)}; separable attention takes a 4-D "
                "mask of all tokens, or none."
            )
        members = self.grid.members(axis).to(mask.device)
        seen = mask.expand(batch, -1, -1, -1)[:, :, members[:, :, None], members[:, None, :]]
        return seen.transpose(1, 2).flatten(0, 1)


class SeparableBlock(OrbitBlock):
    """One layer that acts within columns, or within rows."""

    def __init__(self, config: OrbitConfig, attention: OrbitAttention, number: int) -> None:
        """Make a plain layer, and the tables of positions along the axes it attends along."""
        super().__init__(config, attention)
        self.grid, self.axes = Grid(*config.grid), axes_of(config)
        served = self.axes if config.shared_layers else self.axes[number : number + 1]
        table = TABLES.get(config.position)
        self.line_positions = nn.ModuleDict(
            {
                axis: table(self.grid.length(axis) + 1, config.hidden_size)
                for axis in dict.fromkeys(served)
                if table is not None
            }
        )

    def forward(
        self, x: BatchTokens, given: Given, cache: Cache | None = None, layer: int = 0
    ) -> tuple[BatchTokens, Tensor | None]:
        """Return the stream one layer on, and attention's pattern over all tokens or None."""
        if cache is not None or not isinstance(given, LineGiven):
            raise InputError("separable attention reads a whole image at once: it has no cache.")
        axis = self.axes[layer]
        lines = self.grid.lines(x, axis)
        if axis in self.line_positions:
            table, ids = self.line_positions[axis], given.places[axis]
            every = torch.arange(lines.shape[1], device=lines.device) if ids is None else ids
            lines = lines + table(every)
        lines, pattern = super().forward(lines, given.along[axis], None, layer)
        whole = None if pattern is None else self.grid.spread(pattern, axis)
        return self.grid.whole(lines, axis), whole
