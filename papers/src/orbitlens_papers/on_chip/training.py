"""Training few-shot learners, side by side: which arms there are, and what became of them.

Enters: a bench. Leaves: `Trained` learners by arm and seed, and the split each was trained on. All
arms of a seed see the same classes; the held-out ones are shown to none.
"""

import io
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from orbitlens.lab.fitting import fit, seeded
from orbitlens_papers.bench import Bench, Scale
from orbitlens_papers.jobs import Arm, Job, Setup, run_arms
from orbitlens_papers.on_chip.claims import SMALL
from orbitlens_papers.on_chip.drawings import Drawings, omniglot
from orbitlens_papers.on_chip.episodes import Split, draw, split, training_of
from orbitlens_papers.on_chip.glyphs import make_glyphs
from orbitlens_papers.on_chip.model import Learner, among

RATE = 4e-3
GLYPHS = "glyphs"  # the arm that is trained and judged on letters of a font
LOOK = 10  # steps over which losses are averaged, in curves
# Eight folds of every arm would take an hour of a slow core: those that side claims or a second
# population rest on have fewer, and all train for 600 steps where four folds had 1,000.
STEPS = 600
N_SOFTMAX, N_RANDOM, N_GLYPHS = 3, 1, 2


@dataclass(frozen=True, kw_only=True)
class Classes:
    """Where the classes of a study come from, and how they are parted."""

    files: tuple[Path, ...]  # of Omniglot; none: glyphs
    most_glyphs: int
    seed: int  # of the generator that parts the classes

    def drawings(self) -> Drawings:
        """Return Omniglot where it is given, glyphs where it is not."""
        return omniglot(self.files) if self.files else make_glyphs(self.most_glyphs)

    def split(self, turn: int) -> Split:
        """Return what the runs of a turn train on and what is kept from them."""
        return split(self.drawings(), torch.Generator().manual_seed(self.seed), turn=turn)


@dataclass(frozen=True, kw_only=True)
class LearnerSetup:
    """What is trained, and how long; the index of a job says which classes are held out."""

    classes: Classes
    kind: str = "linear"
    start: str = "identity"
    way: int = 20  # harder episodes than those that are judged, as the official test is
    shots: int = 1
    episodes: int = 8  # a step
    steps: int = STEPS


@dataclass(frozen=True)
class Trained:
    """A learner with its weights after training, and its losses."""

    setup: LearnerSetup
    weights: bytes
    losses: tuple[float, ...]  # means over `LOOK` steps
    seconds: float

    def learner(self) -> Learner:
        """Return the learner, frozen."""
        made = Learner(kind=self.setup.kind, start=self.setup.start)
        made.load_state_dict(torch.load(io.BytesIO(self.weights), weights_only=True))
        return made.eval().requires_grad_(False)


def train_learner(job: Job[LearnerSetup]) -> Trained:
    """Train one learner."""
    started = time.process_time()
    with seeded(job.seed):
        learner = Learner(kind=job.setup.kind, start=job.setup.start)
    losses = _train(learner, job)
    saved = io.BytesIO()
    torch.save(learner.state_dict(), saved)
    means = [sum(losses[k : k + LOOK]) / LOOK for k in range(0, len(losses) - LOOK + 1, LOOK)]
    return Trained(job.setup, saved.getvalue(), tuple(means), time.process_time() - started)


def _train(learner: Learner, job: Job[LearnerSetup]) -> list[float]:
    setup, generator = job.setup, torch.Generator().manual_seed(job.seed)
    training = training_of(setup.classes.split(job.index), setup.shots)
    target = torch.arange(setup.way).expand(setup.episodes, -1)
    sizes = {"n": setup.episodes, "way": setup.way, "shots": setup.shots}

    def loss_at(step: int) -> Tensor:
        episodes = draw(generator, **sizes, of=training.size)
        rows = torch.cat([episodes.context, episodes.queries], dim=1)
        features = learner.encoder(training.shown(rows, generator))
        context, asked = features.split([setup.way * setup.shots, setup.way], dim=1)
        logits = among(learner(context, episodes.labels, asked), episodes.used)
        return functional.cross_entropy(logits.flatten(0, 1), target.flatten())

    optimizer = torch.optim.Adam(learner.parameters(), lr=RATE, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=setup.steps)
    losses: list[float] = fit(loss_at, optimizer, steps=setup.steps, schedule=schedule).tolist()
    return losses


# --- all arms of a run -----------------------------------------------------------------------


def arm_of(bench: Bench, name: str, setup: Setup, *, most: int | None = None) -> Arm[Setup]:
    """Return an arm with a run for each seed of the bench, or for the first few."""
    seeds = bench.seeds[:most]
    return Arm(
        setup=setup,
        seeds=[bench.generator(f"train {name}", seed).initial_seed() for seed in seeds],
    )


def arms(bench: Bench) -> dict[str, Arm[LearnerSetup]]:
    """Return the arms of a run, by name."""
    main = LearnerSetup(
        classes=classes_of(bench), steps=bench.pick(12, STEPS, 4000), episodes=bench.pick(2, 8, 8)
    )
    setups: dict[str, tuple[LearnerSetup, int | None]] = {
        "linear": (main, None),
        "softmax": (replace(main, kind="softmax"), N_SOFTMAX),
        "random start": (replace(main, start="random"), N_RANDOM),
        GLYPHS: (replace(main, classes=replace(main.classes, files=())), N_GLYPHS),
    }
    whole = bench.scale is Scale.FULL
    return {
        name: arm_of(bench, name, setup, most=None if whole else n)
        for name, (setup, n) in setups.items()
    }


def runs(bench: Bench) -> dict[str, list[Trained]]:
    """Return every arm trained, a learner a seed; trained once a run."""

    def make() -> dict[str, list[Trained]]:
        classes_of(bench).drawings()  # broken files are refused here, by name
        return run_arms(bench, train_learner, arms(bench))

    return bench.once("learners", make)


def classes_of(bench: Bench) -> Classes:
    """Return the classes of a run: Omniglot's background sets where given, else glyphs."""
    given = [bench.data_file(name) for name in SMALL]
    return Classes(
        files=tuple(file.resolve() for file in given if file is not None),
        most_glyphs=bench.pick(400, 4000, 4000),
        seed=bench.generator("split").initial_seed(),
    )


def splits(bench: Bench, arm: str = "linear") -> list[Split]:
    """Return the split of each run of an arm, as its learners saw it."""
    setup, n = arms(bench)[arm].setup, len(arms(bench)[arm].seeds)
    kind = GLYPHS if arm == GLYPHS else "classes"
    made = bench.once(f"splits {kind}", dict[int, Split])
    for turn in range(n):
        if turn not in made:
            made[turn] = setup.classes.split(turn)
    return [made[turn] for turn in range(n)]


def source(bench: Bench, arm: str = "linear") -> dict[str, Any]:
    """Return in words which data an arm used, and what each seed held out."""
    drawings = arms(bench)[arm].setup.classes.drawings()
    return {"source": drawings.source, "held out": [parts.words for parts in splits(bench, arm)]}
