"""Claims 2 to 6: what the context teaches, in floats and in whole numbers, and when it does not.

Enters: a bench. Leaves: outcomes over seeds; everything that is compared is judged on the same
episodes of the same held-out classes.
"""

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import torch

from orbitlens.lab.fitting import seeded
from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.on_chip import integers
from orbitlens_papers.on_chip.episodes import Split, draw, training_of
from orbitlens_papers.on_chip.exact import state_pictures
from orbitlens_papers.on_chip.judging import (
    FEW,
    MANY,
    SHOTS,
    WAY,
    accuracy,
    asked_episodes,
    by_shots,
    features,
    judge,
    parts_of,
    recall_by_place,
)
from orbitlens_papers.on_chip.model import Learner
from orbitlens_papers.on_chip.training import GLYPHS, classes_of, runs, source, splits
from orbitlens_papers.trained import judged

BITS = (8, 6, 4, 2)
DECAYS = (1.0, 0.95, 0.9, 0.8)
STRONG = 0.8
CHANCE = 1 / WAY
N_SETTLE = 200  # episodes of training classes that scales are settled on

Curves = dict[str, list[list[float]]]  # by name: a list by shots for each seed


def curves(bench: Bench, arm: str = "linear") -> Curves:
    """Return accuracies by shots of an arm and what it is compared with."""

    def make() -> Curves:
        by_name: Curves = {}
        trained_ones = runs(bench)[arm]
        seeds = bench.seeds[: len(trained_ones)]
        rows = zip(trained_ones, splits(bench, arm), seeds, strict=True)
        for trained, parts, seed in rows:
            for name, values in by_shots(bench, trained.learner(), parts, seed).items():
                by_name.setdefault(name, []).append(values)
        return by_name

    return bench.once(f"curves {arm}", make)


def _at(rows: Sequence[Sequence[float]], shots: int) -> list[float]:
    return [row[SHOTS.index(shots)] for row in rows]


# --- claim 2: learning from the context ------------------------------------------------------


def context_teaches(bench: Bench) -> Outcome:
    """2a: accuracy with five drawings; control: labels at random."""
    scores, soft = curves(bench), curves(bench, "softmax")["learner"]
    outcome = Outcome(
        result=estimate.mean(_at(scores["learner"], MANY)),
        control=estimate.mean(_at(scores["random labels"], MANY)),
        data={
            "shots": list(SHOTS),
            "curves": {**scores, "softmax": soft},
            "example": state_pictures(bench),
            **source(bench),
        },
    )
    return judged(bench, outcome)


def more_teach_more(bench: Bench) -> Outcome:
    """2b: five drawings against one; control: labels at random."""
    scores = curves(bench)
    result, control = (
        estimate.difference(_at(scores[name], MANY), _at(scores[name], FEW))
        for name in ("learner", "random labels")
    )
    return judged(bench, Outcome(result=result, control=control, data=source(bench)))


def training_helps(bench: Bench) -> Outcome:
    """2c: accuracy above that of pixels; control: the model before training."""
    scores = curves(bench)
    plain = _at(scores["pixels"], MANY)
    fresh = untrained(bench)
    outcome = Outcome(
        result=estimate.difference(_at(scores["learner"], MANY), plain),
        control=estimate.difference(fresh, plain),
        data={"untrained": fresh, "pixels": plain, **source(bench)},
    )
    return judged(bench, outcome)


def glyphs_too(bench: Bench) -> Outcome:
    """2f: 2a on letters of a font; control: labels at random."""
    scores = curves(bench, GLYPHS)
    outcome = Outcome(
        result=estimate.mean(_at(scores["learner"], MANY)),
        control=estimate.mean(_at(scores["random labels"], MANY)),
        data={"shots": list(SHOTS), "curves": scores, **source(bench, GLYPHS)},
    )
    return judged(bench, outcome)


def means_are_better(bench: Bench) -> Outcome:
    """2g: nearest class mean less the learner; control: means of pixels."""
    by_population = {"Omniglot": curves(bench)} if classes_of(bench).files else {}
    by_population["glyphs"] = curves(bench, GLYPHS)
    scores = curves(bench)
    learner = _at(scores["learner"], MANY)
    outcome = Outcome(
        result=estimate.difference(_at(scores["prototypes"], MANY), learner),
        control=estimate.difference(_at(scores["means of pixels"], MANY), learner),
        data={
            "note": "; ".join(_in_words(*row) for row in by_population.items()),
            **source(bench),
        },
    )
    return judged(bench, outcome)


def _in_words(population: str, scores: Curves) -> str:
    """Say how often the nearest class mean and the learner are right, by drawings."""
    parts = [
        f"{shots} a class: {fmean(_at(scores['prototypes'], shots)):.3f} against "
        f"{fmean(_at(scores['learner'], shots)):.3f}"
        for shots in SHOTS
    ]
    return f"nearest class mean against learner, {population}, {', '.join(parts)}"


def fresh_learner(bench: Bench, seed: int) -> Learner:
    """Return a learner before training."""
    with seeded(bench.generator("fresh", seed).initial_seed()):
        return Learner().eval().requires_grad_(False)


def untrained(bench: Bench) -> list[float]:
    """Return accuracies of learners before training, with five drawings."""
    accuracies = []
    for parts, seed in zip(splits(bench), bench.seeds, strict=True):
        learner = fresh_learner(bench, seed)
        episodes = asked_episodes(bench, parts, seed, MANY)
        accuracies.append(judge(learner, features(learner, parts), episodes))
    return accuracies


def softmax_is_no_better(bench: Bench) -> Outcome:
    """2d: softmax less linear; control: less linear with labels at random."""
    soft = _at(curves(bench, "softmax")["learner"], MANY)
    linear, wrong = (
        _at(curves(bench)[name], MANY)[: len(soft)] for name in ("learner", "random labels")
    )
    outcome = Outcome(
        result=estimate.difference(soft, linear),
        control=estimate.difference(soft, wrong),
        data={"softmax": soft, **source(bench)},
    )
    return judged(bench, outcome)


# --- claim 3: whole numbers ------------------------------------------------------------------


def narrow(bench: Bench) -> dict[str, Any]:
    """Return accuracies by bits, shots and seed, floats under 0, and the shifts that were used."""

    def make() -> dict[str, Any]:
        by_name: dict[str, Any] = {str(bits): [] for bits in (0, *BITS)}
        shifts: dict[str, list[int]] = {str(bits): [] for bits in BITS}
        rows = list(zip(runs(bench)["linear"], splits(bench), bench.seeds, strict=True))
        for done, (trained, parts, seed) in enumerate(rows, 1):
            learner = trained.learner()
            for_bits = _narrow_one(bench, learner, parts, seed)
            for bits, (values, shift) in for_bits.items():
                by_name[str(bits)].append(values)
                if bits:
                    shifts[str(bits)].append(shift)
            bench.step(done / len(rows))
        return {"accuracy": by_name, "shifts": shifts, "shots": [FEW, MANY]}

    return bench.once("narrow", make)


def _narrow_one(
    bench: Bench, learner: Learner, parts: Split, seed: int
) -> dict[int, tuple[list[float], int]]:
    table = features(learner, parts)
    chips = _chips(bench, learner, parts, seed)
    by_bits: dict[int, tuple[list[float], int]] = {0: ([], 0)}
    by_bits |= {bits: ([], chip.shift) for bits, chip in chips.items()}
    for shots in (FEW, MANY):
        episodes = asked_episodes(bench, parts, seed, shots)
        made = parts_of(learner, table, episodes)
        by_bits[0][0].append(judge(learner, table, episodes))
        for bits, chip in chips.items():
            by_bits[bits][0].append(accuracy(chip.answers(made), episodes))
    return by_bits


def _chips(bench: Bench, learner: Learner, parts: Split, seed: int) -> dict[int, integers.Chip]:
    """Return chips of all widths, settled on episodes of training classes."""
    generator = bench.generator("settle", seed)
    training = training_of(parts, MANY)
    episodes = draw(
        generator, n=bench.pick(20, N_SETTLE, N_SETTLE), way=WAY, shots=MANY, of=training.size
    )
    rows = torch.cat([episodes.context, episodes.queries], dim=1)
    with torch.no_grad():
        seen = torch.cat(
            [learner.encoder(training.shown(part, generator)) for part in rows.split(20)]
        )
    context, asked = seen.split([WAY * MANY, WAY], dim=1)
    made = learner.parts(context, episodes.labels, asked)
    return {bits: integers.settle(made, learner.readout, episodes, bits=bits) for bits in BITS}


def narrow_is_enough(bench: Bench, *, bits: int) -> Outcome:
    """3a to 3c: accuracy that whole numbers lose; control: two bits."""
    data = narrow(bench)
    outcome = Outcome(
        result=estimate.mean(_lost(data["accuracy"], bits)),
        control=estimate.mean(_lost(data["accuracy"], 2)),
        data={**data, **source(bench)} if bits == BITS[0] else {},
    )
    return judged(bench, outcome)


def _lost(by_bits: dict[str, list[list[float]]], bits: int) -> list[float]:
    """Return the larger loss of one and of five drawings, a seed each."""
    return [
        max(float(a - b) for a, b in zip(exact, whole, strict=True))
        for exact, whole in zip(by_bits["0"], by_bits[str(bits)], strict=True)
    ]


# --- claims 4 to 6 ---------------------------------------------------------------------------


def labels_tell(bench: Bench) -> Outcome:
    """4a: distance from chance with labels at random; control: true labels."""
    scores = curves(bench)

    def distance(name: str) -> list[float]:
        rows = zip(_at(scores[name], FEW), _at(scores[name], MANY), strict=True)
        return [max(abs(few - CHANCE), abs(many - CHANCE)) for few, many in rows]

    return judged(
        bench,
        Outcome(
            result=estimate.mean(distance("random labels")),
            control=estimate.mean(distance("learner")),
            data={"accuracy": scores["random labels"], **source(bench)},
        ),
    )


def fading_is_a_clock(bench: Bench) -> Outcome:
    """5b: last less first under fading; control: none."""
    recall: dict[str, list[list[float]]] = {str(decay): [] for decay in DECAYS}
    for trained, parts, seed in zip(runs(bench)["linear"], splits(bench), bench.seeds, strict=True):
        learner = trained.learner()
        table, episodes = features(learner, parts), asked_episodes(bench, parts, seed, FEW)
        for decay in DECAYS:
            by_place = recall_by_place(learner, table, episodes, decay)
            recall[str(decay)].append(by_place.tolist())
    result, control = (
        estimate.mean([row[-1] - row[0] for row in recall[str(decay)]]) for decay in (STRONG, 1.0)
    )
    data = {"recall": recall, **source(bench)}
    return judged(bench, Outcome(result=result, control=control, data=data))


def random_maps_stay(bench: Bench) -> Outcome:
    """6a: accuracy from random maps; control: from identities."""
    trained = runs(bench)
    outcome = Outcome(
        result=estimate.mean(_at(curves(bench, "random start")["learner"], MANY)),
        control=estimate.mean(_at(curves(bench)["learner"], MANY)),
        data={
            "losses": {
                name: [list(r.losses) for r in rows]
                for name, rows in trained.items()
                if name != GLYPHS
            },
            "way": trained["linear"][0].setup.way,
            **source(bench),
        },
    )
    return judged(bench, outcome)


def hardware(bench: Bench) -> Outcome:
    """9a: there is no chip here."""
    return Outcome(
        obstacle="no Loihi hardware: energy and latency claims untested; nor was its simulator "
        "(Lava) at hand. What integers lose is claim 3"
    )
