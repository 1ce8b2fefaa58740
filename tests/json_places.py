"""Plain data, place by place: where values are, one of them, and the data with another there."""


def places(data, path=()):
    """Yield the path of everything in plain data, from the whole to its numbers and words."""
    yield path
    if isinstance(data, dict | list):
        for key in data if isinstance(data, dict) else range(len(data)):
            yield from places(data[key], (*path, key))


def value_at(data, path):
    """Return what is at a path."""
    return value_at(data[path[0]], path[1:]) if path else data


def changed(data, path, value):
    """Return the data with another value at a path."""
    if not path:
        return value
    copy = dict(data) if isinstance(data, dict) else list(data)
    copy[path[0]] = changed(data[path[0]], path[1:], value)
    return copy
