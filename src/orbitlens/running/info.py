"""What every result says of the model behind it, and of what the work cost."""

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.families.architecture import Position

UNTELLING = {"model", "models", "checkpoint", "hf", "weights", "output"}  # names of folders


@dataclass(frozen=True, kw_only=True)
class StackInfo:
    """One tower of layers."""

    name: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    position: Position
    causal: bool


@dataclass(frozen=True, kw_only=True)
class ModelInfo:
    """What was scanned; sizes are the first stack's, `n_layers` counts all stacks."""

    path: str
    family: str
    n_layers: int
    n_heads: int
    n_kv_heads: int
    d_model: int
    d_head: int
    position: Position
    causal: bool
    parameters: int
    sha256: Mapping[str, str]  # of each file's header
    stacks: tuple[StackInfo, ...]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What the scan took."""

    seconds: float
    bytes_read: int
    peak_rss_bytes: int | None  # of the whole process; None where the system does not say


def model_info(checkpoint: Checkpoint) -> ModelInfo:
    """Return what a checkpoint holds, as results state it."""
    stacks = tuple(
        StackInfo(
            name=stack.name,
            n_layers=stack.n_layers,
            n_heads=stack.layers[0].n_heads,
            n_kv_heads=stack.layers[0].n_kv_heads,
            d_model=stack.d_model,
            d_head=stack.d_head,
            position=stack.position,
            causal=stack.causal,
        )
        for stack in checkpoint.architecture.stacks
    )
    first = stacks[0]
    return ModelInfo(
        path=checkpoint.path,
        family=checkpoint.architecture.family,
        n_layers=sum(stack.n_layers for stack in stacks),
        n_heads=first.n_heads,
        n_kv_heads=first.n_kv_heads,
        d_model=first.d_model,
        d_head=first.d_head,
        position=first.position,
        causal=first.causal,
        parameters=checkpoint.n_parameters,
        sha256=dict(checkpoint.source.header_sha256),
        stacks=stacks,
    )


def peak_rss_bytes() -> int | None:
    """Return the largest memory this process has had in use, or None where that is not known."""
    status = Path("/proc/self/status")
    if status.exists():
        # Linux: `ru_maxrss` would count the parent's memory as well, from before this one's start.
        match = re.search(r"VmHWM:\s+(\d+) kB", status.read_text())
        if match is not None:
            return int(match[1]) * 1024
    try:
        import resource
    except ImportError:  # Windows has no such module
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def display_name(checkpoint: Checkpoint) -> str:
    """Return what titles call a model: its config's name, else its folder's or its file's.

    A folder called "model" says nothing, so its parent's name is taken.
    """
    named = str(checkpoint.config.get("_name_or_path") or "").rstrip("/")
    path = Path(checkpoint.path)
    if path.name in UNTELLING and named:
        return Path(named).name
    return path.parent.name if path.name in UNTELLING and path.parent.name else path.name
