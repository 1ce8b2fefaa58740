"""Where a module computes: on one device, on several, or fetched from memory and disk as it goes.

Enters: a module, perhaps dispatched by Accelerate (`device_map`, offloading). Leaves: the device
that its inputs go to. Accelerate's hooks take them on from there.
"""

from collections.abc import Iterator
from typing import Any

import torch


def input_device(module: torch.nn.Module) -> torch.device:
    """Return the device that a module's inputs go to.

    Weights that Accelerate has put aside have none; then its hooks name the device that they are
    fetched to.
    """
    for device in (*_weights(module), *_executing(module)):
        if device.type != "meta":
            return device
    return torch.device("cpu")


def _weights(module: torch.nn.Module) -> Iterator[torch.device]:
    first = next(module.parameters(), None)
    if first is not None:
        yield first.device


def _executing(module: torch.nn.Module) -> Iterator[torch.device]:
    for part in module.modules():
        for hook in _hooks(getattr(part, "_hf_hook", None)):
            device = getattr(hook, "execution_device", None)
            if device is not None:
                yield torch.device(f"cuda:{device}" if isinstance(device, int) else device)


def _hooks(hook: Any) -> list[Any]:  # noqa: ANN401 - hooks of Accelerate
    """Return a hook's parts: Accelerate puts several into one."""
    return list(getattr(hook, "hooks", ())) or ([] if hook is None else [hook])
