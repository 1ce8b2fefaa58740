"""Claims 1f, 3b to 3e, 4 and 5a: what separable attention learns over single bins.

Enters: a bench. Leaves: outcomes. With the spoken digits at hand, each speaker is heard by models
trained on all the others; otherwise, and for claims 4 and 5 always, sounds are made. All arms of a
speaker, or of a seed, share clips, batches and the seed of their weights.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from orbitlens_papers import estimate
from orbitlens_papers.bench import Bench
from orbitlens_papers.claim import Outcome
from orbitlens_papers.estimate import Estimate
from orbitlens_papers.jobs import Arm, run_arms
from orbitlens_papers.separable.claims import FILE, INSTEAD
from orbitlens_papers.separable.sound import N_CLASSES, made_sounds
from orbitlens_papers.separable.speech import read_speech
from orbitlens_papers.separable.training import Row, SoundSetup, Split, train_and_judge
from orbitlens_papers.trained import judged

EQUAL_TIME = 3  # steps over patches of 2 x 2 bins that take as long as one over bins
MOST_OFF = 0.1  # of parameters, between arms of equal size
BRIEF, SHUFFLED = "separable, equal time", "separable, shuffled labels"
Rows = dict[str, list[Row]]  # by arm, one a unit: a speaker or a seed


def _grid(bench: Bench) -> tuple[int, int]:
    return bench.pick((6, 6), (10, 10), (24, 24))


def setups(bench: Bench, split: Split, *, made: bool) -> dict[str, SoundSetup]:
    """Return all variants by name; made sounds take fewer steps than spoken digits."""
    base = SoundSetup(
        split=split,
        width=bench.pick(16, 32, 64),
        steps=bench.pick(4, 400 if made else 600, 4000),
        batch=bench.pick(8, 16, 32),
        rate=bench.pick(6e-3, 6e-3, 2e-3),
        n_looks=bench.pick(2, 4, 20),
    )
    brief = replace(base, steps=max(1, base.steps // EQUAL_TIME))
    return {
        "joint": replace(base, kind="joint"),
        "separable": base,
        "rows first": replace(base, axes="rows-columns"),
        "columns only": replace(base, axes="columns"),
        "rows only": replace(base, axes="rows"),
        BRIEF: brief,
        SHUFFLED: replace(brief, shuffled=True),
        "patches": replace(base, kind="joint", patch=2),
        "cnn": replace(base, kind="cnn"),
        "logistic": replace(base, kind="logistic"),
    }


AXES = ("separable", "rows first", "columns only", "rows only")
HEADLINE = ("separable", BRIEF, SHUFFLED, "patches", "cnn", "logistic")


# --- clips -----------------------------------------------------------------------------------


def made_splits(bench: Bench) -> dict[str, Split]:
    """Return made sounds, a set a seed."""
    height, width = _grid(bench)
    n_train, n_test = bench.pick(24, 1500, 6000), bench.pick(24, 600, 2000)
    splits = {}
    for seed in bench.seeds:
        generator = bench.generator("made sounds", seed)
        sounds, labels = made_sounds(
            n_train + n_test, height=height, width=width, generator=generator
        )
        splits[f"seed {seed}"] = Split(
            train=sounds[:n_train],
            labels=labels[:n_train],
            test=sounds[n_train:],
            wanted=labels[n_train:],
            n_classes=N_CLASSES,
        )
    return splits


def speech_splits(file: Path, bench: Bench, *, voices: Sequence[float] = ()) -> dict[str, Split]:
    """Return spoken digits, a set a speaker, who is judged; all others are trained on."""
    height, width = _grid(bench)
    speech = read_speech(
        file, height=height, width=width, takes=bench.pick(3, 50, 50), voices=voices
    )
    splits = {}
    for name in speech.names:
        own = speech.of(name)
        splits[name] = Split(
            train=speech.pictures[~own],
            labels=speech.digits[~own],
            test=speech.pictures[own],
            wanted=speech.digits[own],
            n_classes=10,
            voices=speech.voices[~own] if voices else None,
        )
    return splits


# --- runs ------------------------------------------------------------------------------------


def runs(bench: Bench) -> dict[str, Any]:
    """Return all runs, the headline's and those on made sounds, and where clips came from."""

    def make() -> dict[str, Any]:
        file = bench.data_file(FILE)
        made = made_splits(bench)
        headline = made if file is None else speech_splits(file, bench)
        names = [*AXES, "patches"] if file is not None else list(AXES)
        arms = _arms(bench, "headline", headline, HEADLINE)
        for (_, name, unit), arm in _arms(bench, "made", made, names).items():
            if file is not None or ("headline", name, unit) not in arms:
                arms["made", name, unit] = arm
        by_part: dict[str, dict[str, dict[str, list[Row]]]] = {"headline": {}, "made": {}}
        for (part, name, unit), rows in run_arms(bench, train_and_judge, arms).items():
            by_part[part].setdefault(name, {})[unit] = rows
        if file is None:
            by_part["made"] = {**by_part["headline"], **by_part["made"]}
        return {
            "headline": {name: by_unit(rows) for name, rows in by_part["headline"].items()},
            "made": {name: by_unit(rows) for name, rows in by_part["made"].items()},
            "units": list(headline),
            "of": "seeds" if file is None else "speakers",
            "source": INSTEAD if file is None else "spoken digits (fsdd.zip), split by speaker",
            "chance": 1 / (N_CLASSES if file is None else 10),
        }

    return bench.once("runs", make)


def _arms(
    bench: Bench, part: str, splits: dict[str, Split], names: Sequence[str]
) -> dict[tuple[str, str, str], Arm[SoundSetup]]:
    """Return arms by part, name and unit; a speaker has more than one seed at full scale."""
    is_speech, seeds = not next(iter(splits)).startswith("seed "), list(bench.seeds)
    most = bench.pick(1 if is_speech else 3, len(splits), len(splits))
    arms = {}
    for name in names:
        for k, unit in enumerate(list(splits)[:most]):
            setup = setups(bench, splits[unit], made=not is_speech)[name]
            own = seeds if is_speech and bench.pick(False, False, True) else [seeds[k % len(seeds)]]
            arms[part, name, unit] = Arm(
                setup=replace(setup, shows=name == "separable" and k == 0),
                seeds=[bench.generator(f"run {unit}", seed).initial_seed() for seed in own],
            )
    return arms


def by_unit(rows: dict[str, list[Row]]) -> list[Row]:
    """Return one row a unit: the first one, with means over its seeds."""
    keys = ("accuracy", "pattern", "envelope", "seconds")
    merged = []
    for same in rows.values():
        means = {key: sum(row[key] for row in same) / len(same) for key in keys if key in same[0]}
        merged.append({**same[0], **means})
    return merged


def _values(rows: Rows, name: str, key: str = "accuracy") -> list[float]:
    return [float(row[key]) for row in rows[name]]


def less(rows: Rows, first: str, second: str, *, of: str, key: str = "accuracy") -> Estimate:
    """Return first less second, paired over the units that both have."""
    a, b = _values(rows, first, key), _values(rows, second, key)
    n = min(len(a), len(b))
    return estimate.difference(a[:n], b[:n], of=of)


# --- claim 1f: the symmetry survives training ------------------------------------------------


def trained_is_blind(bench: Bench) -> Outcome:
    """1f: change of a trained model under permutations of time, its places in time taken away."""
    rows = [row for row in runs(bench)["headline"]["separable"] if "symmetry" in row]
    return Outcome(
        result=estimate.largest([row["symmetry"]["without"] for row in rows], of="models"),
        control=estimate.smallest([row["symmetry"]["with"] for row in rows], of="models"),
        data={"source": runs(bench)["source"]},
    )


# --- claim 3: accuracy -----------------------------------------------------------------------


def beats(bench: Bench, *, other: str, arm: str = "separable") -> Outcome:
    """3b to 3d: separable less another arm, paired; control: separable on shuffled labels."""
    results = runs(bench)
    rows, of = results["headline"], results["of"]
    outcome = Outcome(
        result=less(rows, arm, other, of=of),
        control=less(rows, SHUFFLED, other, of=of),
        data={
            "source": results["source"],
            "accuracies": {name: _values(rows, name) for name in rows},
        },
    )
    return judged(bench, outcome)


def headline_data(results: dict[str, Any]) -> dict[str, Any]:
    """Return what tables and figures need of the arms of a comparison."""
    rows: Rows = results["headline"]
    sizes = {name: rows[name][0]["parameters"] for name in rows}
    ratio = sizes["separable"] / sizes["joint"]
    shown = next(row for row in rows["separable"] if "maps" in row)
    return {
        "source": results["source"],
        "units": results["units"],
        "of": results["of"],
        "chance": results["chance"],
        "accuracies": {name: _values(rows, name) for name in rows},
        "seconds": {name: _values(rows, name, "seconds") for name in rows},
        "parameters": sizes,
        "curves": {name: [row["curve"] for row in rows[name]] for name in rows},
        "look": {key: shown[key] for key in ("clip", "maps", "label", "predicted")},
        "note": f"clips: {results['source']}; parameters of the separable model over those of the "
        f"joint one: {ratio:.2f}"
        + ("" if abs(ratio - 1) <= MOST_OFF else ", which is not within a tenth of 1"),
    }


def papers_numbers(bench: Bench) -> Outcome:
    """3e: the paper's own data."""
    return Outcome(
        obstacle="CREMA-D, Speech Commands v2 and ESC-50 are not at hand, and the models that they "
        "need take days on processors: none of the paper's accuracies was compared"
    )


# --- claim 4: both axes ----------------------------------------------------------------------


def both_axes(bench: Bench, *, only: str, sees: str) -> Outcome:
    """4a, 4b: separable less one axis alone; control: in the factor that this axis can see."""
    rows: Rows = runs(bench)["made"]
    keys = ("accuracy", "pattern", "envelope")
    outcome = Outcome(
        result=less(rows, "separable", only, of="seeds"),
        control=less(rows, "separable", only, of="seeds", key=sees),
        data={
            "source": INSTEAD,
            "factors": {name: {key: _values(rows, name, key) for key in keys} for name in rows},
            "parameters": {name: rows[name][0]["parameters"] for name in rows},
            "seconds": {name: _values(rows, name, "seconds") for name in rows},
        },
    )
    return judged(bench, outcome)


# --- claim 5: order --------------------------------------------------------------------------


def size_of(gap: Estimate) -> Estimate:
    """Return the size of a difference, with the interval of sizes inside that of differences."""
    ends = sorted((abs(gap.low), abs(gap.high)))
    low = 0.0 if gap.low <= 0 <= gap.high else ends[0]
    return Estimate(value=abs(gap.value), low=low, high=ends[1], n=gap.n, how=f"size, {gap.how}")


def order_is_free(bench: Bench) -> Outcome:
    """5a: size of the difference between the two orders; control: columns alone."""
    rows: Rows = runs(bench)["made"]
    outcome = Outcome(
        result=size_of(less(rows, "separable", "rows first", of="seeds")),
        control=size_of(less(rows, "separable", "columns only", of="seeds")),
        data={"source": INSTEAD},
    )
    return judged(bench, outcome)
