"""Claim 7: Omniglot's official test, twenty runs of one-shot classification among twenty classes.

Enters: a bench with the runs' zip file. Leaves: an outcome: errors of the learners and of what they
are compared with, all computed here on the same questions.
"""

from statistics import fmean

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.on_chip.baselines import by_outline, nearest
from orbitlens_papers.on_chip.claims import RUNS
from orbitlens_papers.on_chip.drawings import KEPT, SIDE, OneShotRun, oneshot_runs
from orbitlens_papers.on_chip.episodes import resized
from orbitlens_papers.on_chip.fewshot import fresh_learner
from orbitlens_papers.on_chip.model import Learner
from orbitlens_papers.on_chip.training import classes_of, runs, source
from orbitlens_papers.trained import judged

# Errors that others published on this test, trained on thirty alphabets where they train at all.
# Outlines: from the demonstration that comes with the data. The others: table 2 of Koch, Zemel
# and Salakhutdinov (2015), "Siamese Neural Networks for One-shot Image Recognition", as accuracies;
# read in public notes that quote the table, not in the paper itself.
PUBLISHED = {
    "people": 0.045,
    "Siamese convolutions": 0.08,
    "outlines": 0.388,
    "nearest pixels": 0.783,
}


def seen(pictures: Float[Tensor, "items height width"]) -> Float[Tensor, "items size size"]:
    """Return pictures as learners see them: shrunk in the two steps of training pictures."""
    return resized(functional.avg_pool2d(pictures[:, None], SIDE // KEPT)[:, 0])


@torch.no_grad()
def errors(learner: Learner, tests: tuple[OneShotRun, ...]) -> list[float]:
    """Return the share of wrong answers in each run; each class has its own label neuron."""
    shares = []
    for run in tests:
        labels = torch.arange(len(run.taught))[None]
        taught, asked = (learner.encoder(seen(x))[None] for x in (run.taught, run.asked))
        chosen = learner(taught, labels, asked)[0].argmax(dim=-1)
        shares.append(_wrong(chosen, run))
    return shares


def pixel_errors(tests: tuple[OneShotRun, ...]) -> list[float]:
    """Return errors of the nearest picture by pixels."""
    shares = []
    for run in tests:
        labels = torch.arange(len(run.taught))[None]
        taught, asked = (seen(x).flatten(1)[None] for x in (run.taught, run.asked))
        shares.append(_wrong(nearest(taught, labels, asked)[0].argmax(dim=-1), run))
    return shares


def _wrong(chosen: Tensor, run: OneShotRun) -> float:
    return float((chosen != run.answers).double().mean())


def official_test(bench: Bench) -> Outcome:
    """7a: errors less those of outlines, a seed each; control: learners before training."""
    file = bench.data_file(RUNS)
    if file is None or not classes_of(bench).files:
        return Outcome(
            obstacle=f"needs Omniglot: {RUNS} and one of its background sets, in the folder of "
            "data; glyphs have no official test",
            data=source(bench),
        )
    tests = oneshot_runs(file.resolve())[: bench.pick(2, 20, 20)]
    outlines = fmean([_wrong(by_outline(run), run) for run in tests])
    by_arm = {
        name: [fmean(errors(trained.learner(), tests)) for trained in rows]
        for name, rows in runs(bench).items()
    }
    fresh = [fmean(errors(fresh_learner(bench, seed), tests)) for seed in bench.seeds]
    outcome = Outcome(
        result=estimate.mean([error - outlines for error in by_arm["linear"]]),
        control=estimate.mean([error - outlines for error in fresh]),
        data={
            "errors": {**by_arm, "untrained": fresh},
            "outlines": outlines,
            "pixels": fmean(pixel_errors(tests)),
            "published": PUBLISHED,
            "questions": sum(len(run.asked) for run in tests),
            **source(bench),
        },
    )
    return judged(bench, outcome)
