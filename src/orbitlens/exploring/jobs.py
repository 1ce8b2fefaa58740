"""One worker over one model: questions wait in line, tell how far they are, and can be cancelled.

Enters: work as functions. Leaves: `Job`s, whose events a thread that serves a page reads. A model
runs one question at a time, whoever asks, quick ones first: what takes longer and has hardly begun
makes way for them, and begins anew. Closing drops what waits, stops what runs at its next layer or
batch, and lets go of the model.
"""

import heapq
import itertools
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orbitlens.errors import OrbitlensError

MOST_WAITING = 32
HARDLY_BEGUN = 10.0  # seconds of work that may be done twice, so that a quick one need not wait
# What goes wrong inside an answer: bugs of ours or of a model's own code, files, memory.
FAILURES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, LookupError, MemoryError),
    *(OSError, RuntimeError, StopIteration, TypeError, ValueError),
)
Told = Callable[[int, int | None], None]


class CancelledJob(Exception):
    """Raised inside work that nobody waits for any more."""


class MadeWayJob(Exception):
    """Raised inside work that begins anew after a quick question."""


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """Something that a job has to say; the last one has an answer or an error."""

    progress: float | None = None  # share that is done; None: not known
    what: str = ""
    answer: Any = None
    error: str | None = None
    last: bool = False


@dataclass(frozen=True, kw_only=True)
class Job:
    """One question on its way."""

    work: Callable[[Told], Any]
    what: str
    quick: bool = True  # answered before what takes longer, whoever asked first
    events: "queue.Queue[JobEvent]" = field(default_factory=queue.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)
    makes_way: threading.Event = field(default_factory=threading.Event)

    def told(self, done: int, total: int | None) -> None:
        """Pass progress on, or stop the work.

        Raises:
            CancelledJob: nobody waits for it any more.
            MadeWayJob: a quick question waits.
        """
        if self.cancelled.is_set():
            raise CancelledJob
        if self.makes_way.is_set():
            raise MadeWayJob
        self.events.put(JobEvent(progress=done / total if total else None, what=self.what))

    def run(self) -> bool:
        """Do the work; whatever it says goes to `events`. Return whether it is over."""
        self.makes_way.clear()
        try:
            self.told(0, 1)
            self.events.put(JobEvent(answer=self.work(self.told), last=True))
        except MadeWayJob:
            return False
        except CancelledJob:
            self.events.put(JobEvent(error="cancelled", last=True))
        except OrbitlensError as error:
            self.events.put(JobEvent(error=str(error), last=True))
        except FAILURES as error:  # the page says so, and the server goes on
            text = f"this failed inside ({type(error).__name__}: {error}). It is a bug: report it."
            self.events.put(JobEvent(error=text, last=True))
        return True


@dataclass(frozen=True, order=True)
class _Waiting:
    """A place in line."""

    rank: int
    number: int
    job: Job | None = field(compare=False)


class Worker:
    """Runs jobs one after another in a thread of its own."""

    def __init__(self) -> None:
        """Start the thread."""
        self.waiting: queue.PriorityQueue[_Waiting] = queue.PriorityQueue()
        self.number = itertools.count()
        self.current: Job | None = None
        self.began = 0.0  # when the current one did
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._work, name="orbitlens explorer", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self._answer_all()
        finally:
            self.closed.set()  # whatever ended it: who asks now is told, and does not wait

    def _answer_all(self) -> None:
        while (job := self.waiting.get().job) is not None:
            if job.cancelled.is_set() or self.closed.is_set():
                job.events.put(JobEvent(error="cancelled", last=True))
                continue
            self.began, self.current = time.monotonic(), job
            over = job.run()
            self.current = None
            if not over:
                self.waiting.put(_Waiting(1, next(self.number), job))
            del job  # what it holds of the model goes with it

    def ask(self, job: Job) -> bool:
        """Put a job in line; False where the line is full or closed."""
        self._drop_cancelled()
        if self.closed.is_set() or self.waiting.qsize() >= MOST_WAITING:
            return False
        self.waiting.put(_Waiting(0 if job.quick else 1, next(self.number), job))
        current = self.current
        if current is not None and job.quick and not current.quick:
            if time.monotonic() - self.began < HARDLY_BEGUN:
                current.makes_way.set()
        return True

    def _drop_cancelled(self) -> None:
        """Take out of the line what nobody waits for: it would keep others from joining."""
        with self.waiting.mutex:
            line = self.waiting.queue
            line[:] = [one for one in line if one.job is None or not one.job.cancelled.is_set()]
            heapq.heapify(line)

    def close(self, seconds: float = 10.0) -> None:
        """Stop what runs at its next layer, drop what waits, and end the thread."""
        self.closed.set()
        current = self.current
        if current is not None:
            current.cancelled.set()
        self.waiting.put(_Waiting(2, next(self.number), None))  # behind what waits
        self.thread.join(seconds)
