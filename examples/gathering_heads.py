"""Which heads of a checkpoint gather directions, and what happens to the loss without them?

    python examples/gathering_heads.py [MODEL] [TEXT]

MODEL is a decoder: a folder, a hub name, or a model of the zoo (the default). TEXT is a UTF-8 file;
without one, a passage inside the package is used. docs/tutorial.md goes through it step by step.
"""

import random
import statistics
import sys
from pathlib import Path

import torch

import orbitlens as ol
from orbitlens.running.ablation import without_heads
from orbitlens.running.texts import passage

CONTEXT, MOST_TOKENS, DRAWS = 128, 8192, 20
CLEAR = 0.01  # change of ln(1 - C), C the mean cosine of tokens, beyond which a head is named


def contexts_of(model, text):
    """Return the beginning of a text as contexts of equal length, a row each."""
    ids = model.tokenizer(text, verbose=False)["input_ids"][:MOST_TOKENS]
    return torch.tensor(ids[: len(ids) // CONTEXT * CONTEXT]).reshape(-1, CONTEXT)


def loss(model, contexts, cut=()):
    """Return the mean loss in nats a token, without some heads."""
    with model.evaluating() as module, without_heads(model, cut):
        return module(input_ids=contexts, labels=contexts).loss.item()


def main(name="orbit-nano-rotary", file=None):
    model = ol.load(name)
    path = Path(file) if file else passage()
    options = ol.TraceOptions(max_tokens=MOST_TOKENS, context=CONTEXT)
    trace = ol.trace(model, path, options=options)
    print(trace.summary())

    changes = {
        (layer.layer, k): head.share
        for layer in trace.layers
        for k, head in enumerate(layer.directions.heads)
    }
    gatherers = [place for place, change in changes.items() if change < -CLEAR]
    others = [place for place in changes if place not in gatherers]
    if not gatherers:
        print("\nNo head gathers directions: there is nothing to cut.")
        return

    contexts = contexts_of(model, path.read_text(encoding="utf-8"))
    whole = loss(model, contexts)
    cost = loss(model, contexts, gatherers) - whole
    print(f"\nloss of the whole model: {whole:.3f} nats a token")
    print(f"without its {len(gatherers)} heads that gather directions: {cost:+.3f}")
    draw = random.Random(0)
    n_cut = min(len(gatherers), len(others))
    controls = [loss(model, contexts, draw.sample(others, n_cut)) - whole for _ in range(DRAWS)]
    print(
        f"without {n_cut} others, {DRAWS} draws: {statistics.median(controls):+.3f} "
        f"(from {min(controls):+.3f} to {max(controls):+.3f})"
    )


if __name__ == "__main__":
    main(*sys.argv[1:3])
