"""The course of a run: one reading after another, with what they have in common.

Enters: a module at a step, and now and then a batch. Leaves: a `WatchReading`. Kept from one
reading to the next: the newest tokens of each layer, growth, and which alarms are on.
"""

import math
import time
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import NotFiniteError, OrbitlensError
from orbitlens.families.architecture import Stack
from orbitlens.heads.side_by_side import Sample
from orbitlens.watching.alarm_book import AlarmBook
from orbitlens.watching.growth import GrowthSeries
from orbitlens.watching.head_measures import QUANTITIES, Context, head_numbers
from orbitlens.watching.thresholds import Thresholds
from orbitlens.watching.token_measures import (
    SAMPLED,
    HeadTokens,
    LayerSums,
    attention_agrees,
    head_tokens,
)
from orbitlens.watching.watch_reading import ByHead, TokenReading, WatchHeader, WatchReading
from orbitlens.watching.watched_module import Place, WatchedModule, is_first_process

KEPT_TOKENS = 2 * SAMPLED  # newest tokens of a layer that statistics are of
MOST_CONTEXTS = 4  # of a batch that a reading with tokens runs
Ran = dict[Place, LayerSums | None]  # None: states that are not finite
# What a batch that does not fit, or a model, raises while it is run.
RUN_ERRORS = (OrbitlensError, RuntimeError, ValueError, TypeError, LookupError, AttributeError)


class Course:
    """Reads modules of one shape, one after another."""

    def __init__(self, header: WatchHeader, thresholds: Thresholds, *, n_tokens: int) -> None:
        """Start from nothing; contexts have `n_tokens` until one was seen."""
        self.header = header
        self._book = AlarmBook(header, thresholds)
        self._growth = GrowthSeries()
        self._tokens: dict[Place, Sample] = {}
        self._longest: dict[Place, float] = {}
        self._attends: dict[Place, bool] = {}
        self._n_tokens = n_tokens
        self._begun = False

    def read(
        self,
        watched: WatchedModule,
        step: int,
        batch: Any = None,  # noqa: ANN401 - as the model takes it
        loss: float | Tensor | None = None,
    ) -> WatchReading | None:
        """Return a reading; None in processes that only take part in gathering weights."""
        started = time.perf_counter()
        measures = is_first_process()
        if not measures and not watched.is_sharded:
            return None
        ran, notes = self._run(watched, batch, measures)
        numbers, heads, broken = self._read_layers(watched, ran, measures)
        self._begun = True
        if not measures:
            return None
        self._growth.add(step, {name: torch.cat([n[name] for n in numbers]) for name in QUANTITIES})
        sizes = [layer.n_heads for layer in watched.layers]
        rates = self._growth.rates()
        reading = WatchReading(
            step=step,
            loss=float(loss.detach()) if isinstance(loss, Tensor) else loss,
            seconds=0.0,
            n_tokens=self._n_tokens,
            heads={name: _rows([n[name] for n in numbers]) for name in QUANTITIES},
            growth={name: _rows(list(rate.split(sizes))) for name, rate in rates.items()},
            tokens=self._token_reading(watched, ran, heads),
            broken=broken,
            overflowed=tuple(
                row for row, place in enumerate(watched.names) if ran.get(place, 0) is None
            ),
            notes=notes,
        )
        return replace(
            reading,
            alarms=self._book.update(reading),
            expected=self._book.forecasts(reading),
            seconds=time.perf_counter() - started,
        )

    # --- tokens ---

    def _run(
        self,
        watched: WatchedModule,
        batch: Any,  # noqa: ANN401
        measures: bool,
    ) -> tuple[Ran, tuple[str, ...]]:
        """Run a few contexts, and keep statistics of their tokens.

        What goes wrong is raised at the first reading, and noted at later ones.
        """
        if batch is None:
            return {}, ()
        try:
            few = {name: x[:MOST_CONTEXTS] for name, x in watched.inputs_of(batch).items()}
            ran = watched.run(few, measured=measures)
        except RUN_ERRORS as error:
            if not self._begun:
                raise
            return {}, (f"No tokens were read at this step: {type(error).__name__}: {error}",)
        sound = {place: own for place, own in ran.items() if own is not None}
        if sound and not self._tokens:  # what was read for isotropic tokens is no part of a course
            self._growth = GrowthSeries()
        for place, own in sound.items():
            older = self._tokens.get(place, own.sample[:0])
            self._tokens[place] = torch.cat([older, own.sample])[-KEPT_TOKENS:]
            self._longest[place] = own.longest
            self._n_tokens = own.n_tokens
        return ran, ()

    def _read_layers(
        self, watched: WatchedModule, ran: Ran, measures: bool
    ) -> tuple[list[dict[str, Tensor]], dict[Place, HeadTokens], tuple[int, ...]]:
        """Read one layer after another; where weights are not finite numbers are NaN."""
        numbers: list[dict[str, Tensor]] = []
        heads: dict[Place, HeadTokens] = {}
        broken = []
        with watched.reading() as read:
            for row, (stack, index) in enumerate(watched.places):
                try:
                    layer = read(stack, index)
                except NotFiniteError:
                    broken.append(row)
                    numbers.append(_nothing(stack.layers[index].n_heads))
                    continue
                if not measures:
                    continue
                numbers.append(head_numbers(layer, self._context(stack, index)))
                place = (stack.name, index)
                sums = ran.get(place)
                if sums is not None:
                    if place not in self._attends:
                        self._attends[place] = attention_agrees(layer, sums)
                    heads[place] = head_tokens(layer, sums, attends=self._attends[place])
        return numbers, heads, tuple(broken)

    def _context(self, stack: Stack, index: int) -> Context:
        place = (stack.name, index)
        return Context(
            n_tokens=self._n_tokens,
            tokens=self._tokens.get(place),
            longest=self._longest.get(place),
        )

    def _token_reading(
        self, watched: WatchedModule, ran: Ran, heads: dict[Place, HeadTokens]
    ) -> TokenReading | None:
        kept = [ran.get(place) for place in watched.names]
        sound = [own for own in kept if own is not None]
        if not sound or len(sound) < len(kept) or len(heads) < len(kept):
            return None
        points = [own.before for own in sound] + [sound[-1].after]
        rows = [heads[place] for place in watched.names]
        return TokenReading(
            n_tokens=self._n_tokens,
            cosine=tuple(p.cosine for p in points),
            log_spread=tuple(math.log(max(1 - p.cosine, 1e-12)) for p in points),
            effective_rank=tuple(p.effective_rank for p in points),
            direction_rank=tuple(p.direction_rank for p in points),
            massive=tuple(own.massive for own in sound),
            massive_position=tuple(own.massive_position for own in sound),
            attention_update=tuple(own.attention_update for own in sound),
            block_update=tuple(own.block_update for own in sound),
            sharpness=tuple(row.sharpness for row in rows),
            largest_score=tuple(row.largest_score for row in rows),
            written=tuple(row.written for row in rows),
        )


def _nothing(n_heads: int) -> dict[str, Tensor]:
    return dict.fromkeys(QUANTITIES, torch.full((n_heads,), math.nan, dtype=torch.float64))


def _rows(layers: list[Tensor]) -> ByHead:
    return tuple(tuple(layer.tolist()) for layer in layers)
