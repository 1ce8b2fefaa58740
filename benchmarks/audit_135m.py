"""What an audit of a model of 135M parameters costs, against a plain loop over its four cells.

    python benchmarks/audit_135m.py [--samples 8] [--permutations 4] [--length 32] [--json FILE]

The model is a random Llama, made in memory: 30 layers, width 576, 9 heads of 3 groups. The plain
loop is one forward call for each input, permutation and cell, and nothing else; the audit is whole,
with its self-checks, layers, distances, positions and blocks. The goal: it takes no longer. Both
run in turns, on one thread; processor time is what counts on a machine that others use.
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import transformers
from _timing import machine, time_in_turns
from audit import one_call_each

from orbitlens.order.comparing import Bench, compare
from orbitlens.order.measuring import measure_order
from orbitlens.order.options import AuditOptions
from orbitlens.order.permutations import shuffles
from orbitlens.order.subject import Cell, make_subject
from orbitlens.running.threads import threads_for

GOAL, AGREE = 1.0, 1e-5


def llama_135m():
    """Return a random Llama of 135M parameters."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        vocab_size=49152,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
    )
    return transformers.LlamaForCausalLM(config).eval()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--permutations", type=int, default=4)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    subject = make_subject(llama_135m())
    generator = torch.Generator().manual_seed(0)
    items = torch.randint(3, 49152, (options.samples, options.length), generator=generator)
    bench = Bench(subject=subject, items=items, generator=generator)
    total = options.samples * options.permutations
    perms = bench.each(shuffles(bench.n_items, bench.movable, total, generator))
    chosen = AuditOptions(samples=options.samples, permutations=options.permutations)
    results = {}

    def plain():
        results["plain"] = [one_call_each(subject, items, perms, cell) for cell in Cell]

    def batched():
        bench.kept.clear()
        results["cells"] = [compare(bench, cell, perms).values for cell in Cell]

    def whole():
        with threads_for(1):  # as the verb does
            results["audit"] = measure_order(subject, items, options=chosen)

    jobs = {"plain": plain, "cells": batched, "audit": whole}
    times = time_in_turns(jobs, repeats=options.repeats, warm_up=False)
    pairs = zip(results["cells"], results["plain"], strict=True)
    gap = max(float((a - b).abs().max()) for a, b in pairs)
    if gap > AGREE:
        sys.exit(f"results differ by {gap:.1e} bits: nothing to compare")
    print(f"{machine()}\nresults agree to {gap:.1e} bits\n")
    print("| what | wall, s | processor, s | plain / this, processor |\n| --- | --- | --- | --- |")
    rows = {
        name: (time.wall, time.cpu, times["plain"].cpu / time.cpu) for name, time in times.items()
    }
    for name, (wall, cpu, ratio) in rows.items():
        print(f"| {name} | {wall:.1f} | {cpu:.1f} | {ratio:.2f} |")
    if options.json is not None:
        data = {"machine": machine(), "gap": gap, "rows": rows}
        options.json.write_text(json.dumps(data, indent=1) + "\n")
    sys.exit(0 if rows["audit"][2] >= GOAL else 1)


if __name__ == "__main__":
    main()
