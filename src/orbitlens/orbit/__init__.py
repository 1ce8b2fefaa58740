"""The lab: small transformers with any mechanism switched on or off, trained side by side.

Importing it makes the `Auto*` classes of transformers know the architecture "orbit".
"""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForImageClassification,
)

from orbitlens.orbit.config import OrbitConfig
from orbitlens.orbit.model import OrbitForCausalLM, OrbitForImageClassification, OrbitModel

AutoConfig.register("orbit", OrbitConfig, exist_ok=True)
AutoModel.register(OrbitConfig, OrbitModel, exist_ok=True)
AutoModelForCausalLM.register(OrbitConfig, OrbitForCausalLM, exist_ok=True)
AutoModelForImageClassification.register(OrbitConfig, OrbitForImageClassification, exist_ok=True)

__all__ = ["OrbitConfig", "OrbitForCausalLM", "OrbitForImageClassification", "OrbitModel"]
