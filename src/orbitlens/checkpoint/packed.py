"""Packed weights of safetensors files, shown as the weights they stand for.

Enters: a `SafetensorsSource` and the config's `quantization_config`. Leaves: a source in which the
several tensors of a packed weight are one, `x.weight`, unpacked when it is read. GPTQ, AWQ and
bitsandbytes are read, whose packings are documented; fp8 with its scales is no packing, and
`SafetensorsSource` reads it. Other formats are refused by name once a weight of theirs is needed.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from orbitlens.checkpoint.packed_blocks import bitsandbytes_weights
from orbitlens.checkpoint.packed_integers import awq_weights, gptq_weights
from orbitlens.checkpoint.safetensors_file import FLOATS, SafetensorsSource
from orbitlens.checkpoint.source import TensorInfo
from orbitlens.errors import CheckpointError, printable

FINDERS = {
    "gptq": gptq_weights,
    "awq": awq_weights,
    "bitsandbytes": bitsandbytes_weights,
}
READ = "GPTQ, AWQ (gemm), bitsandbytes (nf4, fp4, int8) and fp8"


class PackedSource:
    """The tensors of safetensors files, packed weights as one each."""

    def __init__(self, source: SafetensorsSource, settings: Mapping[str, Any], path: str) -> None:
        """Find the packed weights; of their data, nothing but a few settings is read.

        Raises:
            CheckpointError: the parts of a weight do not fit each other.
        """
        self.source, self.path, self.method = source, path, method_of(settings)
        finder = FINDERS.get(self.method)
        self._packed = {} if finder is None else dict(finder(source, settings, path))
        parts = {part for packed in self._packed.values() for part in packed.parts}
        self._tensors = {
            name: info for name, info in source.tensors.items() if name not in parts
        } | {name: packed.info for name, packed in self._packed.items()}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description; packed weights have the shape they stand for."""
        return self._tensors

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of each file's header, by file name."""
        return self.source.header_sha256

    @property
    def is_read(self) -> bool:
        """Whether the format the config speaks of is one that is read here."""
        return self.method in FINDERS or "fp8" in self.method

    @property
    def notes(self) -> tuple[str, ...]:
        """What results say of the packing."""
        kinds = sorted({packed.info.dtype for packed in self._packed.values()})
        if not kinds:
            return ()
        return (f"the weights are packed ({', '.join(kinds)}): what is read is the packed model",)

    def expecting(self, names: Sequence[str]) -> AbstractContextManager[object]:
        """Be told which tensors are read within, so that neighbours can be fetched together."""
        stored = [
            part
            for name in names
            for part in (self._packed[name].parts if name in self._packed else (name,))
        ]
        return self.source.expecting(stored)

    def read(self, name: str) -> Tensor:
        """Return one tensor; a packed weight unpacked, as float32."""
        if name in self._packed:
            return self._packed[name].read(self.source)
        if self._tensors[name].dtype not in FLOATS:
            raise CheckpointError(
                f"{self.path}: tensor {name!r} is stored as {self._tensors[name].dtype}, not as "
                f"floating point. {refusal(self.method)}"
            )
        return self.source.read(name)


def method_of(settings: Mapping[str, Any]) -> str:
    """Return the name of the format that a `quantization_config` speaks of."""
    named = settings.get("quant_method")
    if isinstance(named, str):
        return named.lower()
    # Before 2023's end, configs of bitsandbytes did not name it.
    is_old = settings.get("load_in_4bit") or settings.get("load_in_8bit")
    return "bitsandbytes" if is_old else "unknown"


def refusal(method: str) -> str:
    """Return what to say of a format that is not read."""
    return (
        f"By its config the model is packed as {printable(method[:40])!r}; read are {READ}. "
        "Use the model's unquantised files, or a GGUF file."
    )
