"""One small transformer whose every mechanism is a switch, as transformers has its models.

Taking a class from here makes the `Auto*` classes of transformers know the architecture "orbit".
`switches.py` declares the switches and needs neither torch nor transformers.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitlens.orbit.auto import (
        OrbitConfig,
        OrbitForCausalLM,
        OrbitForImageClassification,
        OrbitModel,
    )

__all__ = ["OrbitConfig", "OrbitForCausalLM", "OrbitForImageClassification", "OrbitModel"]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - one of the classes above
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from orbitlens.orbit import auto

    return getattr(auto, name)
