"""Scores of heads on real models and on one built by hand: the tables of docs/mechanisms.md.

    python benchmarks/mechanisms.py MODELS DATA [--out docs/mechanisms.json]

MODELS and DATA are folders with real weights and texts; a model that is not there is left out, and
said so. The zoo is part of the package. Every model is scored beside an untrained twin, and beside
a second twin in its own place: what an untrained model gets from the same measurement.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from agreement import short

from orbitlens.checkpoint.zoo import zoo_names
from orbitlens.files import write_whole
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.orbit.by_hand import induction_by_hand
from orbitlens.results.codec import encode
from orbitlens.running.batches import Limits, batches_of
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import load
from orbitlens.tracing.mechanism_result import in_words
from orbitlens.tracing.mechanisms import MechanismOptions, mechanism_scores


def text_batches(file, model, n_tokens):
    limits = Limits(context=128, batch=8, max_tokens=n_tokens)
    inputs = inputs_of(model, file)
    return lambda: batches_of(model, inputs, limits)


def random_batches(n_contexts=16, n_tokens=64, vocabulary=40):
    """Contexts of random tokens, for the model built by hand: it knows no text."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (n_contexts, n_tokens), generator=rng)
    return lambda: [{"input_ids": block} for block in ids.split(8)]


def trained_on_repeats(*, n_tokens=40, steps=1500, batch=32, seed=0):
    """Train two layers on random tokens that repeat after 8 to 32: induction, learned."""
    rng = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    config = OrbitConfig(
        vocab_size=n_tokens,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=64,
        position="rotary",
        rotary_base=100.0,
        initializer_range=0.1,
        mlp=False,
    )
    model = OrbitForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    for step in range(steps):
        half = int(torch.randint(8, 33, (), generator=rng))
        first = torch.randint(0, n_tokens, (batch, half), generator=rng)
        ids = torch.cat([first, first], dim=1)
        labels = ids.clone()
        labels[:, : half + 1] = -100  # nothing in front tells what these are
        loss = model(ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 500 == 499:
            print(f"  step {step + 1}: loss {loss.item():.3f}", flush=True)
    return model.eval()


def row(name, what, model, batches):
    """Return one model's scores and, as a control of the verdicts, those of a second twin."""
    started = time.perf_counter()
    twin, other = model.twin(0), model.twin(1)
    scores = mechanism_scores(model, twin, batches)
    control = mechanism_scores(other, twin, batches)
    print(f"{name}: {time.perf_counter() - started:.0f} s", *in_words(scores), sep="\n  ")
    return {
        "model": name,
        "text": what,
        "words": in_words(scores),
        "mechanisms": encode(scores),
        "untrained_findings": encode(control.findings),
        "seconds": time.perf_counter() - started,
    }


def all_rows(models, data, n_tokens, steps):
    shakespeare = data / "tinyshakespeare.txt"
    for copies, name in ((True, "built by hand"), (False, "built by hand, copying cut")):
        by_hand = load(induction_by_hand(copies=copies))
        yield row(name, "random tokens", by_hand, random_batches())
    trained = load(trained_on_repeats(steps=steps))
    yield row("trained to repeat", "random tokens", trained, random_batches())
    for name in zoo_names():
        model = load(name)
        yield row(name, "Shakespeare", model, text_batches(shakespeare, model, n_tokens))
    folder = models / "stories260K-llama-hf"
    if folder.is_dir():
        model = load(folder)
        texts = text_batches(data / "tinystories_sample.txt", model, n_tokens)
        yield row("stories260K", "TinyStories", model, texts)
    else:
        print(f"{folder} is not there: left out")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/mechanisms.json"))
    parser.add_argument("--tokens", type=int, default=16_000)
    parser.add_argument("--steps", type=int, default=1500, help="of the model that is trained")
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = MechanismOptions()
    rows = list(all_rows(args.models, args.data, args.tokens, args.steps))
    result = {"tokens": args.tokens, "options": encode(options), "rows": rows}
    text = json.dumps(short(result), indent=1) + "\n"
    write_whole(args.out, text.encode())


if __name__ == "__main__":
    main()
