"""A live torch module as a `TensorSource`: weights read in place, also while they are trained.

Enters: a transformers model in memory. Leaves: a `Checkpoint` with the names, shapes and config
that `save_pretrained` would write. Nothing is copied: a tensor is read as it is at that moment.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from orbitlens.checkpoint.build import build_architecture
from orbitlens.checkpoint.opened import Checkpoint
from orbitlens.checkpoint.source import TensorInfo
from orbitlens.errors import CheckpointError, InputError

HEADER = "live module"  # stands where a file's name would
SPELLED = {  # as safetensors spells types
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
FLOATS = {torch.float16, torch.bfloat16, torch.float32, torch.float64}


def _as_it_is(name: str, value: Tensor) -> Tensor:
    return value


@dataclass(frozen=True, kw_only=True)
class WeightView:
    """What the tensors of a module stand for, where something was put around its layers."""

    plain_name: Callable[[str], str | None] = str  # without what was put around it; None: left out
    value: Callable[[str, Tensor], Tensor] = _as_it_is  # from a plain name and the tensor stored


class LiveSource:
    """The tensors of a module, under the names that `save_pretrained` would give them."""

    def __init__(
        self, module: nn.Module, view: WeightView | None = None, *, in_place: bool = False
    ) -> None:
        """List the tensors of `module`; none is read.

        With `in_place` they are read where they are, on whatever device, and not on the CPU.
        """
        self._module, self._view = unwrapped(module), view or WeightView()
        self._in_place = in_place
        self._held: dict[str, Tensor] | None = None
        tensors = _untied(self._module, self._view)
        outlines = {name: torch.empty_like(t, device="meta") for name, t in tensors.items()}
        stored = _as_saved(self._module, outlines)
        names = {id(outline): name for name, outline in outlines.items()}
        self._name_of = {file_name: names.get(id(t)) for file_name, t in stored.items()}
        self._tensors = {name: _info(t) for name, t in stored.items()}

    @property
    def tensors(self) -> Mapping[str, TensorInfo]:
        """Every tensor's name and description."""
        return self._tensors

    @property
    def header_sha256(self) -> Mapping[str, str]:
        """SHA-256 of all names, shapes and types; values change while a module is trained."""
        header = [(name, info.shape, info.dtype) for name, info in sorted(self._tensors.items())]
        return {HEADER: hashlib.sha256(json.dumps(header).encode()).hexdigest()}

    def read(self, name: str) -> Tensor:
        """Return one tensor as it is now, on the CPU; where it is there already, without a copy.

        A source that reads in place leaves it on its device.
        """
        value = self._value(name)
        if value.dtype not in FLOATS:
            raise CheckpointError(
                f"tensor {name!r} of the module is {value.dtype}, not floating point. "
                "Load the model without quantisation."
            )
        if value.device.type == "meta":
            raise CheckpointError(
                f"tensor {name!r} of the module has no data (it is offloaded or not loaded yet). "
                "Load the model into memory first."
            )
        return value if self._in_place else value.to("cpu")

    @contextmanager
    def held(self) -> Iterator[None]:
        """List the module's tensors once for all that is read within; their values stay live."""
        self._held = _state(self._module, self._view)
        try:
            yield
        finally:
            self._held = None

    def place(self, name: str) -> Tensor:
        """Return the tensor that the module computes with; writing to it changes the module.

        Raises:
            InputError: files keep it in another form than the module has it.
        """
        own = self._name_of[name]
        if own is None or self._view.value is not _as_it_is:
            raise InputError(f"tensor {name!r} of the module is not kept as files have it.")
        return _state(self._module, self._view)[own]

    def _value(self, name: str) -> Tensor:
        own = self._name_of[name]
        stored = self._held if self._held is not None else _state(self._module, self._view)
        if own is not None:
            return self._view.value(own, _fetched(self._module, stored[own]).detach())
        # Part of a tensor that files keep in pieces (experts of a mixture).
        values = {
            key: self._view.value(key, _fetched(self._module, stored[key]).detach())
            for key in _untied(self._module, self._view)
        }
        return _as_saved(self._module, values)[name]


def checkpoint_of_module(
    module: nn.Module,
    *,
    name: str | None = None,
    view: WeightView | None = None,
    in_place: bool = False,
) -> Checkpoint:
    """Return a live transformers model as a checkpoint.

    Args:
        module: the model; wrappers for parallel training or compilation are looked through.
        name: what results call it; by default the name in its config, or its class's.
        view: what its tensors stand for, where layers were put around its own.
        in_place: read tensors on the module's device, and not on the CPU.

    Raises:
        InputError: the module has no config that says what it is.
        UnknownFamilyError: no family describes it.
    """
    inner = unwrapped(module)
    config = _config_of(inner)
    shown = name or str(getattr(inner.config, "name_or_path", "") or type(inner).__name__)
    source = LiveSource(inner, view, in_place=in_place)
    architecture = build_architecture(config, source, shown)
    return Checkpoint(path=shown, architecture=architecture, source=source, config=config)


def unwrapped(module: nn.Module) -> Any:  # noqa: ANN401 - a model of transformers
    """Return the model inside wrappers for parallel training or compilation."""
    inner = module._modules.get("_orig_mod")  # of torch.compile
    if inner is None and not hasattr(module, "config"):
        inner = module._modules.get("module")  # of DataParallel and its kin
    return module if inner is None else unwrapped(inner)


def _config_of(module: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the config as `save_pretrained` would write it."""
    config = getattr(module, "config", None)
    if config is None or not hasattr(config, "to_json_string"):
        raise InputError(
            f"a {type(module).__name__} has no transformers config, so nothing says where its "
            "attention weights are. Give a transformers model, or a checkpoint's folder."
        )
    written: dict[str, Any] = json.loads(config.to_json_string())
    return written | {"architectures": [type(module).__name__]}


def _state(module: nn.Module, view: WeightView) -> dict[str, Tensor]:
    state = module.state_dict(keep_vars=True)
    named = {view.plain_name(name): value for name, value in state.items()}
    return {
        name: value
        for name, value in named.items()
        if name is not None and isinstance(value, Tensor)
    }


def _fetched(module: nn.Module, tensor: Tensor) -> Tensor:
    """Return a tensor's data, also where Accelerate has put it aside, in memory or on a disk.

    One that is spread over processes is put together, for which all of them must read it.
    """
    gather = getattr(tensor, "full_tensor", None)  # of a DTensor
    if gather is not None:
        whole: Tensor = gather()
        return whole
    if tensor.device.type != "meta":
        return tensor
    for owner in module.modules():
        own = {**owner._parameters, **owner._buffers}
        name = next((name for name, value in own.items() if value is tensor), None)
        if name is not None and hasattr(owner, "_hf_hook"):
            from accelerate.utils import align_module_device

            with align_module_device(owner, torch.device("cpu")):
                found: Tensor = getattr(owner, name)
            return found
    return tensor


def _untied(module: nn.Module, view: WeightView) -> dict[str, Tensor]:
    """Return the module's tensors, each once: of tied ones the name that files keep."""
    ignored = set(getattr(module, "_keys_to_ignore_on_save", None) or ())
    tied = set(getattr(module, "all_tied_weights_keys", None) or ())
    kept: dict[int, str] = {}
    state = {name: t for name, t in _state(module, view).items() if name not in ignored}
    for name, tensor in state.items():
        other = kept.get(id(tensor))
        if other is None or (other in tied and name not in tied):
            kept[id(tensor)] = name
    return {name: state[name] for name in kept.values()}


def _as_saved(module: Any, state: dict[str, Tensor]) -> dict[str, Tensor]:  # noqa: ANN401
    """Return tensors under the names of files, where transformers' modules have others."""
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # without it no model of transformers is in memory either
        return state
    if not hasattr(module, "save_pretrained"):
        return state
    return dict(revert_weight_conversion(module, state))


def _info(tensor: Tensor) -> TensorInfo:
    return TensorInfo(
        shape=tuple(tensor.shape),
        dtype=SPELLED.get(tensor.dtype, str(tensor.dtype).removeprefix("torch.")),
        n_bytes=tensor.numel() * tensor.element_size(),
    )
