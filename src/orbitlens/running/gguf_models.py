"""Which GGUF files transformers can turn into a running model (its argument `gguf_file=`).

Enters: nothing, or a checkpoint. Leaves: names of GGUF architectures. What it cannot build can
still be scanned: reading weights needs no running model.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.errors import MissingPackageError
from orbitlens.families.registry import GGUF_ARCHITECTURES

NOT_MODELS = {"general", "tokenizer"}  # sections of transformers' table that are no architectures


def runnable_gguf() -> frozenset[str]:
    """Return the GGUF architectures that both orbitlens and transformers know.

    Raises:
        MissingPackageError: transformers is not installed.
    """
    try:
        from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES
    except ImportError as error:
        raise MissingPackageError(
            "running a model needs transformers: pip install 'orbitlens[measure]'"
        ) from error
    known = set(GGUF_SUPPORTED_ARCHITECTURES) - NOT_MODELS
    if "t5" in known:
        known.add("t5encoder")  # read by the same code
    return frozenset(known & set(GGUF_ARCHITECTURES))


def why_not_runnable(checkpoint: Checkpoint) -> str | None:
    """Say why transformers cannot build the model of a GGUF checkpoint; None where it can."""
    architecture = _metadata(checkpoint).get("general.architecture")
    if architecture is None or architecture in runnable_gguf():
        return None
    return (
        f"transformers does not build models of GGUF architecture {architecture!r}, so this file "
        f"can be scanned and not run. It builds: {', '.join(sorted(runnable_gguf()))}."
    )


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    """Say whether a GGUF file holds a tokenizer; of any other checkpoint, only its folder knows."""
    metadata = _metadata(checkpoint)
    return not metadata or "tokenizer.ggml.model" in metadata


def _metadata(checkpoint: Checkpoint) -> Mapping[str, Any]:
    metadata: Mapping[str, Any] = getattr(checkpoint.source, "metadata", {})
    return metadata
