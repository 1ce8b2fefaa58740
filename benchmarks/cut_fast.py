"""Layers measured at a third of a pass each: are they the ones that exact losses choose?

    python benchmarks/cut_fast.py MODELS DATA [--more NAME=FOLDER ...] [--out docs/cut-fast.json]

For every model and budget of `cut.py`: the layers whose absence costs least by losses on all
contexts, and by `orbitlens cut --fast`, which stops measuring layers that clearly stay and may cost
a third of a pass a layer. Written: passes paid, whether the sets are the same, what the other set
costs more by exact losses, and how often an exact loss lies within two standard errors of its
estimate. The rule (`measuring.py`) was fixed before any model was run.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path

import torch
from agreement import short
from cut import budgets, cases, exams

from orbitlens.cutting.api import MOST_SHARE
from orbitlens.cutting.measuring import without_each
from orbitlens.cutting.parts import parts_of
from orbitlens.cutting.rankings import LayerRanking
from orbitlens.running.removal import PartKind


def chosen(rows, n_cut):
    """Return the layers that go: of those that were measured furthest, the ones that cost least."""
    most = max(row.n_contexts for row in rows)
    scores = [row.difference if row.n_contexts == most else float("inf") for row in rows]
    return LayerRanking(method="", scores=tuple(scores), passes=0.0).lowest(n_cut)


def passes(rows, n_contexts):
    """Return what was paid, in passes over all contexts: the whole model, and behind each layer."""
    n = len(rows)
    behind = sum(row.n_contexts * (n - 1 - row.part.layer) / n for row in rows)
    return (max(row.n_contexts for row in rows) + behind) / n_contexts


def compared(exam, n_cut, exact):
    single = [task.part(k, k + 1) for task in exam.tasks for k in range(task.n_contexts)]
    layers = list(parts_of(exam.trunk.stack, (PartKind.LAYER,)))
    most = MOST_SHARE * len(layers)
    _, rows = without_each(replace(exam, tasks=single), layers, keep_best=n_cut, most_passes=most)
    ours, truth = chosen(rows, n_cut), chosen(exact, n_cut)
    within = [
        abs(row.difference - whole.difference) <= 2 * row.deviation
        for row, whole in zip(rows, exact, strict=True)
        if row.deviation is not None
    ]
    return {
        "cut": n_cut,
        "passes": passes(rows, len(single)),
        "fast": sorted(ours),
        "exact": sorted(truth),
        "lost": sum(exact[k].difference for k in ours) - sum(exact[k].difference for k in truth),
        "within": [sum(within), len(within)],
    }


def row(case, data, n_tokens):
    name, folder, make, _ = case
    exam, _ = exams(folder, make, data, n_tokens)
    layers = list(parts_of(exam.trunk.stack, (PartKind.LAYER,)))
    _, exact = without_each(exam, layers)
    found = [compared(exam, n_cut, exact) for n_cut in budgets(len(layers))]
    print(name, [(each["cut"], each["fast"] == each["exact"]) for each in found], flush=True)
    n_contexts = max(each.n_contexts for each in exact)
    return {"model": name, "layers": len(layers), "contexts": n_contexts, "budgets": found}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--more", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=Path("docs/cut-fast.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(options.out.read_text()) if options.out.exists() else []
    for case in cases(options.models, options.data, options.more):
        if any(each["model"] == case[0] for each in done):
            continue
        done.append(row(case, options.data, options.tokens))
        options.out.write_text(json.dumps(short(done), indent=1) + "\n")


if __name__ == "__main__":
    main()
