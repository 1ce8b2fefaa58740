"""Does an untrained architecture tell whether it will train? The runs behind docs/forecast.md.

    python benchmarks/trainable.py --text FILE [--out docs/forecast-trainable.json]

360 settings of the lab (depth, width, first weights, norms, narrower maps into the stream, QK-norm,
encoding, activation) are trained on characters for a short budget, all by one rule: AdamW, a rate
of 0.008/√layers with a warm-up over a fifth of the steps. A run *fails* when its loss on held-out
text is not at least `MARGIN` below that of a unigram model. 160 settings are drawn evenly, 40 from
where more fail (`HARDER`: added when a quarter of the first 37 had failed, and a third was wanted),
100 from where about half failed among the first 145 (`FRONTIER`: added when no run beyond the first
145 had been looked at; 31 of these had failed), and 60 more such to learn from. Readings and
thresholds are chosen where `is_learnt`, and judged on all others. Rows are written as they come,
and a setting that is in the file is left alone.
"""

import argparse
import json
import math
import random
import time
from pathlib import Path

import torch
from _watch_runs import rounded, unigram_nats

from orbitlens.errors import TrainingError
from orbitlens.lab.fitting import fit
from orbitlens.lab.recipe import build_model, learning_rate, make_optimizer, training_batch
from orbitlens.lab.run import RunConfig, task_of

CHOICES = {  # a value that stands twice is drawn twice as often
    "layers": (2, 3, 4, 6, 8, 12, 16, 24, 32, 48),
    "width": (32, 64),
    "norm": ("pre", "peri", "post", "post", "none", "none"),
    "init": (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3),
    "narrower": (False, False, True),  # maps that write to the stream, by 1/√(2 layers)
    "qk_norm": (False, False, True),
    "position": ("none", "learned", "rotary", "alibi"),
    "activation": ("gelu", "swiglu"),
}
HARDER = {
    "layers": (8, 12, 16, 24),
    "norm": ("post", "none"),
    "init": (0.1, 0.2, 0.3),
}
N_EVEN, N_HARDER = 160, 40
DEEP = (4, 6, 8, 12, 16, 24, 32, 48)
FRONTIER = (  # choices, and how many settings
    ({"layers": DEEP, "norm": ("post",), "init": (0.1, 0.15, 0.2, 0.2, 0.3)}, 44),
    ({"norm": ("none",), "init": (0.005, 0.01, 0.01, 0.02, 0.15, 0.2, 0.3)}, 44),
    ({"norm": ("pre", "peri")}, 12),
)
N_MORE = 30  # settings a kind, of the first two of these, to learn from
N_FIRST, N_JUDGED = 145, 155  # in order: learnt from, judged, and the rest again learnt from
STEPS, BATCH, CONTEXT, HEADS = 100, 8, 32, 4
MARGIN = 0.1  # nats below a unigram model that a run must reach
N_TEST = 256  # held-out contexts


def settings():
    """Return the settings in an order drawn once: even and harder ones, then the frontier's."""
    chance, found = random.Random("trainable"), []
    for choices, n in ((CHOICES, N_EVEN), (CHOICES | HARDER, N_HARDER)):
        found += drawn_settings(choices, n, chance, found)
    for seed, streams in (
        ("frontier", FRONTIER),
        ("frontier to learn from", [(choices, N_MORE) for choices, _ in FRONTIER[:2]]),
    ):
        chance, frontier = random.Random(seed), []
        for choices, n in streams:
            frontier += drawn_settings(CHOICES | choices, n, chance, found + frontier)
        chance.shuffle(frontier)
        found += frontier
    return found


def is_learnt(number):
    """Say whether a setting is one to learn from."""
    return not N_FIRST <= number < N_FIRST + N_JUDGED


def drawn_settings(choices, n, chance, known):
    """Return settings that are not known yet."""
    found = []
    while len(found) < n:
        drawn = {name: chance.choice(values) for name, values in choices.items()}
        if drawn not in found and drawn not in known:
            found.append(drawn)
    return found


def narrower(setting):
    """Return what maps that write to the stream are multiplied by."""
    return (2 * setting["layers"]) ** -0.5 if setting["narrower"] else 1.0


def run_of(setting, text):
    return RunConfig(
        task="text",
        options={"context": CONTEXT} | ({"file": text} if text else {}),
        heads=HEADS,
        steps=STEPS,
        batch=BATCH,
        lr=0.008 / math.sqrt(setting["layers"]),
        warmup=STEPS // 5,
        norm_kind="rms",
        **{name: value for name, value in setting.items() if name != "narrower"},
    )


def started(config, setting):
    """Return the model of a setting as it starts."""
    model = build_model(config, task_of(config)).train()
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight *= narrower(setting)
            block.mlp.down_proj.weight *= narrower(setting)
    return model


def trained(setting, text):
    """Return the course of one run, and what it loses on held-out text beside a unigram model."""
    config, begun = run_of(setting, text), time.process_time()
    task, nats, above = task_of(config), unigram_nats(config), []
    model = started(config, setting)

    def loss_at(step):
        batch = training_batch(config, task, step)
        loss = model(input_ids=batch.inputs, targets=batch.targets).loss
        above.append(loss.item() - nats[batch.targets].mean().item())
        return loss

    try:
        fit(
            loss_at,
            make_optimizer(model, config),
            steps=STEPS,
            schedule=lambda step: learning_rate(config, step),
            clip=config.clip,
            after=lambda taken: not math.isfinite(above[-1]),
        )
        judged = task.batch("test", 0, N_TEST, 0)
        with torch.no_grad():
            loss = model.eval()(input_ids=judged.inputs, targets=judged.targets).loss.item()
    except TrainingError:
        assert not math.isfinite(above[-1])  # the only reason to stop early
        loss = math.inf
    unigram = nats[task.batch("test", 0, N_TEST, 0).targets].mean().item()
    return {
        "setting": setting,
        "above": [rounded(value) for value in above[4::5]],  # a unigram model; every fifth step
        "loss": rounded(loss),
        "unigram": rounded(unigram),
        "fails": not loss < unigram - MARGIN,
        "seconds": round(time.process_time() - begun, 2),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--text", help="UTF-8 text; the package's own passage if none is given")
    parser.add_argument("--out", type=Path, default=Path("docs/forecast-trainable.json"))
    parser.add_argument("--first", type=int, default=0, help="setting to begin at, in a new file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    done = json.loads(options.out.read_text()) if options.out.exists() else []
    for setting in settings()[options.first + len(done) :]:
        done.append(trained(setting, options.text))
        rows = ",\n".join(json.dumps(row, separators=(",", ":")) for row in done)
        options.out.write_text(f"[{rows}]\n")
        print(len(done), setting, done[-1]["loss"], done[-1]["fails"], flush=True)


if __name__ == "__main__":
    main()
