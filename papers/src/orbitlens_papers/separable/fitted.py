"""Claims 3a, 3f, 3g and 5b: models trained until a linear one is no better, if they get there.

Enters: a bench. Leaves: outcomes. Clips are those of `comparisons`: spoken digits, each speaker
heard by models trained on all the others, or made sounds. Every training clip has a voice drawn
anew, its frequencies moved by a factor, and is mixed with another one: without that, more steps
teach training clips by heart.
"""

from dataclasses import replace
from typing import Any

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.jobs import Arm, run_arms
from orbitlens_papers.separable.claims import FILE, INSTEAD
from orbitlens_papers.separable.comparisons import (
    Rows,
    by_unit,
    headline_data,
    less,
    made_splits,
    size_of,
    speech_splits,
)
from orbitlens_papers.separable.sound import N_CLASSES
from orbitlens_papers.separable.speech import VOICES
from orbitlens_papers.separable.training import SoundSetup, Split, train_and_judge
from orbitlens_papers.trained import judged

SHUFFLED = "separable, shuffled labels"
ONCE = (SHUFFLED, "logistic")  # run with the first seed alone
SHORTER = 3  # times fewer steps on shuffled labels: there is nothing to learn
SEEDS = 8  # of each speaker at the most


def setups(bench: Bench, split: Split) -> dict[str, SoundSetup]:
    """Return the arms by name; of models of two layers over tokens of 2 x 2 bins."""
    base = SoundSetup(
        split=split,
        patch=2,
        width=bench.pick(16, 16, 64),
        layers=bench.pick(2, 2, 4),
        steps=bench.pick(4, 2000, 4000),
        batch=bench.pick(8, 32, 32),
        rate=bench.pick(6e-3, 6e-3, 2e-3),
        decay=0.05,
        revoiced=True,
        mixed=True,
        n_looks=bench.pick(2, 4, 20),
    )
    return {
        "separable": base,
        "rows first": replace(base, axes="rows-columns"),
        "joint": replace(base, kind="joint"),
        SHUFFLED: replace(base, shuffled=True, steps=max(1, base.steps // SHORTER)),
        "logistic": replace(base, kind="logistic"),
    }


def runs(bench: Bench) -> dict[str, Any]:
    """Return the rows of each arm, one a speaker or a seed of made sounds, and their source."""

    def make() -> dict[str, Any]:
        file = bench.data_file(FILE)
        splits = made_splits(bench) if file is None else speech_splits(file, bench, voices=VOICES)
        rows = _rows(bench, splits, is_speech=file is not None)
        return {
            "headline": {name: by_unit(own) for name, own in rows.items()},
            "units": list(splits),
            "of": "seeds" if file is None else "speakers",
            "source": INSTEAD if file is None else "spoken digits (fsdd.zip), split by speaker",
            "chance": 1 / (N_CLASSES if file is None else 10),
        }

    return bench.once("fitted", make)


def _rows(bench: Bench, splits: dict[str, Split], *, is_speech: bool) -> dict[str, Any]:
    n_units = bench.pick(1, len(splits), len(splits))
    n_seeds = bench.pick(1, SEEDS, SEEDS) if is_speech else 1
    arms = {}
    for k, unit in enumerate(list(splits)[:n_units]):
        seeds = [bench.generator(f"fitted {unit}", s).initial_seed() for s in bench.seeds[:n_seeds]]
        for name, setup in setups(bench, splits[unit]).items():
            own = replace(setup, shows=name == "separable" and k == 0)
            # No seed enters the fit of a logistic regression, and a control at chance needs one.
            arms[name, unit] = Arm(setup=own, seeds=seeds[:1] if name in ONCE else seeds)
    rows: dict[str, Any] = {}
    for (name, unit), found in run_arms(bench, train_and_judge, arms).items():
        rows.setdefault(name, {})[unit] = found
    return rows


def beats_joint(bench: Bench) -> Outcome:
    """3a: separable less joint, paired; control: separable on shuffled labels."""
    found = runs(bench)
    return judged(
        bench,
        Outcome(
            result=less(found["headline"], "separable", "joint", of=found["of"]),
            control=less(found["headline"], SHUFFLED, "joint", of=found["of"]),
            data=headline_data(found),
        ),
    )


def reaches_linear(bench: Bench, *, arm: str) -> Outcome:
    """3f, 3g: an arm less logistic regression, paired; control: separable on shuffled labels."""
    found = runs(bench)
    rows: Rows = found["headline"]
    outcome = Outcome(
        result=less(rows, arm, "logistic", of=found["of"]),
        control=less(rows, SHUFFLED, "logistic", of=found["of"]),
        data={"source": found["source"], "note": _means(rows, arm)},
    )
    return judged(bench, outcome)


def _means(rows: Rows, arm: str) -> str:
    own, linear = (
        estimate.mean([float(row["accuracy"]) for row in rows[name]]) for name in (arm, "logistic")
    )
    return f"accuracies are {own.value:.3f} and {linear.value:.3f}, means over {own.n}"


def order_is_free(bench: Bench) -> Outcome:
    """5b: size of the difference between the two orders; control: shuffled labels."""
    found = runs(bench)

    def size(other: str) -> Estimate:
        return size_of(less(found["headline"], "separable", other, of=found["of"]))

    outcome = Outcome(
        result=size("rows first"), control=size(SHUFFLED), data={"source": found["source"]}
    )
    return judged(bench, outcome)
