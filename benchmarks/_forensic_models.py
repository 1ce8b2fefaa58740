"""Small models of every kind of position encoding, drawn and trained by their number.

Enters: a stream (one of `STREAMS`), a number, texts. Leaves: a folder in Hugging Face layout,
`truth.json` beside the weights: what was drawn, and which coordinates each layer turns. A model is
a function of its stream and number; what is there already is not trained again.
"""

import json
import random
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from orbitlens.files import write_folder
from orbitlens.lab.fitting import fit, rate_at, seeded
from orbitlens.lab.tasks.language import TextTask, text
from orbitlens.orbit import OrbitForCausalLM
from orbitlens.orbit.config import OrbitConfig

KINDS = {  # how often each is drawn
    "orbit-rotary": 5,
    "orbit-partial": 3,
    "orbit-mixed": 4,
    "orbit-none": 2,
    "orbit-alibi": 2,
    "orbit-learned": 2,
    "orbit-t5": 1,
    "llama": 4,
    "qwen3": 3,
    "olmo2": 2,
    "gpt_neox": 2,
    "gptj": 3,
    "smollm3": 2,
    "gpt2": 1,
    "bloom": 1,
}
STREAMS = ("choose", "judge", "final", "fourth", "fifth", "sixth", "seventh")
SINCE_FOURTH = {"orbit-shared": 2}  # one set of weights for all layers, no positions: as ALBERT
SHAPES = ((64, 4), (64, 2), (96, 3), (128, 4), (128, 2))  # width and heads: 8 to 32 planes a head
SINCE_SIXTH = SHAPES + SHAPES[:3] * 2  # small ones more often: more models in the same time
UNROTATED = {
    "orbit-none", "orbit-alibi", "orbit-learned", "orbit-t5", "orbit-shared", "gpt2", "bloom",
}  # fmt: skip
EARLY = (0, 25, 50, 100, 200, 350)  # steps of which the attention weights are kept too
EARLY_FILE = "early.kept"  # safetensors under a name that no loader takes for the model's
WARMUP = 50


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """One model: what it is, and how it is trained."""

    kind: str
    width: int
    heads: int
    kv_heads: int
    layers: int
    base: float
    share: float  # of a head's coordinates, of partial encodings
    turned: tuple[int, ...]  # layers that are rotated, of mixed ones
    norm_kind: str
    bias: bool
    text: int  # which of the texts
    context: int
    batch: int
    steps: int
    lr: float
    weight_decay: float
    init: float
    seed: int


def draw(stream: str, number: int) -> Drawn:
    """Return what a number of a stream stands for."""
    chance = random.Random(f"{stream}/{number}")
    kinds = KINDS | ({} if stream in STREAMS[:3] else SINCE_FOURTH)
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    if stream not in STREAMS[:5]:
        kind = dealt(stream, kinds)[number % sum(kinds.values())]
    shapes = SHAPES if stream in STREAMS[:5] else SINCE_SIXTH
    width, heads = chance.choice(shapes)
    layers = chance.choice((3, 4))
    n_turned = chance.randint(1, layers - 1)
    return Drawn(
        kind=kind,
        width=width,
        heads=heads,
        kv_heads=chance.choice((heads, 1 if heads % 2 else heads // 2)),
        layers=layers,
        base=chance.choice((1e4, 1e4, 500.0, 1e5, 1e6)),
        share=chance.choice((0.5, 0.25)),
        turned=tuple(sorted(chance.sample(range(layers), n_turned))),
        norm_kind=chance.choice(("layer", "rms")),
        bias=chance.random() < 0.3,
        text=chance.randrange(2),
        context=chance.choice((32, 48, 64)),
        batch=6,
        steps=chance.choice((500, 500, 500, 800)),
        lr=chance.choice((1e-3, 2e-3, 3e-3, 5e-3)),
        weight_decay=chance.choice((0.0, 0.01, 0.1, 0.3)),
        init=chance.choice((0.02, 0.05, 0.1)),
        seed=chance.randrange(10**6),
    )


def dealt(stream: str, kinds: dict[str, int]) -> list[str]:
    """Return every kind as often as it is to be drawn, shuffled: few models hold all of them."""
    deck = [kind for kind, times in kinds.items() for _ in range(times)]
    random.Random(stream).shuffle(deck)
    return deck


def build(drawn: Drawn, n_vocabulary: int) -> Any:
    """Return the untrained model."""
    with seeded(drawn.seed):
        if drawn.kind.startswith("orbit-"):
            return OrbitForCausalLM(_orbit(drawn, n_vocabulary)).float()
        config = _config(drawn, n_vocabulary)
        return transformers.AutoModelForCausalLM.from_config(config).float()


def _orbit(drawn: Drawn, n_vocabulary: int) -> OrbitConfig:
    kind = drawn.kind.removeprefix("orbit-")
    rotary = {"rotary_base": drawn.base} if kind in {"rotary", "partial", "mixed"} else {}
    if kind == "partial":
        rotary["rotary_fraction"] = drawn.share
    if kind == "mixed":
        rotary["rotary_layers"] = list(drawn.turned)
    return OrbitConfig(
        vocab_size=n_vocabulary,
        hidden_size=drawn.width,
        num_hidden_layers=drawn.layers,
        num_attention_heads=drawn.heads,
        max_position_embeddings=drawn.context,
        position="rotary" if rotary else "none" if kind == "shared" else kind,
        shared_layers=kind == "shared",
        norm_kind=drawn.norm_kind,
        bias=drawn.bias,
        initializer_range=drawn.init,
        **rotary,
    )


def _config(drawn: Drawn, n_vocabulary: int) -> Any:
    d_head = drawn.width // drawn.heads
    sizes: dict[str, Any] = {
        "vocab_size": n_vocabulary,
        "hidden_size": drawn.width,
        "num_hidden_layers": drawn.layers,
        "num_attention_heads": drawn.heads,
        "num_key_value_heads": drawn.kv_heads,
        "head_dim": d_head,
        "intermediate_size": 3 * drawn.width,
        "max_position_embeddings": drawn.context,
        "rope_parameters": {"rope_type": "default", "rope_theta": drawn.base},
        "initializer_range": drawn.init,
        "pad_token_id": None,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    if drawn.kind == "smollm3":
        rows = [int(layer in drawn.turned) for layer in range(drawn.layers)]
        return transformers.SmolLM3Config(**sizes, no_rope_layers=rows)
    if drawn.kind == "gpt_neox":
        del sizes["num_key_value_heads"], sizes["head_dim"]
        sizes["rope_parameters"]["partial_rotary_factor"] = drawn.share
        return transformers.GPTNeoXConfig(**sizes)
    if drawn.kind == "gptj":
        return _gpt(drawn, transformers.GPTJConfig, n_vocabulary, rotary_dim=_d_rotary(drawn))
    if drawn.kind == "gpt2":
        return _gpt(drawn, transformers.GPT2Config, n_vocabulary)
    if drawn.kind == "bloom":
        return transformers.BloomConfig(
            vocab_size=n_vocabulary,
            hidden_size=drawn.width,
            n_layer=drawn.layers,
            n_head=drawn.heads,
            initializer_range=drawn.init,
            hidden_dropout=0.0,
            attention_dropout=0.0,
        )
    builders = {
        "llama": transformers.LlamaConfig,
        "qwen3": transformers.Qwen3Config,
        "olmo2": transformers.Olmo2Config,
    }
    return builders[drawn.kind](**sizes)


def _gpt(drawn: Drawn, builder: Any, n_vocabulary: int, **more: Any) -> Any:
    return builder(
        vocab_size=n_vocabulary,
        n_embd=drawn.width,
        n_layer=drawn.layers,
        n_head=drawn.heads,
        n_positions=drawn.context,
        initializer_range=drawn.init,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        **more,
    )


def _d_rotary(drawn: Drawn) -> int:
    """Return how many of a head's coordinates are turned in a rotated layer; 0 without rotation."""
    d_head = drawn.width // drawn.heads
    if drawn.kind in UNROTATED:
        return 0
    is_partial = drawn.kind in {"orbit-partial", "gpt_neox"}
    is_partial |= drawn.kind == "gptj" and drawn.seed % 2 == 0
    return int(d_head * drawn.share) if is_partial else d_head


def truth_of(drawn: Drawn) -> list[int]:
    """Return how many coordinates of a head are turned, layer by layer."""
    mixed = drawn.kind in {"orbit-mixed", "smollm3"}
    return [
        0 if mixed and layer not in drawn.turned else _d_rotary(drawn)
        for layer in range(drawn.layers)
    ]


def pairing_of(drawn: Drawn) -> str:
    """Return which coordinates are turned together, where any are."""
    return "neighbours" if drawn.kind == "gptj" else "halves"


def _folder(stream: str, number: int, runs: Path) -> Path:
    return runs / f"{stream}-{number:03d}"


def is_trained(stream: str, number: int, runs: Path) -> bool:
    """Say whether a model is there already."""
    return (_folder(stream, number, runs) / "truth.json").exists()


def train_one(stream: str, number: int, texts: list[Path], runs: Path) -> Path:
    """Train a model, or leave the one that is there, and return its folder."""
    folder = _folder(stream, number, runs)
    if is_trained(stream, number, runs):
        return folder
    drawn = draw(stream, number)
    task = text(file=str(texts[drawn.text]), context=drawn.context)
    model = build(drawn, task.vocab_size).train()
    kept: dict[str, Tensor] = {}
    keep(model, 0, kept)
    losses = _fit(model, drawn, task, kept)
    record = asdict(drawn) | {
        "d_rotary": truth_of(drawn),
        "pairing": pairing_of(drawn),
        "text_name": texts[drawn.text].name,
        "loss": float(losses[-50:].mean()),
        "first_loss": float(losses[0]),
    }

    def write(draft: Path) -> None:
        model.eval().save_pretrained(draft)
        save_file(kept, draft / EARLY_FILE)
        (draft / "truth.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    write_folder(folder, write)
    return folder


def _fit(model: Any, drawn: Drawn, task: TextTask, kept: dict[str, Tensor]) -> Tensor:
    groups = [
        {
            "params": [p for p in model.parameters() if p.ndim > 1],
            "weight_decay": drawn.weight_decay,
        },
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=drawn.lr, betas=(0.9, 0.98), fused=True)

    def loss_at(step: int) -> Tensor:
        batch = task.batch("train", step, drawn.batch, drawn.seed)
        logits = model(input_ids=batch.inputs, use_cache=False).logits
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    def rate(step: int) -> float:
        return rate_at(step + 1, peak=drawn.lr, steps=drawn.steps, warmup=WARMUP)

    def after(done: int) -> None:
        if done in EARLY:
            keep(model, done, kept)

    return fit(loss_at, optimizer, steps=drawn.steps, schedule=rate, clip=1.0, after=after)


def keep(model: Any, step: int, kept: dict[str, Tensor]) -> None:
    """Add the attention weights and norms of a step, in half precision."""
    for name, value in model.state_dict().items():
        if "embed" not in name and "mlp" not in name and "lm_head" not in name:
            kept[f"{step}/{name}"] = value.detach().to(torch.bfloat16).clone()
