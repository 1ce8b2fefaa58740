"""Training few-shot learners, side by side: which arms there are, and what became of them.

Enters: a bench. Leaves: `Trained` learners by arm and seed, and the split each was trained on. All
arms of a seed see the same classes; the held-out ones are shown to none.
"""

import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from orbitlens.errors import TrainingError
from orbitlens_papers.bench import Bench
from orbitlens_papers.on_chip.drawings import SMALL, Drawings, omniglot
from orbitlens_papers.on_chip.episodes import Split, draw, split, training_of
from orbitlens_papers.on_chip.glyphs import glyphs
from orbitlens_papers.on_chip.model import Learner, among

RATE = 4e-3
LOOK = 10  # steps over which losses are averaged, in curves


@dataclass(frozen=True)
class Arm:
    """What is trained, and how long."""

    kind: str = "linear"
    start: str = "identity"
    way: int = 20  # harder episodes than those that are judged, as the official test is
    shots: int = 1
    episodes: int = 8  # a step
    steps: int = 1000


@dataclass(frozen=True)
class Job:
    """One run of an arm: all that a process needs to know."""

    arm: Arm
    files: tuple[Path, ...]  # of Omniglot; none: glyphs
    most_glyphs: int
    split_number: int  # of the generator that parts the classes
    turn: int  # which classes are held out; the same for all arms of a seed
    number: int  # of the generator of weights and episodes


@dataclass(frozen=True)
class Trained:
    """A learner with its weights after training, and its losses."""

    arm: Arm
    weights: bytes
    losses: tuple[float, ...]  # means over `LOOK` steps
    seconds: float

    def learner(self) -> Learner:
        """Return the learner, frozen."""
        made = Learner(kind=self.arm.kind, start=self.arm.start)
        made.load_state_dict(torch.load(io.BytesIO(self.weights), weights_only=True))
        return made.eval().requires_grad_(False)


def drawings_of(files: tuple[Path, ...], most_glyphs: int) -> Drawings:
    """Return Omniglot where it is given, glyphs where it is not."""
    return omniglot(files) if files else glyphs(most_glyphs)


def split_of(job: Job) -> Split:
    """Return what a run trains on and what is kept from it."""
    drawings = drawings_of(job.files, job.most_glyphs)
    return split(drawings, torch.Generator().manual_seed(job.split_number), turn=job.turn)


def train_one(job: Job) -> Trained:
    """Train one learner; a top-level function, so that processes can be given it."""
    import time

    started = time.process_time()
    arm, generator = job.arm, torch.Generator().manual_seed(job.number)
    parts = split_of(job)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.number)
        learner = Learner(kind=arm.kind, start=arm.start)
    losses = _train(learner, parts, arm, generator)
    saved = io.BytesIO()
    torch.save(learner.state_dict(), saved)
    means = [sum(losses[k : k + LOOK]) / LOOK for k in range(0, len(losses) - LOOK + 1, LOOK)]
    return Trained(arm, saved.getvalue(), tuple(means), time.process_time() - started)


def _train(learner: Learner, parts: Split, arm: Arm, generator: torch.Generator) -> list[float]:
    training = training_of(parts, arm.shots)
    optimizer = torch.optim.Adam(learner.parameters(), lr=RATE, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=arm.steps)
    target = torch.arange(arm.way).expand(arm.episodes, -1)
    losses = []
    for _ in range(arm.steps):
        episodes = draw(generator, n=arm.episodes, way=arm.way, shots=arm.shots, of=training.size)
        rows = torch.cat([episodes.context, episodes.queries], dim=1)
        features = learner.encoder(training.shown(rows, generator))
        context, asked = features.split([arm.way * arm.shots, arm.way], dim=1)
        logits = among(learner(context, episodes.labels, asked), episodes.used)
        loss = functional.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(float(loss.detach()))
    if not all(torch.isfinite(torch.tensor(losses))):
        raise TrainingError("the loss of a few-shot learner is not a finite number.")
    return losses


# --- all arms of a run -----------------------------------------------------------------------


def arms(bench: Bench) -> dict[str, Arm]:
    """Return the arms of a run, by name."""
    steps, episodes = bench.pick(12, 1000, 4000), bench.pick(2, 8, 8)
    main = Arm(steps=steps, episodes=episodes)
    return {
        "linear": main,
        "softmax": replace(main, kind="softmax"),
        "random start": replace(main, start="random"),
    }


def runs(bench: Bench) -> dict[str, list[Trained]]:
    """Return every arm trained, a learner a seed; trained once a run."""

    def make() -> dict[str, list[Trained]]:
        wanted = arms(bench)
        todo = [(name, seed) for name in wanted for seed in bench.seeds]
        jobs = [job_of(bench, wanted[name], name, seed) for name, seed in todo]
        drawings_of(jobs[0].files, jobs[0].most_glyphs)  # broken files are refused here, by name
        found: dict[str, list[Trained]] = {name: [] for name in wanted}
        for (name, _), trained in zip(todo, bench.map(train_one, jobs), strict=True):
            found[name].append(trained)
        return found

    return bench.once("learners", make)


def job_of(bench: Bench, arm: Arm, name: str, seed: int) -> Job:
    """Return the run of an arm with a seed."""
    return Job(
        arm=arm,
        files=files_of(bench),
        most_glyphs=most_glyphs(bench),
        split_number=bench.generator("split").initial_seed(),
        turn=seed - bench.seeds.start,
        number=bench.generator(f"train {name}", seed).initial_seed(),
    )


def files_of(bench: Bench) -> tuple[Path, ...]:
    """Return the files of Omniglot's background sets that were given."""
    found = [bench.data_file(name) for name in SMALL]
    return tuple(file.resolve() for file in found if file is not None)


def most_glyphs(bench: Bench) -> int:
    """Return how many glyphs are rendered where there are no drawings."""
    return bench.pick(400, 4000, 4000)


def splits(bench: Bench) -> list[Split]:
    """Return the split of each seed, as its learners saw it."""

    def make() -> list[Split]:
        return [split_of(job_of(bench, Arm(), "", seed)) for seed in bench.seeds]

    return bench.once("splits", make)


def source(bench: Bench) -> dict[str, Any]:
    """Return in words which data was used, and what each seed held out."""
    drawings = drawings_of(files_of(bench), most_glyphs(bench))
    return {"source": drawings.source, "held out": [parts.words for parts in splits(bench)]}
