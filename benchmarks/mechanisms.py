"""Scores of heads on real models and on one built by hand: the tables of docs/mechanisms.md.

    python benchmarks/mechanisms.py MODELS DATA [--out docs/mechanisms.json]

MODELS and DATA are folders with real weights and texts; a model that is not there is left out, and
said so. The zoo is part of the package. Every model is scored beside an untrained twin, and beside
a second twin in its own place: what an untrained model gets from the same measurement.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path

import torch
from agreement import short

from orbitlens.checkpoint.load import load_checkpoint
from orbitlens.checkpoint.zoo import zoo_names, zoo_path
from orbitlens.files import write_whole
from orbitlens.orbit import OrbitConfig, OrbitForCausalLM
from orbitlens.orbit.by_hand import induction_by_hand
from orbitlens.results.codec import encode
from orbitlens.running.batches import Limits, id_batches, text_contexts
from orbitlens.running.inputs import n_positions
from orbitlens.running.loading import build_module, fresh_module, load_tokenizer
from orbitlens.running.texts import read_text
from orbitlens.tracing.mechanism_result import in_words
from orbitlens.tracing.mechanisms import MechanismOptions, Subject, mechanisms


def subject(folder, model=None):
    return Subject(checkpoint=load_checkpoint(folder), model=model or build_module(folder))


def text_batches(file, folder, n_tokens):
    model, tokenizer = build_module(folder), load_tokenizer(folder)
    limits = Limits(context=128, batch=8, max_tokens=n_tokens)

    def make():
        contexts = text_contexts(read_text(file), tokenizer, limits)
        size = model.config.vocab_size
        return id_batches(contexts, limits, vocabulary=size, positions=n_positions(model))

    return make, tokenizer


def random_batches(n_contexts=16, n_tokens=64, vocabulary=40):
    """Contexts of random tokens, for the model built by hand: it knows no text."""
    rng = torch.Generator().manual_seed(0)
    ids = torch.randint(0, vocabulary, (n_contexts, n_tokens), generator=rng)
    return (lambda: [{"input_ids": block} for block in ids.split(8)]), None


def trained_on_repeats(folder, *, n_tokens=40, steps=1500, batch=32, seed=0):
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
    model.eval().save_pretrained(folder)


def row(name, what, folder, texts):
    """Return one model's scores and, as a control of the verdicts, those of a second twin."""
    batches, tokenizer = texts
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as home:
        twins = []
        for seed in (0, 1):
            fresh_module(folder, seed=seed).save_pretrained(Path(home) / str(seed))
            twins.append(subject(Path(home) / str(seed)))
        found = mechanisms(subject(folder), twins[0], batches, tokenizer=tokenizer)
        control = mechanisms(twins[1], twins[0], batches, tokenizer=tokenizer)
    print(f"{name}: {time.perf_counter() - started:.0f} s", *in_words(found), sep="\n  ")
    return {
        "model": name,
        "text": what,
        "words": in_words(found),
        "mechanisms": encode(found),
        "untrained_findings": encode(control.findings),
        "seconds": time.perf_counter() - started,
    }


def all_rows(models, data, n_tokens):
    shakespeare = data / "tinyshakespeare.txt"
    with tempfile.TemporaryDirectory() as home:
        for copies, name in ((True, "built by hand"), (False, "built by hand, copying cut")):
            folder = Path(home) / name.replace(" ", "-")
            induction_by_hand(copies=copies).save_pretrained(folder)
            yield row(name, "random tokens", folder, random_batches())
        folder = Path(home) / "trained"
        trained_on_repeats(folder)
        yield row("trained to repeat", "random tokens", folder, random_batches())
    for name in zoo_names():
        folder = zoo_path(name)
        yield row(name, "Shakespeare", folder, text_batches(shakespeare, folder, n_tokens))
    folder = models / "stories260K-llama-hf"
    if folder.is_dir():
        texts = text_batches(data / "tinystories_sample.txt", folder, n_tokens)
        yield row("stories260K", "TinyStories", folder, texts)
    else:
        print(f"{folder} is not there: left out")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", type=Path)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, default=Path("docs/mechanisms.json"))
    parser.add_argument("--tokens", type=int, default=16_000)
    args = parser.parse_args()
    torch.set_num_threads(1)
    options = MechanismOptions()
    rows = list(all_rows(args.models, args.data, args.tokens))
    result = {"tokens": args.tokens, "options": encode(options), "rows": rows}
    text = json.dumps(short(result), indent=1) + "\n"
    write_whole(args.out, text.encode())


if __name__ == "__main__":
    main()
