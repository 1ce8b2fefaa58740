"""Which ranking of layers cuts best? Regret over real models: the tables of docs/cut.md.

    python benchmarks/cut.py MODELS DATA [--more NAME=FOLDER ...] [--out docs/cut-regret.json]

Every method chooses layers on one text; its choice is judged on another, beside the best set found
there: every set where there are few, else the best of all methods and of a greedy search on the
judged text itself. `OURS` and `WEIGHTS_ONLY` were chosen on the zoo, stories260K, the sorter and
the image model, by correlations of ranks; models given by --more are the frozen run. A row is
written once: a model that is in the file is left alone, so that a run can be stopped and resumed.
"""

import argparse
import itertools
import json
import math
import random
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
from agreement import REACTIONS, image_case, reaction_case, short, sort_case
from direction_agreement import NEW_REACTIONS, text_batches
from scipy.stats import spearmanr

from orbitlens.checkpoint.zoo import zoo_names
from orbitlens.cutting.loss import loss_kind, tasks
from orbitlens.cutting.measuring import Exam, greedy, loss_without, without_each
from orbitlens.cutting.parts import Trunk, parts_of
from orbitlens.cutting.rankings import LayerRanking, token_rankings, weight_rankings
from orbitlens.running.model import load
from orbitlens.running.removal import PartKind
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions

OURS, WEIGHTS_ONLY, BASELINE = "sampled loss", "size by weights", "block influence"
SHARES = (1 / 8, 1 / 4, 1 / 2)  # of layers that go, rounded up
MOST_CUT = 8  # layers, of models with many
MOST_SETS = 70  # that are all tried
N_RANDOM = 20


def texts(model, data, n_tokens):
    """Return contexts to choose by and to judge by: Wikipedia, then Shakespeare."""
    files = ("wikitext2_valid.txt", "tinyshakespeare.txt")
    return (text_batches(model, data / file, n_tokens) for file in files)


def cases(models, data, more):
    """Return name, model, what makes its contexts, and whether it is of the frozen run."""
    listed = [(name, name, None, False) for name in zoo_names()]
    listed += [
        ("stories260K", models / "stories260K-llama-hf", None, False),
        ("gpt-nano-sort", models / "gpt-nano-sort-hf", sort_case, False),
        ("vit-mnist", models / "vit-mnist-3class-hf", lambda f: image_case(f, data), False),
    ]
    for given in more:
        name, folder = given.split("=", 1)
        listed.append((name, Path(folder), reactions if name.startswith("rxn") else None, True))
    return listed


def reactions(folder):
    return reaction_case(folder, listed=REACTIONS + NEW_REACTIONS)


def exams(folder, make, data, n_tokens):
    model = load(folder, allow_pickle=True).running
    if make is None:
        choose, judge = texts(model, data, n_tokens)
    else:
        case = make(Path(folder))
        choose, judge = case.fit, case.judge
    kind, trunk = loss_kind(model), Trunk(model)
    return [
        Exam(trunk=trunk, tasks=list(tasks(model, part, kind, seed=seed)), kind=kind)
        for seed, part in enumerate((choose, judge))
    ]


def sampled_ranking(exam):
    """Return losses without each layer, on as few contexts as cost a pass over all of them."""
    trunk = exam.trunk
    n_contexts = sum(task.n_contexts for task in exam.tasks)
    n_used = max(1, round(n_contexts / (1 + (trunk.n_layers - 1) / 2)))
    few = replace(exam, tasks=first_contexts(exam.tasks, n_used))
    _, rows = without_each(few, list(parts_of(trunk.stack, (PartKind.LAYER,))))
    scores = tuple(row.difference for row in rows)
    return LayerRanking(method="sampled loss", scores=scores, passes=1.0)


def first_contexts(given, n_wanted):
    found = []
    for task in given:
        n_here = min(n_wanted, task.n_contexts)
        if n_here:
            found.append(task.part(0, n_here))
        n_wanted -= n_here
    return found


def random_ranking(n_layers, seed):
    """Return layers in a random order."""
    order = list(range(n_layers))
    random.Random(seed).shuffle(order)
    return LayerRanking(method="random", scores=tuple(map(float, order)), passes=0.0)


def budgets(n_layers):
    counts = [min(math.ceil(share * n_layers), MOST_CUT) for share in SHARES]
    return sorted({count for count in counts if count < n_layers})


def measured(exam, memory, layers):
    """Return the mean loss without some layers, each set measured once."""
    if layers not in memory:
        memory[layers] = float(loss_without(exam, layers).mean())
    return memory[layers]


def best_found(exam, memory, n_cut, chosen):
    n_layers = exam.trunk.n_layers
    if math.comb(n_layers, n_cut) <= MOST_SETS:
        every = map(frozenset, itertools.combinations(range(n_layers), n_cut))
        return min(measured(exam, memory, layers) for layers in every), "every set"
    searched = frozenset(step.part.layer for step in greedy(exam, n_cut, drop_losers=True))
    sets = {*chosen, searched}
    return min(measured(exam, memory, layers) for layers in sets), "best of all methods"


def row(case, data, *, n_tokens, heads):
    name, folder, make, frozen = case
    started = time.process_time()
    choose, judge = exams(folder, make, data, n_tokens)
    n_layers = choose.trunk.n_layers
    layers = list(parts_of(choose.trunk.stack, (PartKind.LAYER,)))
    _, exact = without_each(choose, layers)
    scores = tuple(each.difference for each in exact)
    rankings = [
        *weight_rankings(choose.trunk.model.checkpoint),
        *token_rankings(choose),
        sampled_ranking(choose),
        LayerRanking(method="loss of each", scores=scores, passes=1 + (n_layers - 1) / 2),
    ]
    memory, rows = {}, []
    steps = [step.part.layer for step in greedy(choose, max(budgets(n_layers)), drop_losers=True)]
    for n_cut in budgets(n_layers):
        picks = {ranking.method: ranking.lowest(n_cut) for ranking in rankings}
        picks["greedy"] = frozenset(steps[:n_cut])
        best, how = best_found(judge, memory, n_cut, picks.values())
        n_random = N_RANDOM if math.comb(n_layers, n_cut) <= MOST_SETS else 5
        drawn = [random_ranking(n_layers, seed).lowest(n_cut) for seed in range(n_random)]
        regrets = {m: measured(judge, memory, found) - best for m, found in picks.items()}
        regrets["random"] = statistics.fmean(measured(judge, memory, f) for f in drawn) - best
        rows.append({"cut": n_cut, "best": best, "how": how, "regret": regrets})
    _, truth = without_each(judge, layers)
    gaps = [each.difference for each in truth]
    found = {
        "model": name,
        "frozen": frozen,
        "loss": choose.kind.value,
        "tokens": n_tokens,
        "layers": n_layers,
        "whole": float(loss_without(judge, frozenset()).mean()),
        "rank": {r.method: float(spearmanr(r.scores, gaps)[0]) for r in rankings},
        "budgets": rows,
        "heads": head_rows(choose) if heads else None,
        "seconds": time.process_time() - started,
    }
    print(name, f"{found['seconds']:.0f} s of processor time", flush=True)
    return found


def head_rows(exam):
    """Return what each head does to directions, and what the model loses without it."""
    parts = list(parts_of(exam.trunk.stack, (PartKind.HEAD,)))
    _, rows = without_each(exam, parts)
    batches = [task.batch for task in exam.tasks]
    table = trace(exam.trunk.model, batches, options=TraceOptions(max_tokens=10**6)).to_pandas()
    table = table[table["part"].str.startswith("head")]
    changes = {
        (int(each.layer), int(each.part.removeprefix("head "))): each.log_change
        for each in table.itertuples()
    }
    return [[changes[row.part.layer, row.part.head], row.difference] for row in rows]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--more", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--no-heads", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("docs/cut-regret.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(options.out.read_text()) if options.out.exists() else []
    for case in cases(options.models, options.data, options.more):
        if any(each["model"] == case[0] for each in done):
            continue
        found = row(case, options.data, n_tokens=options.tokens, heads=not options.no_heads)
        done.append(found)
        options.out.write_text(json.dumps(short(done), indent=1) + "\n")


if __name__ == "__main__":
    main()
