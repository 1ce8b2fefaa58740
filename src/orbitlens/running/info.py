"""What every result says of the model behind it, and of what the work cost."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orbitlens.checkpoint.hub import hub_place
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import printable
from orbitlens.families.architecture import Position

# Names of folders and files that say nothing about the model inside.
UNTELLING = {"", "model", "models", "checkpoint", "hf", "final", "best", "last", "latest",
             "weights", "output", "out", "snapshots", "pytorch_model", "ggml-model"}  # fmt: skip


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

    name: str  # for titles; see `display_name`
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
    bytes_total: int | None = None  # of all weights; None where more than weights was read


def display_name(checkpoint: Checkpoint) -> str:
    """Return what titles call a model, safe to show; see `name_of`."""
    return printable(name_of(checkpoint.path, checkpoint.config))


def name_of(path: str, config: Mapping[str, Any]) -> str:
    """Return a model's name: that of its folder or file, where that says something.

    A folder called `model`, or a commit of the hub's cache, does not: then it is the name that the
    config states, or that of the nearest folder above which has one.

    >>> name_of("runs/gpt2-tuned/model", {}), name_of("a/llama-1b.gguf", {})
    ('gpt2-tuned', 'llama-1b')
    >>> name_of("runs/tuned/model", {"_name_or_path": "openai/gpt2"})
    'gpt2'
    >>> name_of("hf://owner/llama-1b@main", {})
    'llama-1b'
    """
    hub = hub_place(path) if path.startswith("hf://") else None
    if hub is not None:
        return Path(hub.file).stem if hub.file else hub.repo.rpartition("/")[2]
    place = Path(path).absolute()
    own = place.stem if place.suffix == ".gguf" else place.name
    if _says_something(own):
        return own
    stated = str(config.get("_name_or_path") or "").rstrip("/").rpartition("/")[2]
    if re.fullmatch(r"[\w.+-]+", stated) and _says_something(stated):
        return stated
    above = [parent.name for parent in place.parents]
    return next((_hub_name(name) for name in above if _says_something(name)), own or "model")


def _says_something(name: str) -> bool:
    return name.lower() not in UNTELLING and re.fullmatch("[0-9a-f]{40}", name) is None


def _hub_name(folder: str) -> str:
    """Return the name behind a folder of the hub's cache, such as models--openai--gpt2."""
    return folder.rpartition("--")[2] if folder.startswith("models--") else folder


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
        name=display_name(checkpoint),
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


def reading_cost(checkpoint: Checkpoint, *, started: float, n_bytes: int) -> Cost:
    """Return what reading weights took: `n_bytes` of the files, or all that came from afar."""
    remote = checkpoint.remote
    return Cost(
        seconds=time.perf_counter() - started,
        bytes_read=n_bytes if remote is None else remote.n_fetched,
        peak_rss_bytes=peak_rss_bytes(),
        bytes_total=checkpoint.n_bytes,
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
