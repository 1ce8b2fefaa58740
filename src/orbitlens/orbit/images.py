"""OrbitForImageClassification: the stack over patches, with a map from the class token to classes.

Enters: images, and their labels. Leaves: logits and a loss.
"""

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers.modeling_outputs import ImageClassifierOutput

from orbitlens.errors import InputError
from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.stack import OrbitModel, OrbitPreTrainedModel


class OrbitForImageClassification(OrbitPreTrainedModel):
    """The stack over patches, with a map from the class token to the classes."""

    main_input_name = "pixel_values"

    def __init__(self, config: OrbitConfig) -> None:
        """Build the stack and the map."""
        super().__init__(config)
        if config.image_size is None:
            raise InputError("image_size is missing: a model of images needs it, such as 8 or 28.")
        self.model = OrbitModel(config)
        self.classifier = nn.Linear(config.hidden_size, int(config.num_labels or 0))
        self.post_init()

    def forward(
        self,
        pixel_values: Float[Tensor, "batch channel height width"] | None = None,
        labels: Int[Tensor, " batch"] | None = None,
        **named: Any,  # noqa: ANN401 - of `OrbitModel.forward`
    ) -> ImageClassifierOutput:
        """Return the logits of each image, and the loss where labels are given."""
        run = self.model(pixel_values=pixel_values, **named)
        logits = self.classifier(run.last_hidden_state[:, 0])
        loss: Any = None if labels is None else functional.cross_entropy(logits, labels)
        return ImageClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=run.hidden_states,
            attentions=run.attentions,
        )
