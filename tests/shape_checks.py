"""Shapes and types, checked while tests run, at a fraction of the cost of jaxtyping's own wrapper.

Enters: a function or dataclass of the package. Leaves: the same, checked. The option
`--jaxtyping-packages` puts `jaxtyping.jaxtyped` on every function of the package; conftest.py at
the root puts what is here in its place. What is checked is the same but for functions inside
functions, and costs less (LOG.md has numbers):

- jaxtyping checks arguments twice, before a call and with its result, and binds them by
  `inspect.signature` each time. Here one call of beartype checks both, in one scope of axis names.
- Functions that take and give no arrays need no scope: beartype alone.
- Checks are compiled at the first call: a process that imports a module need not call all of it.
- Functions inside functions would be decorated anew at each call of the outer one, which costs a
  thousand times what they do. They are left alone: what enters and leaves the outer one is checked.
- Generators are left to jaxtyping.
"""

import dataclasses
import functools
import inspect
import typing

import beartype
import jaxtyping

SCOPE = jaxtyping.jaxtyped("context")  # entered by every call anew; it holds nothing itself
original = jaxtyping.jaxtyped


def install():
    """Let the import hook of jaxtyping decorate with `jaxtyped` of this module."""
    jaxtyping.jaxtyped = jaxtyped


def jaxtyped(fn=None, *, typechecker=None):
    """Return a function or class with its checks, as `jaxtyping.jaxtyped` does."""
    if fn is None:
        return functools.partial(jaxtyped, typechecker=typechecker)
    if isinstance(fn, str):
        return original(fn)
    if isinstance(fn, type):
        is_ours = dataclasses.is_dataclass(fn) and "__init__" in vars(fn)
        if is_ours and not getattr(fn, "__no_type_check__", False):
            fn.__init__ = _checked(fn.__init__, typechecker)
        return fn
    if isinstance(fn, classmethod | staticmethod):
        return type(fn)(_checked(fn.__func__, typechecker))
    if isinstance(fn, property):
        parts = (fn.fget, fn.fset, fn.fdel)
        return property(*(part and _checked(part, typechecker) for part in parts))
    return _checked(fn, typechecker)


def _checked(fn, typechecker):
    if getattr(fn, "__no_type_check__", False) or "<locals>" in fn.__qualname__:
        return fn
    if inspect.isgeneratorfunction(fn):
        return original(fn, typechecker=typechecker)
    if not fn.__annotations__:
        return fn
    hints = {name: _resolved(a, fn.__globals__) for name, a in fn.__annotations__.items()}
    return (_scoped if any(map(_mentions_array, hints.values())) else _plain)(fn, hints)


def _scoped(fn, hints):
    """Return a function whose axis names mean the same in all its arguments and its result."""
    checked = None

    @functools.wraps(fn)
    def scoped(*args, **kwargs):
        __tracebackhide__ = True
        nonlocal checked
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        checked = checked or _by_beartype(fn, hints)
        with SCOPE:
            return checked(*args, **kwargs)

    return scoped


def _plain(fn, hints):
    """Return a function of no arrays with its checks."""
    checked = None

    @functools.wraps(fn)
    def plain(*args, **kwargs):
        __tracebackhide__ = True
        nonlocal checked
        if jaxtyping.config.jaxtyping_disable:
            return fn(*args, **kwargs)
        checked = checked or _by_beartype(fn, hints)
        return checked(*args, **kwargs)

    return plain


def _by_beartype(fn, hints):
    written, fn.__annotations__ = fn.__annotations__, hints
    try:
        return beartype.beartype(fn)
    finally:
        fn.__annotations__ = written


def _resolved(annotation, names):
    """Return what a string stands for; anything, if that is not yet defined, as in jaxtyping."""
    if not _holds_name(annotation):
        return annotation
    try:
        return typing.get_type_hints(
            type("holder", (), {"__annotations__": {"x": annotation}}), names, include_extras=True
        )["x"]
    except NameError:
        return typing.Any


def _holds_name(annotation):
    """Say whether an annotation is a string, or has one inside: a name that may not be imported."""
    if isinstance(annotation, str | typing.ForwardRef):
        return True
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return False
    if typing.get_origin(annotation) is typing.Literal:
        return False
    return any(map(_holds_name, typing.get_args(annotation)))


def _mentions_array(annotation):
    if isinstance(annotation, list | tuple):
        return any(map(_mentions_array, annotation))
    if isinstance(annotation, type) and issubclass(annotation, jaxtyping.AbstractArray):
        return True
    return any(map(_mentions_array, typing.get_args(annotation)))
