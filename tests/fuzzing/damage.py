"""Ways to damage a file: bytes, JSON data, numbers. Each takes a whole one and a `Random`."""

import copy
import json
import struct

ODD_NUMBERS = [
    0,
    1,
    -1,
    2,
    3,
    7,
    255,
    256,
    10_000,
    2**16,
    2**31 - 1,
    2**32,
    2**53,
    2**63,
    2**64 - 1,
]
ODD_VALUES = [
    None, True, False, "", "x", "\x1b[2J", "\u202egpj.exe", "../../etc/passwd", [], {}, [[]],
    [None], {"a": None}, 0.5, -0.5, 1e-300, 1e300, -1e15, float("nan"), float("inf"), "1", "NaN",
    "1e400", 10**30, "auto", ["full_attention"], {"rope_type": "yarn"}, "a" * 5000, "\ud800",
]  # fmt: skip
SCALES = [
    0.0,
    1e-45,
    1e-38,
    1e-30,
    1e-20,
    1e-10,
    1e10,
    1e20,
    1e30,
    3e38,
    float("inf"),
    float("nan"),
]
DEEP = 3000  # brackets in brackets


def bytes_of(whole, random):
    """Return the bytes with one to eight places changed, cut, doubled or left out."""
    data = bytearray(whole)
    for _ in range(random.choice([1, 1, 1, 2, 4, 8])):
        if not data:
            break
        # Headers are at the start, and what they say matters most.
        end = len(data) if random.random() < 0.5 else min(len(data), 600)
        place, length = random.randrange(end), random.choice([1, 2, 4, 8, 33, 500])
        kind = random.randrange(6)
        if kind == 0:
            data[place] ^= 1 << random.randrange(8)
        elif kind == 1:
            data[place] = random.randrange(256)
        elif kind == 2:
            number = struct.pack("<Q", random.choice(ODD_NUMBERS) % 2**64)
            data[place : place + 8] = number[: random.choice([1, 4, 8])]
        elif kind == 3:
            del data[place : place + length]
        elif kind == 4:
            data[place:place] = data[place : place + length]
        else:
            del data[place:]
    return bytes(data)


def json_of(whole, random):
    """Return a copy of JSON data with one to three places replaced, left out or renamed."""
    data = copy.deepcopy(whole)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        places = list(_places(data))
        if not places:
            return odd_value(random)
        owner, key = random.choice(places)
        kind = random.randrange(8)
        if kind == 0:
            del owner[key]
        elif kind == 1 and isinstance(owner, dict):
            owner[str(key) + random.choice(["", "_", "\x00"])] = owner.pop(key)
        elif kind == 2:
            other, name = random.choice(places)
            owner[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else owner[key])
        elif kind == 3 and _is_number(owner[key]):
            owner[key] = owner[key] * random.choice([0, -1, 2, 0.5, 1000, 10**9])
        else:
            owner[key] = odd_value(random)
    return data


def odd_value(random):
    """Return something that is hardly ever expected."""
    if random.random() < 0.3:
        return random.choice(ODD_NUMBERS) * random.choice([1, -1])
    return copy.deepcopy(random.choice(ODD_VALUES))


def text_of(data, random):
    """Return JSON as bytes, at times no longer JSON."""
    try:
        text = json.dumps(data).encode()
    except (ValueError, RecursionError):
        text = b"{}"
    kind = random.random()
    if kind < 0.8:
        return text
    if kind < 0.85:
        return b"[" * DEEP + b"]" * DEEP
    return bytes_of(text, random)


def _places(data):
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        yield data, key
        if isinstance(value, dict | list):
            yield from _places(value)


def _is_number(value):
    return isinstance(value, int | float) and not isinstance(value, bool)


def weights_of(whole, random):
    """Return tensors of which one, some or all are scaled, spiked, emptied or of low rank."""
    weights = {name: value.clone() for name, value in whole.items()}
    names = sorted(weights)
    share = random.choice([1, 1, 3, len(names)])
    factor = random.choice(SCALES)
    for name in random.sample(names, min(share, len(names))):
        value, kind = weights[name], random.randrange(5)
        if kind == 0:
            value.mul_(factor)
        elif kind == 1:
            value.fill_(factor)
        elif kind == 2:
            value.view(-1)[random.randrange(value.numel())] = factor
        elif kind == 3:
            value.mul_(10.0 ** random.uniform(-40, 38))
        else:
            value[1:] = value[:1].clone()
    return weights
