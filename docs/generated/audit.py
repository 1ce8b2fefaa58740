"""Tables of docs/audit.md, from docs/audits (`docs/make_audits.py` writes them)."""

import json
from pathlib import Path

from generated.tables import table

AUDITS = Path(__file__).parents[1] / "audits"
FIELDS = {
    "orbitlens": "the version that wrote the file",
    "kind": "audit",
    "format": "number of the format",
    "model": "what was audited: name, family, encoding, `own_cell` (the model unchanged)",
    "settings": "inputs, permutations of each at each place, length, first and last item that "
    "moves, what is asked and at which places, seed",
    "cells": "pe_causal, pe_full, nope_causal, nope_full: `mean_js_bits`, `low`, `high`, "
    "`max_logit_difference`, and each of the `places` asked at; null where a cell is not there; "
    "without a prediction head `mean_relative_change` in place of bits",
    "not_ablatable": "cell -> why it is not there",
    "effects": "what `encoding` and `mask` bring alone, and their `interaction`, each with its "
    "interval; null without all four cells",
    "shapley": "shares `encoding` and `mask`, between 0 and 1, with intervals, and the same in "
    "bits; null where a mechanism has none",
    "floor": "order sensitivity without encoding and mask",
    "encoding_effect": "relative change of the prediction when the encoding is removed",
    "threshold": "effect below which a swap counts as free",
    "horizon": "neighbour swaps further from the query than this many tokens are free; null: none "
    "is, or nothing is near or far",
    "layers": "for each layer, 0 the embedding: the equivariance defect in each cell",
    "swap_distance": "mean effect of a swap, by distance",
    "windows": "mean effect of shuffles within windows, by size",
    "ngrams": "mean effect of shuffles that keep n-grams, by size",
    "positions": "mean effect of each neighbour swap, over inputs in which the two tokens differ",
    "blocks": "runs of free neighbour swaps, and what shuffling them as a whole does",
    "slices": "for each residual variant and layer: identity, previous, following, position "
    "(score, control, chance) and adjacency",
    "checks": "`name`, `value`, `limit`, `must` (stay or move), `passed`, and what a failure means",
    "cost": "seconds, forward calls, sequences run and asked for, tokens",
    "notes": "what was noticed on the way",
    "verdict": "depends on order, order-blind, or permutation-invariant",
    "summary": "the sentence that the terminal shows",
}


def _shown(name: str, command: str) -> str:
    text = (AUDITS / f"{name}.txt").read_text(encoding="utf-8")
    lines = "\n".join(line.rstrip() for line in text.splitlines())
    return f"```console\n$ {command}\n{lines}\n```"


def stories() -> str:
    """Return the audit of a small Llama on stories."""
    return _shown(
        "stories260K", "orbitlens audit stories260K-llama-hf --text tinystories_sample.txt"
    )


def sorter() -> str:
    """Return the audit of a model that sorts."""
    return _shown(
        "sorter",
        "orbitlens audit gpt-nano-sort-hf --tokens digits.txt --samples 64 --permutations 64",
    )


def encoder_and_vision() -> str:
    """Return the audits of an encoder and of a vision model."""
    albert = "orbitlens audit rxnmapper-albert-hf --tokens reactions.txt  # [CLS] ... [SEP]"
    vision = "orbitlens audit vit-mnist-3class-hf --images digits.npy"
    return _shown("rxnmapper", albert) + "\n\n" + _shown("vit-mnist", vision)


def sorter_steps() -> str:
    """Return what the sorter knows after k answers; the text below it rests on what is asserted."""
    steps = json.loads((AUDITS / "sorter-steps.json").read_text(encoding="utf-8"))
    assert all(row["right"]["pe_causal"] == row["right"]["pe_full"] == 1.0 for row in steps)
    assert all(row["bits"]["pe_causal"] < 1e-3 for row in steps)
    assert all(row["bits_across"] > 100 * row["bits"]["pe_causal"] for row in steps[2:])
    assert (
        steps[0]["right"]["nope_causal"] == 1.0 > max(r["right"]["nope_causal"] for r in steps[1:])
    )
    assert all(row["bits"]["nope_causal"] > 10 * row["bits"]["pe_causal"] for row in steps[:-1])
    rows = []
    for row in steps:
        right = [f"{row['right'][cell]:.0%}" for cell in ("pe_causal", "nope_causal", "pe_full")]
        bits = [f"{row['bits'][cell]:.1e}" for cell in ("pe_causal", "nope_causal")]
        across = "" if row["given"] < 2 else f"{row['bits_across']:.2g}"
        rows.append((row["given"], *right, *bits, across))
    header = ["answers given", "right", "without encoding", "with full attention"]
    header += [
        "bits, questions permuted",
        "without encoding",
        "bits, questions and answers permuted",
    ]
    return table(header, rows)


def fields_of_an_audit() -> str:
    """Return the fields of an audit's JSON with their meanings."""
    kept = json.loads((AUDITS / "stories260K.json").read_text(encoding="utf-8"))
    if set(kept) != set(FIELDS):
        raise ValueError(f"{set(kept) ^ set(FIELDS)} are described or kept, not both")
    return table(["field", "meaning"], [(f"`{name}`", FIELDS[name]) for name in kept])
