"""The Orbit classes, made known to the `Auto*` classes of transformers as architecture "orbit"."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
)

from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.images import OrbitForImageClassification
from orbitlens.orbit.language import OrbitForCausalLM
from orbitlens.orbit.stack import OrbitModel

AutoConfig.register("orbit", OrbitConfig, exist_ok=True)
AutoModel.register(OrbitConfig, OrbitModel, exist_ok=True)
AutoModelForCausalLM.register(OrbitConfig, OrbitForCausalLM, exist_ok=True)
AutoModelForImageClassification.register(OrbitConfig, OrbitForImageClassification, exist_ok=True)

__all__ = ["OrbitConfig", "OrbitForCausalLM", "OrbitForImageClassification", "OrbitModel"]
