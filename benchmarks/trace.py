"""What measuring costs beside running the model, and beside collecting all hidden states.

    python benchmarks/trace.py MODEL --text FILE [--tokens N]

Three jobs on the same batches, in turns, the least of several repeats:

    forward     the model alone
    trace       the model with the sums of every layer (`Collector`)
    collect     every state of the whole text kept, then the same metrics with NumPy

Peak memory is by how much a process of its own grows, once the model is loaded. Goals: trace at
most 1.6 times forward; collect at least 3 times as slow and as large as trace.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import torch
from _timing import machine, time_in_turns

from orbitlens.running.batches import Limits, batches_of
from orbitlens.running.capture import capturing
from orbitlens.running.inputs import inputs_of
from orbitlens.running.model import load
from orbitlens.tracing.collector import Collector

JOBS = ("forward", "trace", "collect")


def set_up(args):
    model = load(args.model)
    limits = Limits(context=args.context, batch=args.batch, max_tokens=args.tokens)
    return model, list(batches_of(model, inputs_of(model, args.text), limits))


def forward(model, batches):
    with torch.no_grad():
        for batch in batches:
            model.module(**batch)


def traced(model, batches):
    collector = Collector(model, n_kept=1024)
    collector.run(None, batches)
    return collector


def collected(model, batches):
    """Keep the states of the whole text, then compute the trace's own metrics with NumPy."""
    kept = {}

    def keep(stack, layer, states):
        parts = {name: x.numpy() for name, x in vars(states).items() if x is not None}
        kept.setdefault((stack.name, layer), []).append(parts)

    with torch.no_grad(), capturing(model.module, model.checkpoint, keep):
        for batch in batches:
            model.module(**batch)
    return [
        numpy_metrics(
            {name: np.concatenate([p[name] for p in parts]) for name in parts[0]},
            model.checkpoint.stack(place[0]).layers[place[1]].n_heads,
        )
        for place, parts in kept.items()
    ]


def numpy_metrics(states, n_heads):
    """Return what the trace reads of one layer, from all tokens at once."""
    x, z = states["before"].astype(np.float64), states["mixed"].astype(np.float64)
    n = x.shape[1]
    centred, mixed = (y - y.mean(axis=1, keepdims=True) for y in (x, z))
    flat, inner, heads = (y.reshape(-1, y.shape[-1]) for y in (x, centred, mixed))
    lengths = np.linalg.norm(x, axis=-1)
    units = x / lengths[..., None]
    middle = centred / np.linalg.norm(centred, axis=-1, keepdims=True)
    values = np.linalg.svd(flat, compute_uv=False)
    share = values / values.sum()
    gap = states["after"] - states["before"]
    blocks = heads.reshape(len(heads), n_heads, -1).transpose(1, 0, 2)
    found = {
        "norm": lengths.mean(),
        "cosine": (units.sum(axis=1) ** 2).sum() - lengths.size,
        "centred_cosine": (middle.sum(axis=1) ** 2).sum() - lengths.size,
        "covariance": inner.T @ inner,
        "cross": inner.T @ heads,
        "heads": blocks.transpose(0, 2, 1) @ blocks,
        "effective_rank": np.exp(-(share * np.log(share + 1e-300)).sum()),
        "update": np.linalg.norm(gap),
        "update_cosine": (gap * states["before"]).sum(axis=-1).mean(),
        "positions": x.mean(axis=0),
    }
    streams = {"attention": states["before"] + states["attention"], **states}
    for name in ("attention", "after", "normed", "unnormed"):
        if name in streams:
            y = streams[name].astype(np.float64)
            found[name] = 2 * ((y - y.mean(axis=1, keepdims=True)) ** 2).sum() / (len(y) * (n - 1))
    return found


def peak_of(job, args):
    command = [sys.executable, __file__, args.model, "--text", str(args.text), "--job", job]
    command += ["--tokens", str(args.tokens), "--batch", str(args.batch)]
    command += ["--context", str(args.context), "--threads", str(args.threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])["peak"]


def run_job(args):
    """Run one job and print by how much the process grew at its largest (Linux)."""
    work = {"forward": forward, "trace": traced, "collect": collected}
    ready = set_up(args)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew from here
    before = memory("VmRSS")
    work[args.job](*ready)
    print(json.dumps({"peak": memory("VmHWM") - before}))


def memory(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--text", type=Path, default=None)
    parser.add_argument("--tokens", type=int, default=32_000)
    parser.add_argument("--context", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--job", choices=JOBS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.job:
        run_job(args)
        return
    model, batches = set_up(args)
    jobs = {
        name: lambda f=function: f(model, batches)
        for name, function in (("forward", forward), ("trace", traced), ("collect", collected))
    }
    times = time_in_turns(jobs, repeats=args.repeats, warm_up=False)
    peaks = {job: peak_of(job, args) for job in JOBS}
    report(args, times, peaks)


def report(args, times, peaks):
    print(machine())
    print(f"{Path(args.model).name}, {args.tokens} tokens, batches of {args.batch}\n")
    print("| job | wall s | processor s | memory beyond the loaded model, MB |")
    print("| --- | --- | --- | --- |")
    extra = {job: peaks[job] / 1e6 for job in JOBS}
    for job, spent in times.items():
        print(f"| {job} | {spent.wall:.2f} | {spent.cpu:.2f} | {extra[job]:.0f} |")
    base, ours, theirs = (times[job] for job in ("forward", "trace", "collect"))
    print(f"\ntrace / forward: {ours.wall / base.wall:.2f} (processor {ours.cpu / base.cpu:.2f})")
    print(f"collect / trace, time: {theirs.wall / ours.wall:.2f} ({theirs.cpu / ours.cpu:.2f})")
    print(
        f"collect / forward: {theirs.wall / base.wall:.2f} ({theirs.cpu / base.cpu:.2f}), the most "
        "that measuring for nothing could gain: both ways run the model"
    )
    alone, other = (x.cpu - base.cpu for x in (ours, theirs))
    print(f"measuring alone, processor time: {other / alone:.2f} times as fast")
    print(f"collect / trace, memory: {extra['collect'] / extra['trace']:.2f}")


if __name__ == "__main__":
    main()
