"""A model's config.json, read with care: typed look-ups, old and new spellings, clear errors.

Enters: the parsed JSON of a config file. Leaves: numbers of a checked type and range, so that the
family table above it can be written without a single `if key in config`.
"""

from collections.abc import Mapping
from typing import Any

from orbitlens.errors import CheckpointError
from orbitlens.families.architecture import Pairing, RotarySpec

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
LARGEST_REAL = 1e15  # nor does any scale, base or factor; beyond, products of them overflow
SMALLEST_REAL = 1e-15  # of a number that must be positive

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
YARN_OPTIONS = ("beta_fast", "beta_slow", "mscale", "mscale_all_dim")  # 0 stands for the default
# rope_type -> the positive numbers it uses where they are given
ROTARY_NUMBERS: dict[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "yarn": ("factor", "attention_factor", *YARN_OPTIONS),
    "longrope": ("factor", "attention_factor"),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "proportional": ("factor",),
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
            raise self.wrong(key, value, "true or false")
        return value

    def real(
        self, key: str, default: float | None = None, *, least: float = -LARGEST_REAL
    ) -> float:
        """Return a real number, `least` or more and of a size that settings have."""
        value = self.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(key, value, "a number")
        if not least <= value <= LARGEST_REAL:  # not a number compares as false
            raise self.wrong(key, value, f"a number from {least:g} to {LARGEST_REAL:g}")
        return float(value)

    def optional_real(self, key: str, *, least: float = -LARGEST_REAL) -> float | None:
        """Return a real number, or None where the key is absent or null."""
        return None if self.get(key) is None else self.real(key, least=least)

    def optional_positive(self, key: str) -> float | None:
        """Return a positive real number, or None where the key is absent or null."""
        return self.optional_real(key, least=SMALLEST_REAL)

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
            raise self.wrong(key, value, "a list of strings")
        return value

    def name_at(self, key: str, index: int) -> str | None:
        """Return one of a list of strings, one a layer; None where the key is absent or null."""
        names = self.names(key)
        if names is not None and index >= len(names):
            raise self.wrong(key, names, "a string for each layer")
        return None if names is None else names[index]

    def _whole(self, key: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < LARGEST_SIZE:
            raise self.wrong(key, value, f"a whole number from 1 to {LARGEST_SIZE - 1}")
        return value

    def wrong(self, key: str, value: object, expected: str) -> CheckpointError:
        """Return the error for a setting that is not what was expected."""
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
        given = self._rotary_parameters(layer_type)
        parameters = {key: value for key, value in given.items() if value is not None}
        kind = parameters.get("rope_type") or parameters.get("type") or "default"
        kind = ROTARY_ALIASES.get(kind, kind) if isinstance(kind, str) else kind
        if not isinstance(kind, str) or kind not in ROTARY_KINDS:
            known = ", ".join(ROTARY_KINDS)
            raise self.wrong("rope_type", kind, f"one of {known}")
        view = Settings({**self.config, "rope_parameters": parameters}, self.path)
        for key in ROTARY_KINDS[kind]:
            if parameters.get(key) is None and not (kind == "yarn" and key == "factor"):
                raise self.wrong(f"rope_parameters.{key}", None, f"a value, as {kind!r} needs one")
        if kind in {"yarn", "longrope", "llama3"}:
            parameters["original_max_position_embeddings"] = view.size(
                "original_max_position_embeddings",
                view.optional_size("rope_parameters.original_max_position_embeddings")
                or view.size("max_positions"),
            )
        base = view.real("rope_parameters.rope_theta", base)
        if base <= 1.0:
            raise self.wrong("rope_theta", base, "a number above 1")
        d_rotary = view._rotated_width(d_head, share, kind)
        parameters |= view._rotary_numbers(kind)
        view._check_rotary(kind, d_rotary)
        return RotarySpec(
            base=base,
            d_rotary=d_rotary,
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
            raise self.wrong("rope_parameters", value, "an object")
        nested = value.get(layer_type) if layer_type else None
        if isinstance(nested, Mapping):
            return nested
        if any(isinstance(item, Mapping) for item in value.values()):
            wanted = f"an entry for {layer_type!r}" if layer_type else "one encoding for all layers"
            raise self.wrong("rope_parameters", value, wanted)
        return value

    def _rotary_numbers(self, kind: str) -> dict[str, float]:
        """Return the numbers of an encoding, each one positive."""
        numbers = {}
        for key in ROTARY_NUMBERS[kind]:
            is_default = key in YARN_OPTIONS and self.get(f"rope_parameters.{key}") == 0
            value = None if is_default else self.optional_positive(f"rope_parameters.{key}")
            if value is not None:
                numbers[key] = value
        return numbers

    def _check_rotary(self, kind: str, d_rotary: int) -> None:
        """Check what `orbitlens.heads.rotary` computes with, and cannot check when it does."""
        place = "rope_parameters"
        if kind == "dynamic" and d_rotary <= 2:
            raise self.wrong(
                "rope_type", kind, "another type: this one divides by the width less 2"
            )
        if kind == "llama3":
            low, high = (
                self.real(f"{place}.low_freq_factor"),
                self.real(f"{place}.high_freq_factor"),
            )
            if high <= low:
                raise self.wrong(
                    f"{place}.high_freq_factor", high, "a number above low_freq_factor"
                )
        if kind == "yarn":
            self.flag(f"{place}.truncate", True)
        if kind == "longrope":
            self._check_longrope(d_rotary // 2)

    def _check_longrope(self, n_pairs: int) -> None:
        trained = "rope_parameters.original_max_position_embeddings"
        if self.size(trained) == 1:
            raise self.wrong(trained, 1, "more than 1 token")
        for key in ("rope_parameters.short_factor", "rope_parameters.long_factor"):
            factors = self.get(key)
            fits = isinstance(factors, list) and len(factors) == n_pairs
            if not fits or not all(_is_positive(factor) for factor in factors):
                raise self.wrong(key, factors, f"{n_pairs} positive numbers, one a pair")

    def _rotated_width(self, d_head: int, share: float, kind: str) -> int:
        share = self.real(
            "rope_parameters.partial_rotary_factor",
            self.real("partial_rotary_factor", self.real("rotary_pct", share)),
        )
        width = self.optional_size("rotary_dim") or (
            d_head if kind == "proportional" else int(d_head * share)
        )
        if not 0 < width <= d_head or width % 2 or not 0 < share <= 1:
            raise self.wrong("partial_rotary_factor", share, f"an even part of d_head={d_head}")
        return width


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return SMALLEST_REAL <= value <= LARGEST_REAL
