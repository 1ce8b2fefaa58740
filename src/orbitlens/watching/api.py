"""`Watch`: reads a model while it trains.

Enters: a live module, the step, and now and then a batch. Leaves: a `WatchReading`, one line of
JSON a reading, and alarms. What does not fit is refused at the first call; after that nothing is
raised, and the training loop does not notice: losses are the same bits with and without.
"""

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError, NotFiniteError
from orbitlens.families.architecture import Stack
from orbitlens.heads.side_by_side import Sample
from orbitlens.watching.growth import Growth
from orbitlens.watching.head_measures import (
    QUANTITIES,
    Context,
    LayerGrams,
    head_numbers,
    layer_grams,
)
from orbitlens.watching.record import Recorder
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


class Watch:
    """Reads a model while it trains; call it with the model and the step, as often as you like."""

    def __init__(
        self,
        *,
        every: int = 50,
        tokens_every: int | None = None,
        path: str | Path | None = None,
    ) -> None:
        """Prepare to watch.

        Args:
            every: steps from one reading to the next.
            tokens_every: steps from one reading with tokens to the next; by default four times
                `every`. They take a batch.
            path: a file for the readings, or a folder for watch.jsonl; None: nothing is written.

        Raises:
            InputError: a number is out of range.
        """
        self.every, self.tokens_every = every, 4 * every if tokens_every is None else tokens_every
        for name, value in (("every", every), ("tokens_every", self.tokens_every)):
            if value < 1:
                raise InputError(f"{name} is {value}; expected at least 1.")
        self.path = None if path is None else Path(path)
        self.header: WatchHeader | None = None
        self.last: WatchReading | None = None
        self._watched: WatchedModule | None = None

    def attach(self, model: Any) -> None:  # noqa: ANN401 - whatever a training loop has
        """Open the module that is to be watched; the first call does it too.

        Raises:
            InputError: it cannot be read, or the record cannot be written.
            UnknownFamilyError: no family describes it.
            CheckpointError: its heads cannot be read.
        """
        self._watched = WatchedModule(model)
        self._given = model
        self._growth = Growth()
        self._tokens: dict[Place, Sample] = {}
        self._longest: dict[Place, float] = {}
        self._attends: dict[Place, bool] = {}
        self._n_tokens = self._watched.usual_tokens
        self._next = self._next_tokens = -math.inf
        self.header = WatchHeader(
            model=self._watched.model.name,
            layers=self._watched.layers,
            every=self.every,
            tokens_every=self.tokens_every,
        )
        self.last = None
        writes = self.path is not None and is_first_process()
        self._recorder = Recorder(_file_of(self.path), self.header) if writes else None

    def __call__(
        self,
        model: Any,  # noqa: ANN401 - whatever a training loop has
        step: int,
        batch: Any = None,  # noqa: ANN401 - as the model takes it
        loss: float | Tensor | None = None,
    ) -> WatchReading | None:
        """Read the model if a reading is due, and return the newest reading.

        Args:
            model: the module in training, the same at each call.
            step: of the training, however often this is called.
            batch: as the model takes it, for readings with tokens; a few contexts of it are run.
            loss: of this step, to be written beside.

        Returns:
            The newest reading; None in all processes but the first.
        """
        if self._watched is None or model is not self._given:
            self.attach(model)
        if step < self._next:
            return self.last
        with_tokens = batch is not None and step >= self._next_tokens
        self._next = step + self.every
        if with_tokens:
            self._next_tokens = step + self.tokens_every
        self._read(step, batch if with_tokens else None, loss)
        return self.last

    def _read(self, step: int, batch: Any, loss: float | Tensor | None) -> None:  # noqa: ANN401
        assert self._watched is not None
        started = time.perf_counter()
        measures = is_first_process()
        if not measures and not self._watched.is_sharded:
            return
        sums = self._run(batch, measures)
        grams, heads, broken = self._read_layers(sums, measures)
        if not measures:
            return
        numbers = self._numbers(grams)
        self._growth.add(step, _flat(numbers))
        sizes = [layer.n_heads for layer in self._watched.layers]
        reading = WatchReading(
            step=step,
            loss=_number(loss),
            seconds=time.perf_counter() - started,
            n_tokens=self._n_tokens,
            heads={name: _rows([n[name] for n in numbers]) for name in QUANTITIES},
            growth={
                name: _rows(list(rate.split(sizes))) for name, rate in self._growth.rates().items()
            },
            tokens=self._token_reading(sums, heads),
            broken=broken,
        )
        self.last = self._recorded(reading)

    def _recorded(self, reading: WatchReading) -> WatchReading:
        if self._recorder is not None:
            self._recorder.write(reading)
        return reading

    # --- tokens ---

    def _run(self, batch: Any, measures: bool) -> dict[Place, LayerSums]:  # noqa: ANN401
        """Run a few contexts, and keep statistics of their tokens."""
        assert self._watched is not None
        if batch is None:
            return {}
        few = {
            name: value[:MOST_CONTEXTS] for name, value in self._watched.inputs_of(batch).items()
        }
        sums = self._watched.run(few, measured=measures)
        if sums and not self._tokens:  # what was read for isotropic tokens is no part of a course
            self._growth = Growth()
        for place, own in sums.items():
            older = self._tokens.get(place, own.sample[:0])
            self._tokens[place] = torch.cat([older, own.sample])[-KEPT_TOKENS:]
            self._longest[place] = own.longest
        if sums:
            self._n_tokens = max(own.context.shape[0] for own in sums.values())
        return sums

    def _read_layers(
        self, sums: dict[Place, LayerSums], measures: bool
    ) -> tuple[list[LayerGrams | None], dict[Place, HeadTokens], tuple[int, ...]]:
        """Read one layer after another; where weights are not finite there is nothing to keep."""
        assert self._watched is not None
        grams: list[LayerGrams | None] = []
        heads: dict[Place, HeadTokens] = {}
        broken = []
        with self._watched.reading() as read:
            for row, (stack, index) in enumerate(self._watched.places):
                try:
                    layer = read(stack, index)
                except NotFiniteError:
                    broken.append(row)
                    grams.append(None)
                    continue
                if not measures:
                    continue
                place = (stack.name, index)
                grams.append(layer_grams(layer, self._context(stack, index)))
                if place in sums:
                    if place not in self._attends:
                        self._attends[place] = attention_agrees(layer, sums[place])
                    attends = self._attends[place]
                    heads[place] = head_tokens(layer, sums[place], attends=attends)
        return grams, heads, tuple(broken)

    def _context(self, stack: Stack, index: int) -> Context:
        place = (stack.name, index)
        return Context(
            n_tokens=self._n_tokens,
            tokens=self._tokens.get(place),
            longest=self._longest.get(place),
        )

    def _numbers(self, grams: list[LayerGrams | None]) -> list[dict[str, Tensor]]:
        """Return the numbers of all layers, on the CPU; NaN where weights are not finite."""
        assert self._watched is not None
        sound = iter(head_numbers([gram for gram in grams if gram is not None]))
        numbers = []
        for gram, layer in zip(grams, self._watched.layers, strict=True):
            nothing = torch.full((layer.n_heads,), math.nan, dtype=torch.float64)
            found = next(sound) if gram is not None else dict.fromkeys(QUANTITIES, nothing)
            numbers.append({name: value.cpu() for name, value in found.items()})
        return numbers

    def _token_reading(
        self, sums: dict[Place, LayerSums], heads: dict[Place, HeadTokens]
    ) -> TokenReading | None:
        assert self._watched is not None
        places = [(stack.name, index) for stack, index in self._watched.places]
        if not places or any(place not in sums or place not in heads for place in places):
            return None
        kept = [sums[place] for place in places]
        points = [own.before for own in kept] + [kept[-1].after]
        return TokenReading(
            n_tokens=self._n_tokens,
            cosine=tuple(p.cosine for p in points),
            log_spread=tuple(math.log(max(1 - p.cosine, 1e-12)) for p in points),
            effective_rank=tuple(p.effective_rank for p in points),
            massive=tuple(own.massive for own in kept),
            massive_position=tuple(own.massive_position for own in kept),
            attention_update=tuple(own.attention_update for own in kept),
            block_update=tuple(own.block_update for own in kept),
            sharpness=tuple(heads[place].sharpness for place in places),
            largest_score=tuple(heads[place].largest_score for place in places),
            written=tuple(heads[place].written for place in places),
        )


def _file_of(path: Path | None) -> Path:
    assert path is not None
    return path if path.suffix == ".jsonl" else path / "watch.jsonl"


def _number(loss: float | Tensor | None) -> float | None:
    return float(loss.detach()) if isinstance(loss, Tensor) else loss


def _rows(layers: list[Tensor]) -> ByHead:
    return tuple(tuple(layer.tolist()) for layer in layers)


def _flat(numbers: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    return {name: torch.cat([n[name] for n in numbers]) for name in QUANTITIES}
