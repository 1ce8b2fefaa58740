"""`Watch`: reads a model while it trains.

Enters: a live module, the step, and now and then a batch. Leaves: a `WatchReading`, one line of
JSON a reading, and alarms. What does not fit is refused at the first call; after that nothing is
raised, and the training loop does not notice: losses are the same bits with and without.
"""

import logging
import math
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.watching.alarm import AlarmKind
from orbitlens.watching.course import Course
from orbitlens.watching.record import Recorder, record_file
from orbitlens.watching.thresholds import DEFAULT, Thresholds
from orbitlens.watching.tracking import Log, opened_log, scalars
from orbitlens.watching.watch_reading import WatchHeader, WatchReading
from orbitlens.watching.watched_module import WatchedModule, agreed, is_first_process
from orbitlens.watching.words import grouped_alarms

if TYPE_CHECKING:
    from orbitlens.watching.callbacks import LightningWatch, TrainerWatch

LOGGER = logging.getLogger("orbitlens")


class Watch:
    """Reads a model while it trains; call it with the model and the step, as often as you like.

    >>> watch = Watch(every=50)
    >>> watch
    Watch(every=50, tokens_every=200): nothing read yet.
    """

    def __init__(
        self,
        *,
        every: int = 50,
        tokens_every: int | None = None,
        path: str | Path | None = None,
        stop_on: Iterable[str | AlarmKind] = (),
        log: str | Log | None = None,
        thresholds: Thresholds = DEFAULT,
    ) -> None:
        """Prepare to watch.

        Args:
            every: a reading at the first call, and at each multiple of so many steps.
            tokens_every: likewise for readings with tokens, which take a batch; by default four
                times `every`.
            path: a file for the readings, or a folder for watch.jsonl; None: nothing is written.
            stop_on: kinds of alarm at which a reading says `stop`; callbacks then end training.
            log: "tensorboard", "mlflow" or "wandb", or a function like `wandb.log` that takes
                numbers by name and `step=`.
            thresholds: from where on alarms are raised.

        Raises:
            InputError: a number is out of range, or a kind of alarm is unknown.
            MissingPackageError: a tracker is not installed.
        """
        self.every, self.tokens_every = every, 4 * every if tokens_every is None else tokens_every
        for name, value in (("every", every), ("tokens_every", self.tokens_every)):
            if value < 1:
                raise InputError(f"{name} is {value}; expected at least 1.")
        self.path = None if path is None else Path(path)
        self.stop_on = frozenset(_kind(name) for name in _names(stop_on))
        self.thresholds = thresholds
        self.header: WatchHeader | None = None
        self.last: WatchReading | None = None
        self.stopped = False  # in every process: an alarm of `stop_on` was raised
        self._given_log = log
        self._log: Log | None = log if callable(log) else None
        if isinstance(log, str):
            opened_log(log, None)  # says now if it is not installed
        self._watched: WatchedModule | None = None

    def __repr__(self) -> str:
        """Return the settings and the newest reading in a line or two."""
        said = "nothing read yet." if self.last is None else self.last.summary()
        return f"Watch(every={self.every}, tokens_every={self.tokens_every}): {said}"

    def attach(self, model: Any) -> None:  # noqa: ANN401 - whatever a training loop has
        """Open the module that is to be watched; the first call does it too.

        Raises:
            InputError: it cannot be read, or the record cannot be written.
            UnknownFamilyError: no family describes it.
            CheckpointError: its heads cannot be read.
        """
        watched = WatchedModule.live(model)
        self._given, self._watched = model, watched
        self._next = self._next_tokens = -math.inf
        self.header = WatchHeader(
            model=watched.model.name,
            layers=watched.layers,
            every=self.every,
            tokens_every=self.tokens_every,
        )
        self.last = None
        self._course = Course(self.header, self.thresholds, n_tokens=watched.usual_tokens)
        self._recorder: Recorder | None = None
        if is_first_process():
            if self.path is not None:
                self._recorder = Recorder(record_file(self.path), self.header)
            if isinstance(self._given_log, str):
                self._log = opened_log(self._given_log, self.path)

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
        assert self._watched is not None
        if step < self._next:
            return self.last
        with_tokens = batch is not None and step >= self._next_tokens
        self._next = (step // self.every + 1) * self.every
        if with_tokens:
            self._next_tokens = (step // self.tokens_every + 1) * self.tokens_every
        reading = self._reading(step, batch if with_tokens else None, loss)
        stop = reading is not None and any(a.kind in self.stop_on for a in reading.alarms)
        if self.stop_on:
            self.stopped = agreed(stop)
        if reading is not None:
            self.last = self._written(replace(reading, stop=stop))
        return self.last

    def _reading(
        self,
        step: int,
        batch: Any,  # noqa: ANN401
        loss: float | Tensor | None,
    ) -> WatchReading | None:
        """Return a reading; after the first one, none where memory or a spectrum fails."""
        assert self._watched is not None
        try:
            return self._course.read(self._watched, step, batch, loss)
        except RuntimeError as error:  # memory that runs out, or a spectrum without convergence
            if self.last is None:
                raise
            LOGGER.warning("step %d: no reading: %s", step, error)
            return None

    def is_due(self, step: int, *, with_tokens: bool = False) -> bool:
        """Say whether a call at this step would read the model, or run a batch as well."""
        if self._watched is None:
            return True
        return step >= self._next and (not with_tokens or step >= self._next_tokens)

    def _written(self, reading: WatchReading) -> WatchReading:
        """Write and log a reading; what the disk does not take is noted, and tried again later."""
        if self._recorder is not None:
            try:
                self._recorder.write(reading)
            except OSError as error:
                note = f"This reading was not written ({error})."
                reading = replace(reading, notes=(*reading.notes, note))
        if self._log is not None:
            self._log(scalars(reading), step=reading.step)
        for line in (*grouped_alarms(reading.new_alarms), *reading.notes):
            LOGGER.warning("step %d: %s", reading.step, line)
        return reading

    # --- integrations ---

    def callback(self) -> "TrainerWatch":
        """Return a callback for the Trainer of transformers.

        Raises:
            MissingPackageError: transformers is not installed.
        """
        from orbitlens.watching.callbacks import trainer_callback

        return trainer_callback(self)

    def lightning(self) -> "LightningWatch":
        """Return a callback for the Trainer of Lightning.

        Raises:
            MissingPackageError: Lightning is not installed.
        """
        from orbitlens.watching.callbacks import lightning_callback

        return lightning_callback(self)


def _names(stop_on: Iterable[str | AlarmKind]) -> Iterable[str | AlarmKind]:
    return (stop_on,) if isinstance(stop_on, str) else stop_on


def _kind(name: str | AlarmKind) -> AlarmKind:
    known = [kind.value for kind in AlarmKind]
    if name not in known:
        raise InputError(f"stop_on={name!r} is no kind of alarm. Known: {', '.join(known)}.")
    return AlarmKind(name)
