"""What training costs: against a hand-written loop, against Trainer, refinements, sweeps, compile.

    python benchmarks/train.py [--only loop,refinements,sweep,compile] [--steps N] [--json FILE]

    loop          ms a step of `train`, of a minimal PyTorch loop with the same model, batches,
                  clipping and schedule, and of transformers' Trainer; goals: <= 1.0 and <= 0.7
    refinements   what each adds to a step, in per cent; goal for guard: <= 15
    sweep         runs a minute of a sweep on all cores against one run after another; goal on two
                  cores: >= 1.6
    compile       the same step under torch.compile, and how long compiling takes

One thread a process. Everything compared takes turns, and the least of several repeats counts; of
the loops, steps alone (no building, judging or saving). The exit code is 1 if a goal is missed.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from _timing import machine, time_in_turns

from orbitlens.lab.recipe import build_model, learning_rate, make_optimizer, training_batch
from orbitlens.lab.run import run_config, task_of
from orbitlens.lab.sweep import run_sweep
from orbitlens.lab.sweep_file import read_sweep
from orbitlens.lab.training import train
from orbitlens.orbit.checks import NEEDS_POSITION
from orbitlens.orbit.switches import SWITCHES
from orbitlens.running.loading import quiet_transformers
from orbitlens.running.workers import local_workers

SECTIONS = ("loop", "refinements", "sweep", "compile")


def by_hand(config, task):
    """The loop one would write: AdamW as torch has it, warm-up and cosine, clipping."""
    model = build_model(config, task).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=config.lr, betas=(0.9, 0.98))
    began = time.perf_counter()
    for step in range(config.steps):
        batch = training_batch(config, task, step)
        logits = model(input_ids=batch.inputs).logits
        loss = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100
        )
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), config.clip)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(config, step)
        optimizer.step()
    return time.perf_counter() - began


class Examples(torch.utils.data.Dataset):
    """The same examples, one by one, as Trainer wants them."""

    def __init__(self, config, task):
        self.rows = []
        for step in range(config.steps):
            batch = training_batch(config, task, step)
            self.rows += [
                {"input_ids": i, "targets": t}
                for i, t in zip(batch.inputs, batch.targets, strict=True)
            ]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, number):
        return self.rows[number]


def by_trainer(config, task, examples, folder):
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=config.batch,
        max_steps=config.steps,
        learning_rate=config.lr,
        warmup_steps=config.warmup,
        lr_scheduler_type="cosine",
        max_grad_norm=config.clip,
        logging_steps=50,
        save_strategy="no",
        report_to=[],
        label_names=["targets"],
        disable_tqdm=True,
        use_cpu=True,
    )
    model = build_model(config, task)
    done = Trainer(model=model, args=arguments, train_dataset=examples).train()
    return done.metrics["train_runtime"]


def loop(steps):
    rows = []
    for settings in ({}, {"batch": 32}, {"position": "rotary"}):
        config = run_config({"task": "addition", "steps": steps, "judged": 1, **settings})
        task = task_of(config)
        examples = Examples(config, task)

        def ours(config=config):
            with tempfile.TemporaryDirectory() as folder:
                return train(config, Path(folder)).seconds

        def trainer(config=config, task=task, examples=examples):
            with tempfile.TemporaryDirectory() as folder:
                return by_trainer(config, task, examples, folder)

        jobs = {
            "train": ours,
            "by hand": lambda c=config, t=task: by_hand(c, t),
            "Trainer": trainer,
        }
        repeats = [{name: job() / steps for name, job in jobs.items()} for _ in range(4)]
        times = {name: min(repeat[name] for repeat in repeats) for name in jobs}
        rows.append(
            {
                "settings": settings,
                **{f"{name} ms": 1000 * seconds for name, seconds in times.items()},
                "ratio to by hand": times["train"] / times["by hand"],
                "ratio to Trainer": times["train"] / times["Trainer"],
            }
        )
    met = all(r["ratio to by hand"] <= 1.0 and r["ratio to Trainer"] <= 0.7 for r in rows)
    return {"rows": rows, "met": met}


def step_job(config, task):
    model = build_model(config, task).train()
    optimizer = make_optimizer(model, config)
    parameters = list(model.parameters())

    def steps():
        for step in range(20):
            batch = training_batch(config, task, step)
            loss = model(input_ids=batch.inputs, targets=batch.targets).loss
            total = loss + model.extra_loss() if config.refinement == "penalty" else loss
            total.backward()
            torch.nn.utils.clip_grad_norm_(parameters, config.clip, foreach=True)
            optimizer.step()
            optimizer.zero_grad()
            if config.refinement != "none":
                model.after_step()

    return steps


def refinements(steps):
    jobs, pairs = {}, {}
    for name in SWITCHES["refinement"].values:
        for position in NEEDS_POSITION.get(name, ("learned", "rotary")):
            if position not in {"learned", "rotary"}:
                continue
            config = run_config({"refinement": name, "position": position})
            jobs[f"{position} {name}"] = step_job(config, task_of(config))
            pairs[f"{position} {name}"] = f"{position} none"
    times = time_in_turns(jobs, repeats=5)
    rows = [
        {
            "refinement": name,
            "ms": 50 * times[name].wall,
            "overhead %": 100 * (times[name].wall / times[plain].wall - 1),
        }
        for name, plain in pairs.items()
    ]
    guard = [r["overhead %"] for r in rows if r["refinement"].split()[1] == "guard"]
    return {"rows": rows, "met": max(guard) <= 15}


SWEEP = """
seeds = 8
[base]
task = "addition"
steps = {steps}
judged = 128
"""


def sweep(steps):
    cores = os.cpu_count() or 1
    seconds = {}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.toml"
        file.write_text(SWEEP.format(steps=steps))
        plan = read_sweep(file)
        for workers in (1, cores):
            pool = local_workers(workers)
            list(pool.map(abs, range(4 * workers)))  # both sides start with their processes there
            began = time.perf_counter()
            run_sweep(plan, Path(folder) / str(workers), lambda pool=pool: pool)
            seconds[workers] = time.perf_counter() - began
    gain = seconds[1] / seconds[cores]
    row = {"cores": cores, "one by one s": seconds[1], "sweep s": seconds[cores], "gain": gain}
    return {"rows": [row], "met": gain >= 1.6 or cores < 2}


def compiled(steps):
    config = run_config({"steps": steps})
    task = task_of(config)
    began = time.perf_counter()
    try:
        fast = torch.compile(build_model(config, task).train())
        batch = training_batch(config, task, 0)
        fast(input_ids=batch.inputs, targets=batch.targets).loss.backward()
    except (RuntimeError, ImportError) as error:  # no compiler on this machine
        return {"rows": [{"compile": str(error).splitlines()[0]}], "met": True}
    seconds = time.perf_counter() - began
    plain = build_model(config, task).train()

    def run(model):
        for step in range(20):
            batch = training_batch(config, task, step)
            model(input_ids=batch.inputs, targets=batch.targets).loss.backward()

    times = time_in_turns({"plain": lambda: run(plain), "compiled": lambda: run(fast)}, repeats=5)
    row = {"compiling s": seconds}
    row |= {f"{name} ms": 50 * time.wall for name, time in times.items()}
    saved = (times["plain"].wall - times["compiled"].wall) / 20
    row["steps until it pays"] = seconds / saved if saved > 0 else None
    return {"rows": [row], "met": True}


def show(name, result):
    print(f"\n{name}: goal {'met' if result['met'] else 'MISSED'}\n")
    columns = list(result["rows"][0])
    print("| " + " | ".join(columns) + " |\n|" + " --- |" * len(columns))
    for row in result["rows"]:
        cells = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in row.values()]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default=",".join(SECTIONS))
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    jobs = {"loop": loop, "refinements": refinements, "sweep": sweep, "compile": compiled}
    print(machine())
    results = {}
    with quiet_transformers():
        for name in args.only.split(","):
            results[name] = jobs[name](args.steps)
            show(name, results[name])
    if args.json:
        args.json.write_text(json.dumps({"machine": machine(), **results}, indent=1) + "\n")
    sys.exit(not all(result["met"] for result in results.values()))


if __name__ == "__main__":
    main()
