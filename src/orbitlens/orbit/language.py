"""OrbitForCausalLM: the stack with a map to the vocabulary.

Enters: token ids, and what they are judged on. Leaves: logits and a loss; generation with a cache
works as for any model of transformers.
"""

from typing import Any

from jaxtyping import Int
from torch import Tensor, nn
from torch.nn import functional
from transformers import GenerationMixin
from transformers.modeling_outputs import CausalLMOutputWithPast

from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.stack import OrbitModel, OrbitPreTrainedModel

IGNORED = -100  # a target that is not judged


class OrbitForCausalLM(OrbitPreTrainedModel, GenerationMixin):
    """The stack with a map to the vocabulary."""

    _tied_weights_keys = {"lm_head.weight": "model.embed_tokens.weight"}  # noqa: RUF012

    def __init__(self, config: OrbitConfig) -> None:
        """Build the stack and the map."""
        super().__init__(config)
        self.model = OrbitModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"] | None = None,
        attention_mask: Tensor | None = None,
        labels: Int[Tensor, "batch tokens"] | None = None,
        *,
        targets: Int[Tensor, "batch tokens"] | None = None,
        logits_to_keep: int | Tensor = 0,
        **named: Any,  # noqa: ANN401 - of `OrbitModel.forward`
    ) -> CausalLMOutputWithPast:
        """Predict the next token at every position.

        Args:
            input_ids: tokens.
            attention_mask: of `OrbitModel.forward`.
            labels: the inputs themselves, as transformers has it: position i is judged on label
                i + 1; -100 is not judged.
            targets: what each position is judged on, in its own place; -100 is not judged. Only
                judged positions get logits then, (judged, vocabulary): the way to train.
            logits_to_keep: only the last so many positions, or these.
            named: of `OrbitModel.forward`.
        """
        run = self.model(input_ids=input_ids, attention_mask=attention_mask, **named)
        x = run.last_hidden_state
        if targets is not None:
            return self._judged(run, x, targets)
        if not isinstance(logits_to_keep, int):
            x = x[:, logits_to_keep]
        elif logits_to_keep:
            x = x[:, -logits_to_keep:]
        logits = self.lm_head(x)
        loss = None
        if labels is not None:
            loss = functional.cross_entropy(
                logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED
            )
        return _language_output(run, logits, loss)

    def _judged(self, run: Any, x: Tensor, targets: Tensor) -> CausalLMOutputWithPast:  # noqa: ANN401
        flat, wanted = x.flatten(0, 1), targets.flatten()
        judged = wanted != IGNORED
        if not judged.all():
            flat, wanted = flat[judged], wanted[judged]
        logits = self.lm_head(flat)
        return _language_output(run, logits, functional.cross_entropy(logits, wanted))


def _language_output(run: Any, logits: Any, loss: Any) -> CausalLMOutputWithPast:  # noqa: ANN401
    return CausalLMOutputWithPast(
        loss=loss,
        logits=logits,
        past_key_values=run.past_key_values,
        hidden_states=run.hidden_states,
        attentions=run.attentions,
    )
