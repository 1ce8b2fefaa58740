"""What an audit costs: batches and shared prefixes against one forward call a permutation.

    python benchmarks/audit.py MODEL [--text FILE] [--samples 64] [--permutations 64] [--json FILE]

Both sides measure the same inputs under the same permutations; the run stops if their divergences
differ by 1e-5 bits (float32). They are compared on a few inputs; the whole audit is timed once, in
full. The goals: five times as fast, and a 260K-parameter model in 30 s.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from _timing import machine, time_in_turns, time_once

from orbitlens.order.comparing import Bench, batches, compare
from orbitlens.order.divergence import js_bits
from orbitlens.order.measuring import measure_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.permutations import neighbour_swaps, shuffles
from orbitlens.order.questions import subject_for
from orbitlens.order.subject import Cell, run
from orbitlens.running.inputs import inputs_of, random_ids
from orbitlens.running.model import load
from orbitlens.running.samples import Samples, samples_of

SPEED_GOAL, SECONDS_GOAL, AGREE = 5.0, 30.0, 1e-5
N_NAIVE = 4  # inputs that one call a permutation is timed on


def one_call_each(subject, items, permutations, cell):
    """Return the divergences, with one forward call a permutation."""
    rows = []
    for item, orders in zip(items, permutations, strict=True):
        start = run(subject, item[None], cell).prediction
        found = [run(subject, item[order][None], cell).prediction for order in orders]
        rows.append(js_bits(start.expand(len(found), -1), torch.cat(found)))
    return torch.stack(rows)


def compare_cells(subject, items, n_permutations, repeats):
    """Time the 2 x 2 on a few inputs, both ways."""
    generator = torch.Generator().manual_seed(0)
    bench = Bench(subject=subject, items=items, generator=generator)
    total = len(items) * n_permutations
    perms = bench.each(shuffles(bench.n_items, bench.movable, total, generator))
    results = {}

    def batched():
        bench.kept.clear()
        results["ours"] = [compare(bench, cell, perms).values for cell in Cell]

    def single():
        results["other"] = [one_call_each(subject, items, perms, cell) for cell in Cell]

    times = time_in_turns({"ours": batched, "other": single}, repeats=repeats, warm_up=False)
    gap = max(
        float((a - b).abs().max()) for a, b in zip(results["ours"], results["other"], strict=True)
    )
    return times, gap


def compare_swaps(subject, items, repeats):
    """Time neighbour swaps with shared prefixes, against batches alone and one call each."""
    bench = Bench(subject=subject, items=items, generator=torch.Generator().manual_seed(0))
    swaps = neighbour_swaps(bench.n_items, bench.movable)
    each = swaps.expand(len(items), -1, -1)
    results = {}

    def shared():
        bench.kept.clear()
        results["ours"] = compare(bench, subject.own_cell, swaps).values

    def batched():
        rows = torch.cat([items, items[:, swaps].flatten(0, 1)])
        found = torch.cat([run(subject, b, subject.own_cell).prediction for b in batches(rows)])
        after = found[len(items) :].unflatten(0, (len(items), len(swaps)))
        results["batched"] = js_bits(found[: len(items), None].expand_as(after), after)

    def single():
        results["other"] = one_call_each(subject, items, each, subject.own_cell)

    jobs = {"ours": shared, "batched": batched, "other": single}
    times = time_in_turns(jobs, repeats=repeats, warm_up=False)
    gap = max(float((results["ours"] - results[k]).abs().max()) for k in ("batched", "other"))
    return times, gap


def samples_for(model, options):
    generator = torch.Generator().manual_seed(0)
    n_samples, length = options.samples, options.length
    if options.text is None or model.tokenizer is None:
        ids = random_ids(model.module.config, n_samples, length, generator)
        return Samples(items=ids, source="random")
    inputs = inputs_of(model, options.text)
    return samples_of(model, inputs, n_samples, length=length, generator=generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--permutations", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    model = load(options.model)
    samples = samples_for(model, options)
    subject = subject_for(model, model.module, samples)
    few = samples.items[:N_NAIVE]
    cells, cells_gap = compare_cells(subject, few, options.permutations, options.repeats)
    swaps, swaps_gap = compare_swaps(subject, samples.items[:16], options.repeats)
    if max(cells_gap, swaps_gap) > AGREE:
        sys.exit(f"results differ by {max(cells_gap, swaps_gap):.1e} bits: nothing to compare")
    chosen = AuditOptions(permutations=options.permutations)
    whole = time_once(lambda: measure_order(subject, samples.items, options=chosen))
    report(options, cells, swaps, whole, max(cells_gap, swaps_gap))


def report(options, cells, swaps, whole, gap):
    ratio = cells["other"].wall / cells["ours"].wall
    swap_ratio = swaps["other"].wall / swaps["ours"].wall
    prefix_ratio = swaps["batched"].wall / swaps["ours"].wall
    rows = [
        ("2 x 2, batches against one call a permutation", ratio, f">= {SPEED_GOAL:g}"),
        ("neighbour swaps, shared prefixes against one call each", swap_ratio, ""),
        ("neighbour swaps, shared prefixes against batches alone", prefix_ratio, ""),
        ("whole audit, seconds by the clock", whole.wall, f"<= {SECONDS_GOAL:g}"),
        ("whole audit, seconds of processor time", whole.cpu, ""),
    ]
    print(f"{machine()}\nresults agree to {gap:.1e} bits\n")
    print("| what | value | goal |\n| --- | --- | --- |")
    for what, value, goal in rows:
        print(f"| {what} | {value:.3g} | {goal} |")
    if options.json is not None:
        data = {"machine": machine(), "gap": gap, "rows": rows}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    is_full = (options.samples, options.permutations) == (64, 64)
    missed = ratio < SPEED_GOAL or (is_full and whole.wall > SECONDS_GOAL)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
