"""Packages that transformers imports and no command uses, left out until something calls them.

Enters: nothing. Leaves: a finder at the head of `sys.meta_path` of the command line's own process;
the library does not touch how anyone's process imports. While what models of transformers share is
loaded, names of the packages below stand for themselves: whoever calls one gets the real one then,
and nothing is an instance of a class whose package was never loaded. That leaves out SciPy's
optimiser, accelerate, distributed tensors with SymPy behind them, and torch's compiler: a third of
what the import costs. The last two stay away until they are looked into, since torch and
transformers ask for them in passing: to mark a function, or whether a tensor is distributed. What
would be marked for compilation is not marked; commands compile nothing. A version of transformers
that does not bear this is loaded as always.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SHARED = {  # modules whose imports are put off: what files of models ask for first
    f"transformers.{name}"
    for name in (
        "activations",
        "cache_utils",
        "generation",
        "generation.utils",
        "initialization",
        "integrations",
        "masking_utils",
        "modeling_flash_attention_utils",
        "modeling_layers",
        "modeling_outputs",
        "modeling_rope_utils",
        "modeling_utils",
        "pytorch_utils",
    )
}
PUT_OFF = (
    "accelerate",
    "scipy.optimize",
    "torch.distributed._composable",
    "torch.distributed._functional_collectives",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
)
STAYING_AWAY = ("torch._dynamo", "torch.distributed.tensor")  # after transformers is loaded, too
COMPILER = "torch._inductor"
MARKS = ("allow_in_graph", "assume_constant_result", "disable")  # of functions, for the compiler


class Later(type):
    """The type of a name whose package is imported when the name is first called or looked into."""

    home: str
    real_name: str

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> "Later":
        """Make a name; a class cannot wait for the class it is a child of."""
        if bases:
            raise ImportError(f"{name} is a child of a class that is not loaded")
        return super().__new__(cls, name, bases, body)

    def __call__(cls, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - as the real one
        """Call what the name stands for; what is called during the import itself waits as well."""
        if FINDER.is_loading:
            return LaterValue(lambda: _real(cls)(*args, **named))
        return _real(cls)(*args, **named)

    def __getattr__(cls, name: str) -> Any:  # noqa: ANN401
        """Look into what the name stands for."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(_real(cls), name)

    def __setattr__(cls, name: str, value: Any) -> None:  # noqa: ANN401
        """Change what the name stands for."""
        setattr(_real(cls), name, value)

    def __instancecheck__(cls, value: object) -> bool:
        """Say no where the package was never loaded: nobody can have made one."""
        return _is_loaded(cls.home) and isinstance(value, _real(cls))

    def __subclasscheck__(cls, other: type) -> bool:
        """Say no where the package was never loaded, as for instances."""
        return other is cls or (_is_loaded(cls.home) and issubclass(other, _real(cls)))


class LaterValue:
    """A value made during the import, such as a default placement; made when it is looked into."""

    def __init__(self, make: Callable[[], Any]) -> None:
        """Take what makes it."""
        self._make = make

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Look into the value, made now."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._make(), name)


class Absent(ModuleType):
    """Stands in `sys.modules` for a package that is not loaded."""

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        """Return the stand-in of a name, or the marker that marks nothing."""
        if name.startswith("__"):
            raise AttributeError(name)
        if name in MARKS:
            return _unmarked
        return Later(name, (), {"home": self.__name__, "real_name": name})


def _unmarked(function: Callable[..., Any] | None = None, *_: object, **__: object) -> Any:  # noqa: ANN401
    """Return a function as it is; called without one, return what does so."""
    return _unmarked if function is None else function


def _is_loaded(name: str) -> bool:
    return name in sys.modules and not isinstance(sys.modules[name], Absent)


def _real(later: Later) -> Any:  # noqa: ANN401
    """Return what a name stands for, its package imported now if it was not."""
    with FINDER.paused():
        return getattr(import_module(later.home), later.real_name)


class AbsentLoader(Loader):
    """Loads a stand-in."""

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return the stand-in."""
        return Absent(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: there is nothing in it."""


class LeanLoader(Loader):
    """Loads a module by another loader, heavy packages put off."""

    def __init__(self, own: Loader) -> None:
        """Take the module's own loader."""
        self.own = own

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Do as the module's own loader does."""
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Load the module leanly; if this version of transformers does not bear it, as always."""
        before = set(sys.modules)
        try:
            with FINDER.loading():
                self.own.exec_module(module)
        except (ImportError, AttributeError, TypeError):
            for name in set(sys.modules) - before:
                if name.startswith("transformers."):  # others are whole, and some load only once
                    del sys.modules[name]
            with FINDER.paused():
                self.own.exec_module(module)


class LeanFinder(MetaPathFinder):
    """Finds what models of transformers share as always, and stand-ins for what that never uses."""

    def __init__(self) -> None:
        """Begin with nothing under way."""
        self.is_loading = self.is_paused = False

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ANN401
        """Return a spec for such modules; None for all others, and while real ones are imported."""
        if self.is_paused:
            return None
        if fullname == COMPILER:  # someone compiles after all
            self.is_paused = True
            _forget((*PUT_OFF, *STAYING_AWAY))
            return None
        if _within(fullname, STAYING_AWAY) or (self.is_loading and _within(fullname, PUT_OFF)):
            return ModuleSpec(fullname, AbsentLoader(), is_package=True)  # gives it a __path__
        if fullname not in SHARED or self.is_loading:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = LeanLoader(spec.loader)
        return spec

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Put off the heavy packages for whatever is imported inside."""
        self.is_loading = True
        try:
            yield
        finally:
            self.is_loading = False
            _forget(PUT_OFF)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Have everything that is imported inside be the real thing."""
        before, self.is_paused = self.is_paused, True
        _forget((*PUT_OFF, *STAYING_AWAY))
        try:
            yield
        finally:
            self.is_paused = before


FINDER = LeanFinder()


def _within(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def _forget(packages: tuple[str, ...]) -> None:
    """Take stand-ins out of `sys.modules`, and out of the packages that hold them."""
    for name, module in list(sys.modules.items()):
        if isinstance(module, Absent) and _within(name, packages):
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules and isinstance(vars(sys.modules[parent]).get(child), Absent):
                delattr(sys.modules[parent], child)


def import_leanly() -> None:
    """Put the finder in place, once, and have Python look for cycles less often.

    It would do so hundreds of times during imports, a tenth of what they cost.
    """
    gc.set_threshold(200_000, 20, 20)
    if FINDER not in sys.meta_path:
        sys.meta_path.insert(0, FINDER)
