"""Look for papers' mechanisms in a model: induction, saturation, margin, head by head.

Enters: a checkpoint and its running model, the same for an untrained twin, and text. Leaves:
`Mechanisms`. Scores are recomputed from the states that enter each layer and its weights, in
float64, context by context: what is kept is sums. Definitions are in `induction.py` and
`margins.py`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.heads.attention import attention_output, context_scores
from orbitlens.heads.layers import AttentionLayer
from orbitlens.running.capture import LayerStates, capturing
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.tracing.collector import (
    Progress,
    on_device,
    out_of_memory_explained,
    with_decoder_inputs,
)
from orbitlens.tracing.induction import (
    Sequences,
    behind_earlier,
    draw_sequences,
    even_share,
    half_length,
    half_losses,
    material,
    met_in_text,
    obstacle,
    previous_token,
)
from orbitlens.tracing.margins import FEWEST_SEEN, SelectionSums, seen
from orbitlens.tracing.mechanism_result import (
    HeadMechanisms,
    HeadScores,
    Mechanisms,
    Repetition,
    RepetitionLosses,
    findings,
)

LARGEST_ERROR = 0.05  # of recomputed attention; bfloat16 alone makes a hundredth
Place = tuple[str, int]  # stack, layer


@dataclass(frozen=True, kw_only=True)
class MechanismOptions:
    """How much is run."""

    n_draws: int = 16  # of random tokens, each run repeated and reordered
    half: int = 32  # tokens of a half; fewer where the model has no room
    batch: int = 8
    seed: int = 0


def mechanism_scores(
    model: Model,
    twin: Model,
    batches: Callable[[], Iterable[Batch]],
    *,
    options: MechanismOptions | None = None,
    progress: Progress | None = None,
) -> Mechanisms:
    """Return every head's scores beside those of an untrained twin, on the same inputs.

    Args:
        model: the model; its tokenizer says which tokens are special.
        twin: the control: a model of the same config with fresh weights (`Model.twin`).
        batches: makes the batches of text, as often as it is called.
        options: how much is run.
        progress: called with what is done and what there is to do.
    """
    chosen = options or MechanismOptions()
    own, other = _Reading(model), _Reading(twin)
    for done, reading in enumerate((own, other)):
        reading.read_text(batches())
        _report(progress, done + 1)
    stacks = model.architecture.stacks
    given = met_in_text(material(model.module, model.tokenizer), own.met, chosen.half)
    why = obstacle(model.module, stacks, given, chosen.half)
    if why is not None:
        return _assembled(own, other, None, {"induction": why, "previous": why})
    half = half_length(stacks, given, chosen.half)
    rng = torch.Generator().manual_seed(chosen.seed)
    sequences = draw_sequences(given, half=half, n_draws=chosen.n_draws, generator=rng)
    for done, reading in enumerate((own, other)):
        reading.read_sequences(sequences, chosen.batch)
        _report(progress, done + 3)
    repetition = Repetition(
        n_draws=chosen.n_draws,
        half=half,
        prefix=len(given.prefix),
        n_ids=len(given.ids),
        from_text=given.from_text,
        chance=own.chance,
        losses=own.losses,
        twin_losses=other.losses,
    )
    return _assembled(own, other, repetition, {})


def _report(progress: Progress | None, done: int) -> None:
    if progress is not None:
        progress(done, 4)


def _assembled(
    own: "_Reading", twin: "_Reading", repetition: Repetition | None, reasons: dict[str, str]
) -> Mechanisms:
    heads = tuple(
        HeadMechanisms(
            stack=place[0],
            layer=place[1],
            head=h,
            **vars(scores),
            twin=twin.scores(place)[h],
        )
        for place in own.sums
        for h, scores in enumerate(own.scores(place))
    )
    without = [head.name for head in heads if head.saturation is None]
    if without:
        reason = (
            f"in {len(without)} of {len(heads)} heads no token sees {FEWEST_SEEN} others whose "
            "scores differ"
        )
        reasons |= {"saturation": reason, "margin": reason}
    if own.error > LARGEST_ERROR:
        reasons["attention"] = (
            f"attention recomputed from the weights is {own.error:.0%} off what the model "
            "computed, so these are not quite its scores"
        )
    return Mechanisms(
        heads=heads,
        findings=findings(heads),
        repetition=repetition,
        reasons=reasons,
        n_contexts=own.n_contexts,
        max_attention_error=own.error,
    )


class _Reading:
    """Runs one model on text and on random tokens, and sums up what its heads do."""

    def __init__(self, model: Model) -> None:
        checkpoint = model.checkpoint
        if any(stack.fading is not None for stack in checkpoint.architecture.stacks):
            raise InputError(
                f"{checkpoint.path}: attention has no softmax, so its heads select no tokens to "
                "speak of. Scan or trace the model instead."
            )
        self.model = model
        self.layers: dict[Place, AttentionLayer] = {
            (layer.stack.name, layer.index): layer for layer in model.layers()
        }
        self.sums = {
            place: SelectionSums.empty(layer.n_heads) for place, layer in self.layers.items()
        }
        self.places: dict[str, dict[Place, list[Tensor]]] = {
            kind: {place: [] for place in self.layers}
            for kind in ("repeated", "reordered", "previous")
        }
        self.n_contexts = 0
        self.met: set[int] = set()  # tokens of the text
        self.chance = 0.0
        self.losses: RepetitionLosses | None = None
        self.error = 0.0
        self._checked: set[Place] = set()

    # --- text ---

    def read_text(self, batches: Iterable[Batch]) -> None:
        """Add every row of every context to the sums."""
        for batch in batches:
            full = with_decoder_inputs(self.model.module, batch)
            mask = full.get("attention_mask")

            def add(place: Place, scores: Tensor) -> None:
                self.sums[place].add(scores)

            self._run(full, add, mask)
            self.n_contexts += next(iter(batch.values())).shape[0]
            if "input_ids" in batch:
                self.met |= set(batch["input_ids"].unique().tolist())
        if self.n_contexts == 0:
            raise InputError(
                "the text is too short: not one context of it could be run. Give a longer text, or "
                "a shorter context."
            )

    # --- random tokens ---

    def read_sequences(self, sequences: Sequences, size: int) -> None:
        """Note attention to the places that repetition picks out, and the losses."""
        where = {"prefix": sequences.prefix, "half": sequences.half}
        losses: dict[str, list[tuple[float, float]]] = {"repeated": [], "reordered": []}
        for kind, of_kind in losses.items():

            def note(place: Place, scores: Tensor, kind: str = kind) -> None:
                p, n = scores.softmax(dim=-1), seen(scores)
                self.places[kind][place].append(behind_earlier(p, **where))
                if kind == "reordered":
                    self.places["previous"][place].append(previous_token(p, n))
                    self.chance = even_share(n, **where).mean().item()

            for batch in sequences.batches(kind, size):
                logits = self._run(batch, note, None)
                if logits is not None:
                    of_kind.append(half_losses(logits, batch["input_ids"], sequences.half))
        if losses["repeated"]:
            self.losses = RepetitionLosses(
                first=_mean([first for first, _ in losses["repeated"]]),
                repeated=_mean([second for _, second in losses["repeated"]]),
                reordered=_mean([second for _, second in losses["reordered"]]),
            )

    def _run(
        self, batch: Batch, use: Callable[[Place, Tensor], None], mask: Tensor | None
    ) -> Tensor | None:
        """Run one batch, hand on the scores of every context, and return the logits if any."""

        def sink(stack: Stack, index: int, states: LayerStates) -> None:
            place = (stack.name, index)
            layer = self.layers[place]
            real = None if stack.name == "decoder" and self._has_encoder else mask
            kept = [x if real is None else x[real[k].bool()] for k, x in enumerate(states.before)]
            tokens = [layer.normalise(x.double()) for x in kept]
            for scores in context_scores(layer, tokens):
                use(place, scores)
            if place not in self._checked and real is None:
                self._check(place, tokens[0], states.projected[0])

        with self.model.evaluating() as module, out_of_memory_explained():
            device = input_device(module)
            with capturing(module, self.model.checkpoint, sink):
                output = module(**on_device(batch, device))
        logits = getattr(output, "logits", None)
        is_next_token = logits is not None and logits.shape[:2] == batch_shape(batch)
        return logits if is_next_token else None

    @property
    def _has_encoder(self) -> bool:
        return len(self.model.architecture.stacks) > 1

    def _check(self, place: Place, tokens: Tensor, projected: Tensor) -> None:
        """Hold attention recomputed from the weights against what the model computed."""
        again = attention_output(self.layers[place], tokens)
        size = projected.abs().max().double().clamp(min=1e-30)
        self.error = max(self.error, ((again - projected).abs().max() / size).item())
        self._checked.add(place)

    # --- what is read off ---

    def scores(self, place: Place) -> list[HeadScores]:
        """Return the scores of every head of one layer."""
        attention = {kind: _stacked(self.places[kind][place]) for kind in self.places}
        scores = []
        for h in range(self.layers[place].n_heads):
            selection = self.sums[place].means(h)
            saturation, margin, share = selection if selection else (None, None, None)
            scores.append(
                HeadScores(
                    **_induction_of(attention, h),
                    saturation=saturation,
                    margin=margin,
                    margin_share=share,
                )
            )
        return scores


def batch_shape(batch: Batch) -> tuple[int, ...]:
    """Return how many contexts and tokens a batch of ids has; (0,) where it holds none."""
    ids = batch.get("input_ids")
    return (0,) if ids is None else tuple(ids.shape)


def _stacked(draws: list[Tensor]) -> Float[Tensor, "draw head"] | None:
    return torch.stack(draws).double() if draws else None


def _induction_of(attention: dict[str, Tensor | None], h: int) -> dict[str, float | None]:
    repeated, reordered = attention["repeated"], attention["reordered"]
    previous = attention["previous"]
    if repeated is None or reordered is None or previous is None:
        names = ("induction", "induction_error", "repeated", "reordered", "previous")
        return dict.fromkeys(names)
    gain = repeated[:, h] - reordered[:, h]
    error = gain.std().item() / len(gain) ** 0.5 if len(gain) > 1 else None
    return {
        "induction": gain.mean().item(),
        "induction_error": error,
        "repeated": repeated[:, h].mean().item(),
        "reordered": reordered[:, h].mean().item(),
        "previous": previous[:, h].mean().item(),
    }


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
