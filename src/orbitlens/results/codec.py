"""Frozen dataclasses to plain JSON data and back, by their type hints.

Enters: a dataclass, or data and the type it should become. Leaves: the other. Field names are kept;
tuples are lists, enums their values, keys of mappings text (a mapping whose keys are tuples is a
list of pairs), a tensor is {"dtype", "shape", "data"}. Numbers that JSON does not have are written
"NaN", "Infinity" and "-Infinity". Names that a type does not have are passed over, so that a later
version may add some; whatever else does not fit is refused with the name of the field.
"""

import json
import math
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor

from orbitlens.errors import OrbitlensError, ResultError

NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
LARGEST_INT = 2**64  # what is larger counts nothing, and need not fit a float
SHOWN = 40  # characters of wrong data in a message


# --- to JSON ---------------------------------------------------------------------------------


def encode(value: object) -> Any:  # noqa: ANN401 - JSON holds anything
    """Return dataclasses, mappings, sequences, enums and tensors as plain data.

    >>> encode({"a": (1, 2.5), "b": None})
    {'a': [1, 2.5], 'b': None}
    """
    if is_dataclass(value) and not isinstance(value, type):
        return _encoded_dataclass(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return _encoded_mapping(value)
    if isinstance(value, Tensor):
        return _encoded_tensor(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode(item) for item in value]
    return value


def _encoded_dataclass(value: Any) -> dict[str, Any]:  # noqa: ANN401
    """Return the fields, and what the type's `DERIVED` names: properties, or methods to call."""
    derived = {name: getattr(value, name) for name in getattr(value, "DERIVED", ())}
    names = [field.name for field in fields(value)]
    stated = {name: v() if callable(v) else v for name, v in derived.items()}
    return {name: encode(v) for name, v in ({n: getattr(value, n) for n in names} | stated).items()}


def _encoded_mapping(value: Mapping[Any, Any]) -> Any:  # noqa: ANN401
    if any(isinstance(key, tuple) for key in value):
        return [[encode(key), encode(item)] for key, item in value.items()]
    return {str(encode(key)): encode(item) for key, item in value.items()}


def _encoded_tensor(value: Tensor) -> dict[str, Any]:
    return {
        "dtype": str(value.dtype).removeprefix("torch."),
        "shape": list(value.shape),
        "data": value.detach().cpu().flatten().tolist(),
    }


def dumps(data: object) -> str:
    """Return plain data as the text of a JSON file.

    >>> print(dumps({"a": [1.0, float("inf")]}))
    {
     "a": [
      1.0,
      "Infinity"
     ]
    }
    """
    return json.dumps(_finite(data), indent=1, allow_nan=False)


def _finite(data: object) -> object:
    if isinstance(data, float) and not math.isfinite(data):
        return "NaN" if math.isnan(data) else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, dict):
        return {key: _finite(item) for key, item in data.items()}
    if isinstance(data, list):
        return [_finite(item) for item in data]
    return data


# --- from JSON -------------------------------------------------------------------------------


def decode(hint: Any, data: Any, where: str = "") -> Any:  # noqa: ANN401 - types are data here
    """Return data as a value of a type: a dataclass, or what a dataclass can have as a field.

    >>> decode(tuple[int, ...], [1, 2])
    (1, 2)

    Raises:
        ResultError: the data do not fit; the message names the field, below `where`.
    """
    if hint is Any or hint is object:
        return data
    origin = get_origin(hint)
    if origin is Literal:
        return _one_of(get_args(hint), data, where)
    if origin in (Union, types.UnionType):
        return _decoded_union(get_args(hint), data, where)
    if origin is tuple:
        return _decoded_tuple(get_args(hint), data, where)
    if origin is not None and issubclass(origin, Mapping):
        return _decoded_mapping(get_args(hint), data, where)
    if origin is not None and issubclass(origin, Sequence):
        return _items(get_args(hint)[0], data, where)
    return _decoded_single(hint, data, where)


def _decoded_single(hint: Any, data: Any, where: str) -> Any:  # noqa: ANN401
    if hint in _SCALARS:
        fits, name = _SCALARS[hint]
        if not fits(data):
            raise _misfit(where, name, data)
        return _number(data) if hint is float else data
    if hint is Tensor or getattr(hint, "array_type", None) is Tensor:  # Tensor, or jaxtyping's
        return _decoded_tensor(hint, data, where)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint(_one_of(tuple(member.value for member in hint), data, where))
    if is_dataclass(hint):
        return _decoded_dataclass(hint, data, where)
    raise TypeError(f"{where}: results cannot have fields of type {hint!r}")


def _is_int(data: object) -> bool:
    return isinstance(data, int) and not isinstance(data, bool)


def _is_number(data: Any) -> bool:  # noqa: ANN401
    if isinstance(data, str):
        return data in NOT_FINITE
    return isinstance(data, float) or (_is_int(data) and abs(data) <= sys.float_info.max)


def _number(data: Any) -> float:  # noqa: ANN401
    return NOT_FINITE[data] if isinstance(data, str) else float(data)


_SCALARS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    str: (lambda data: isinstance(data, str), "text"),
    bool: (lambda data: isinstance(data, bool), "true or false"),
    int: (lambda data: _is_int(data) and abs(data) < LARGEST_INT, "a whole number"),
    float: (_is_number, "a number"),
    type(None): (lambda data: data is None, "null"),
}


def _one_of(values: tuple[Any, ...], data: object, where: str) -> Any:  # noqa: ANN401
    for value in values:
        if value == data and type(value) is type(data):
            return value
    raise _misfit(where, "one of " + ", ".join(repr(value) for value in values), data)


def _decoded_union(kinds: tuple[Any, ...], data: object, where: str) -> Any:  # noqa: ANN401
    if data is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    for kind in others[:-1]:
        try:
            return decode(kind, data, where)
        except ResultError:
            continue  # one of the next kinds may fit; the last one says what is wrong
    return decode(others[-1], data, where)


def _decoded_tuple(kinds: tuple[Any, ...], data: object, where: str) -> tuple[Any, ...]:
    if kinds[-1] is Ellipsis:
        return tuple(_items(kinds[0], data, where))
    if not isinstance(data, list) or len(data) != len(kinds):
        raise _misfit(where, f"a list of {len(kinds)}", data)
    pairs = enumerate(zip(kinds, data, strict=True))
    return tuple(decode(kind, item, f"{where}[{k}]") for k, (kind, item) in pairs)


def _items(kind: Any, data: object, where: str) -> list[Any]:  # noqa: ANN401
    if not isinstance(data, list):
        raise _misfit(where, "a list", data)
    return [decode(kind, item, f"{where}[{k}]") for k, item in enumerate(data)]


def _decoded_mapping(kinds: tuple[Any, ...], data: object, where: str) -> dict[Any, Any]:
    key_kind, kind = kinds
    if get_origin(key_kind) is tuple and data != {}:
        pair: Any = tuple[key_kind, kind]  # type: ignore[valid-type] # types are data here
        return dict(_items(pair, data, where))
    if not isinstance(data, dict):
        raise _misfit(where, "an object", data)
    return {
        _key(key_kind, key, where): decode(kind, item, _below(where, key))
        for key, item in data.items()
    }


def _key(kind: Any, text: str, where: str) -> Any:  # noqa: ANN401
    if kind not in (int, float):
        return decode(kind, text, f"a name in {where}")
    try:
        return kind(text)
    except ValueError as error:
        raise _misfit(f"a name in {where}", _SCALARS[kind][1], text) from error


def _decoded_tensor(hint: Any, data: object, where: str) -> Tensor:  # noqa: ANN401
    if not isinstance(data, dict):
        raise _misfit(where, "an object with dtype, shape and data", data)
    dtype = getattr(torch, str(data.get("dtype")), None)
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        raise _misfit(
            f"{where}.dtype", "a type of real numbers, such as float64", data.get("dtype")
        )
    shape = decode(tuple[int, ...], data.get("shape"), f"{where}.shape")
    item = float if dtype.is_floating_point else bool if dtype is torch.bool else int
    items = _items(item, data.get("data"), f"{where}.data")
    if any(size < 0 for size in shape) or math.prod(shape) != len(items):
        raise _misfit(f"{where}.shape", f"sizes of {len(items)} numbers", list(shape))
    try:
        tensor = torch.tensor(items, dtype=dtype).reshape(shape)
    except (RuntimeError, OverflowError) as error:  # a number that the type cannot hold
        raise _misfit(f"{where}.data", f"numbers of type {data['dtype']}", items) from error
    if not isinstance(tensor, hint):
        raise _misfit(where, getattr(hint, "__name__", "a tensor"), list(shape))
    return tensor


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decoded_dataclass(kind: Any, data: object, where: str) -> Any:  # noqa: ANN401
    if not isinstance(data, dict):
        raise _misfit(where, "an object", data)
    hints, values = _hints(kind), {}
    for field in fields(kind):
        place = _below(where, field.name)
        if field.name in data:
            values[field.name] = decode(hints[field.name], data[field.name], place)
        elif field.default is MISSING and field.default_factory is MISSING:
            raise ResultError(f"{place} is missing.")
    try:
        return kind(**values)
    except OrbitlensError as error:  # its fields do not fit each other
        raise ResultError(f"{where or 'the data'}: {error}") from error


def _below(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _misfit(where: str, expected: str, data: object) -> ResultError:
    try:
        text = json.dumps(data)
    except (TypeError, ValueError):
        text = repr(data)
    shown = text if len(text) <= SHOWN else text[:SHOWN] + " ..."
    return ResultError(f"{where or 'the data'}: expected {expected}, got {shown}.")
