"""Run a model over batches and sum up what every layer does.

Enters: a model and batches. Leaves: sums of every layer, for fitting and for judging apart, and a
few whole contexts. One pass over the batches, by hooks that change nothing.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from orbitlens.errors import InputError
from orbitlens.families.architecture import Stack
from orbitlens.running.capture import LayerStates, capturing, few_logits
from orbitlens.running.devices import input_device
from orbitlens.running.inputs import Batch
from orbitlens.running.model import Model
from orbitlens.tracing.heads import head_contributions
from orbitlens.tracing.tally import LayerTally

Progress = Callable[[int, int | None], None]  # what is done, and of how much where that is known


class Collector:
    """Runs batches and sums up every layer, for fitting and for judging apart."""

    def __init__(self, model: Model, *, n_kept: int) -> None:
        """Read the attention weights of every layer."""
        self.started = time.perf_counter()
        self.model, self.checkpoint = model, model.checkpoint
        self.difference: float | None = None  # how far hooks moved the first output: must be 0
        self.tallies: dict[str, dict[tuple[str, int], LayerTally]] = {}
        layers = {(layer.stack.name, layer.index): layer for layer in model.layers()}
        for half in ("fit", "judge"):
            self.tallies[half] = {
                place: LayerTally(layer=layer, n_kept=n_kept) for place, layer in layers.items()
            }
        self.head_error = 0.0
        self.n_tokens = self.n_contexts = self.context = 0
        self.first_batch: Batch = {}
        self._half: str | None = None  # None: split every batch
        self._real: dict[str, Tensor | None] = {}

    @property
    def held_out(self) -> bool:
        """Whether there are contexts for fitting and others for judging."""
        return all(
            next(iter(tallies.values())).before.n_tokens > 0 for tallies in self.tallies.values()
        )

    def halves(self) -> tuple[dict[tuple[str, int], LayerTally], dict[tuple[str, int], LayerTally]]:
        """Return the sums to fit on and to judge by; the same where there was one context only."""
        fit, judge = self.tallies["fit"], self.tallies["judge"]
        if self.held_out:
            return fit, judge
        only = judge if next(iter(judge.values())).before.n_tokens else fit
        return only, only

    def covariances(self) -> dict[str, Tensor]:
        """Return the covariance of what every layer's heads see, named for `scan --covariance`."""
        fit, judge = self.halves()
        covariances = {}
        for (stack, layer), tally in judge.items():
            sums = tally.what_heads_see.covariance
            if fit is not judge:
                sums = fit[stack, layer].what_heads_see.covariance.merged(sums)
            covariances[f"{stack}.{layer}"] = sums.value.contiguous()
        return covariances

    def run(
        self,
        fit: Iterable[Batch] | None,
        batches: Iterable[Batch],
        progress: Progress | None = None,
    ) -> None:
        """Run all batches, those to fit on first."""
        parts: list[tuple[str | None, Iterable[Batch]]] = [(None, batches)]
        if fit is not None:
            parts = [("fit", fit), ("judge", batches)]
        done = 0
        for half, part in parts:
            self._half = half
            before = done
            for batch in part:
                self._run_batch(batch)
                done += 1
                if progress is not None:
                    progress(done, None)
            if done == before:
                raise InputError(
                    "the text is too short: not one context of it could be run. Give a longer "
                    "text, or a shorter context."
                )

    def _run_batch(self, batch: Batch) -> None:
        device = input_device(self.model.module)
        full = with_decoder_inputs(self.model.module, on_device(batch, device))
        self._real = {"encoder": full.get("attention_mask"), "decoder": None}
        if len(self.checkpoint.architecture.stacks) == 1:
            self._real["decoder"] = full.get("attention_mask")
        with self.model.evaluating() as model, out_of_memory_explained():
            is_first = self.difference is None
            plain = first_output(model(**full)) if is_first else None
            asked = {} if is_first else few_logits(model)
            with capturing(model, self.checkpoint, self._sink):
                hooked = first_output(model(**full, **asked))
        self.n_contexts += next(iter(batch.values())).shape[0]
        if plain is not None:
            self.first_batch = {name: value[:1] for name, value in full.items()}
            self.difference = (hooked - plain).abs().max().item()

    def _sink(self, stack: Stack, layer: int, states: LayerStates) -> None:
        place = (stack.name, layer)
        real = self._real.get(stack.name)
        kept = None if real is None else real.bool()
        if layer == 0 and stack is self.checkpoint.architecture.stacks[0]:
            n = states.before.shape[0] * states.before.shape[1]
            self.n_tokens += n if kept is None else int(kept.sum())
            self.context = max(self.context, states.before.shape[1])
        if self.head_error == 0.0 or self.tallies["judge"][place].contexts == 0:
            self._check_heads(place, states)
        n_contexts = states.before.shape[0]
        half = self._half
        if half is None and n_contexts < 2:  # batches of one context take turns
            half = "fit" if self.n_contexts % 2 else "judge"
        if half is not None:
            self.tallies[half][place].add(states, kept)
            return
        middle = n_contexts // 2
        for name, part in (("fit", slice(None, middle)), ("judge", slice(middle, None))):
            self.tallies[name][place].add(_part(states, part), None if kept is None else kept[part])

    def _check_heads(self, place: tuple[str, int], states: LayerStates) -> None:
        layer = self.tallies["fit"][place].layer
        parts = head_contributions(layer, states.mixed[:1].float())
        error = (parts.sum(dim=0) + layer.b_o.float() - states.projected[:1]).abs().max()
        size = states.projected[:1].abs().max().clamp(min=1e-30)
        self.head_error = max(self.head_error, (error / size).item())


def _part(states: LayerStates, part: slice) -> LayerStates:
    cut = {name: None if x is None else x[part] for name, x in vars(states).items()}
    return LayerStates(**cut)  # type: ignore[arg-type]


def with_decoder_inputs(model: Any, batch: Batch) -> Batch:  # noqa: ANN401
    """Give an encoder-decoder the text as its target too, shifted by one (teacher forcing)."""
    needs = getattr(model.config, "is_encoder_decoder", False)
    if not needs or "decoder_input_ids" in batch or "input_ids" not in batch:
        return batch
    ids = batch["input_ids"]
    start = model.config.decoder_start_token_id or 0
    first = torch.full_like(ids[:, :1], start)
    return {**batch, "decoder_input_ids": torch.cat([first, ids[:, :-1]], dim=1)}


def on_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch where the model is."""
    return {name: value.to(device) for name, value in batch.items()}


def first_output(output: Any) -> Tensor:  # noqa: ANN401 - a ModelOutput of transformers
    """Return the logits of a model's output, or the last hidden state of one without a head."""
    for value in output.values():
        if isinstance(value, Tensor):
            return value
    raise InputError("the model returned no tensor; expected logits or hidden states.")


class out_of_memory_explained:
    """Turn running out of memory into advice."""

    def __enter__(self) -> None:
        """Do nothing."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say how to need less."""
        text = str(error).lower()
        full = isinstance(error, (MemoryError, torch.OutOfMemoryError)) or (
            isinstance(error, RuntimeError) and ("out of memory" in text or "t allocate" in text)
        )
        if full:
            raise InputError(
                "the machine ran out of memory. Use a smaller batch (1 is the least), a shorter "
                "context, or a smaller model."
            ) from error
