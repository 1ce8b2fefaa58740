"""What watching costs beside training, in the same run as the plain loop.

    python benchmarks/watch.py [--steps N] [--tokens N] [--json FILE]

A GPT-2 of 25 million parameters (8 layers of 8 heads, width 512) trains on random bytes with AdamW.
Every step is timed, and every call of Watch apart from it; readings are taken every second step, so
that few steps give several, and their median is spread over 50 steps, as `Watch(every=50)` would:

    share = (median reading / 50 + median call without one) / median step

Times are of the processor, on one thread. Memory is the most that tensors made by a reading hold at
a time, beside one layer of the model.
Goals: weights-only readings at most 2 % of a step; memory at most one layer.
"""

import argparse
import json
import statistics
import time
import weakref
from pathlib import Path

import torch
from _timing import machine
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel

from orbitlens import Watch

EVERY = 50


class PeakMemory(TorchDispatchMode):
    """Counts the bytes of tensors that are made and not yet dropped; those there before do not."""

    def __init__(self, known):
        super().__init__()
        self.known = {t.untyped_storage()._cdata for t in known}
        self.users, self.sizes, self.now, self.peak = {}, {}, 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor)
        return out

    def _count(self, tensor):
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.known:
            return
        if not self.users.get(key):
            self.sizes[key] = storage.nbytes()
            self.now += self.sizes[key]
            self.peak = max(self.peak, self.now)
        self.users[key] = self.users.get(key, 0) + 1
        weakref.finalize(tensor, self._drop, key)

    def _drop(self, key):
        self.users[key] -= 1
        if not self.users[key]:
            self.now -= self.sizes[key]


def model_of(width, layers, heads, context):
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256,
        n_positions=context,
        n_embd=width,
        n_layer=layers,
        n_head=heads,
        bos_token_id=0,
        eos_token_id=0,
    )
    return GPT2LMHeadModel(config).train()


def timed(work):
    """Return processor time: others use the machine too, and there is one thread."""
    started = time.process_time()
    work()
    return time.process_time() - started


def loop(model, watch, args):
    """Train, and return the seconds of steps, of calls with a reading and of calls without."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    generator = torch.Generator().manual_seed(1)
    seconds = {"step": [], "reading": [], "call": []}

    def step():
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    for number in range(args.steps):
        ids = torch.randint(0, 256, (args.batch, args.context), generator=generator)
        seconds["step"].append(timed(step))
        kind = "reading" if watch.is_due(number) else "call"
        seconds[kind].append(timed(lambda number=number: watch(model, number)))
    return seconds


def memory(model, watch, step):
    tensors = [*model.parameters(), *model.buffers()]
    with PeakMemory(tensors) as peak:
        watch(model, step)
    block = model.transformer.h[0]
    return {
        "reading_bytes": peak.peak,
        "layer_bytes": sum(p.numel() * p.element_size() for p in block.parameters()),
    }


def tokens_seconds(model, args):
    ids = torch.randint(0, 256, (args.batch, args.context), generator=torch.Generator())
    watch = Watch()
    watch(model, 0, {"input_ids": ids})
    return statistics.median(
        timed(lambda k=k: watch(model, 200 * k, {"input_ids": ids})) for k in (1, 2, 3)
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = model_of(args.width, args.layers, args.heads, args.context)
    watch = Watch(every=2)
    seconds = loop(model, watch, args)
    step, reading, call = (
        statistics.median(seconds[k][1:]) for k in ("step", "reading", "call")
    )  # the first of each warms up
    made = memory(model, watch, 10**6)
    result = {
        **machine(),
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens_a_step": args.batch * args.context,
        "step_seconds": step,
        "reading_seconds": reading,
        "call_seconds": call,
        "share_of_a_step": (reading / EVERY + call) / step,
        "token_reading_seconds": tokens_seconds(model, args),
        **made,
        "memory_in_layers": made["reading_bytes"] / made["layer_bytes"],
    }
    print(json.dumps(result, indent=1))
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    good = result["share_of_a_step"] <= 0.02 and result["memory_in_layers"] <= 1
    print("goals met" if good else "goals missed")


if __name__ == "__main__":
    main()
