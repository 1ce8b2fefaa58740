"""A model's config.json, read with care: typed look-ups, old and new spellings, clear errors.

Enters: the parsed JSON of a config file. Leaves: numbers of a checked type and range, so that the
family table above it can be written without a single `if key in config`.
"""

import math
from collections.abc import Mapping
from typing import Any

from orbitlens.checkpoint.model import Pairing, RotarySpec
from orbitlens.errors import CheckpointError

# Sizes a config may spell in several ways; the first that is present and not null is taken.
SPELLINGS: dict[str, tuple[str, ...]] = {
    "n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv_heads": ("num_key_value_heads", "num_kv_heads"),
    "d_model": ("hidden_size", "n_embd", "d_model", "dim"),
    "d_head": ("head_dim", "d_kv"),
    "epsilon": ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "max_positions": ("max_position_embeddings", "n_positions", "max_seq_len"),
}
LARGEST_SIZE = 1 << 24  # no layer, head or width count of a real model comes near this

# rope_type -> the parameters it cannot do without (transformers 5 knows exactly these)
ROTARY_KINDS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "proportional": (),
}
ROTARY_ALIASES = {"su": "longrope", "ntk": "dynamic"}


class Settings:
    """Typed access to one config; every complaint names the file and the key."""

    def __init__(self, config: Mapping[str, Any], path: str) -> None:
        """Wrap `config`, which was read from the checkpoint at `path`."""
        self.config = config
        self.path = path

    def get(self, key: str, default: object = None) -> Any:  # noqa: ANN401 - JSON holds anything
        """Return the value at `key` ("a.b" looks inside), or `default` where absent or null."""
        value: Any = self.config
        for part in key.split("."):
            if not isinstance(value, Mapping):
                return default
            value = value.get(part)
        return default if value is None else value

    def flag(self, key: str, default: bool = False) -> bool:
        """Return a true-or-false setting."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """Return a finite real number."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        if not math.isfinite(value):
            raise self._wrong(key, value, "a finite number")
        return float(value)

    def optional_real(self, key: str) -> float | None:
        """Return a real number, or None where the key is absent or null."""
        return None if self.get(key) is None else self.real(key)

    def size(self, name: str, default: int | None = None) -> int:
        """Return a positive whole number, under any of its `SPELLINGS`."""
        keys = SPELLINGS.get(name, (name,))
        for key in keys:
            value = self.get(key)
            if value is not None:
                return self._whole(key, value)
        if default is None:
            raise CheckpointError(
                f"{self.path}: the config has no {' or '.join(keys)}. "
                "Expected a positive whole number: is the config complete?"
            )
        return default

    def optional_size(self, name: str) -> int | None:
        """Return a positive whole number, or None where the config has none."""
        keys = SPELLINGS.get(name, (name,))
        return self.size(name) if any(self.get(key) is not None for key in keys) else None

    def names(self, key: str) -> list[str] | None:
        """Return a list of strings, or None where the key is absent or null."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(key, value, "a list of strings")
        return value

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST_SIZE:
            raise self._wrong(key, value, f"a whole number from 1 to {LARGEST_SIZE - 1}")
        return value

    def _wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        return CheckpointError(
            f"{self.path}: config key {key!r} is {shown}; expected {expected}. "
            "Correct the config, or fetch it again."
        )

    # --- rotary encodings -------------------------------------------------------------------

    def rotary(
        self,
        *,
        d_head: int,
        pairing: Pairing,
        layer_type: str | None = None,
        base: float,
        share: float = 1.0,
    ) -> RotarySpec:
        """Return the rotary encoding of a layer, in new (`rope_parameters`) or old spelling.

        Args:
            d_head: width of a head.
            pairing: which coordinates turn together; no config says it, the family does.
            layer_type: picks one of several encodings where a model has them (Gemma 3).
            base: the base where the encoding's own parameters give none.
            share: the family's default for the part of a head that is turned.
        """
        parameters = dict(self._rotary_parameters(layer_type))
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        kind = ROTARY_ALIASES.get(kind, kind) if isinstance(kind, str) else kind
        if kind not in ROTARY_KINDS:
            known = ", ".join(ROTARY_KINDS)
            raise self._wrong("rope_type", kind, f"one of {known}")
        view = Settings({**self.config, "rope": parameters}, self.path)
        for key in ROTARY_KINDS[kind]:
            if parameters.get(key) is None and not (kind == "yarn" and key == "factor"):
                raise self._wrong(f"rope_parameters.{key}", None, f"a value, as {kind!r} needs one")
        if kind in {"yarn", "longrope", "llama3"}:
            parameters["original_max_position_embeddings"] = view.size(
                "original_max_position_embeddings",
                view.optional_size("rope.original_max_position_embeddings")
                or view.size("max_positions"),
            )
        base = view.real("rope.rope_theta", base)
        if base <= 0.0:
            raise self._wrong("rope_theta", base, "a positive number")
        return RotarySpec(
            base=base,
            d_rotary=view._rotated_width(d_head, share, kind),
            d_head=d_head,
            pairing=pairing,
            kind=kind,
            parameters=parameters,
            max_positions=self.optional_size("max_positions"),
            frequency_divisors=self.get("_gguf.frequency_divisors"),
        )

    def _rotary_parameters(self, layer_type: str | None) -> Mapping[str, Any]:
        value = self.get("rope_parameters")
        if value is None:  # the old spelling; it never touched Gemma 3's sliding layers
            value = {} if layer_type == "sliding_attention" else self.get("rope_scaling", {})
        if not isinstance(value, Mapping):
            raise self._wrong("rope_parameters", value, "an object")
        nested = value.get(layer_type) if layer_type else None
        if isinstance(nested, Mapping):
            return nested
        if any(isinstance(item, Mapping) for item in value.values()):
            raise self._wrong("rope_parameters", value, f"an entry for {layer_type!r}")
        return value

    def _rotated_width(self, d_head: int, share: float, kind: str) -> int:
        share = self.real(
            "rope.partial_rotary_factor",
            self.real("partial_rotary_factor", self.real("rotary_pct", share)),
        )
        width = self.optional_size("rotary_dim") or (
            d_head if kind == "proportional" else int(d_head * share)
        )
        if not 0 < width <= d_head or width % 2 or not 0 < share <= 1:
            raise self._wrong("partial_rotary_factor", share, f"an even part of d_head={d_head}")
        return width
