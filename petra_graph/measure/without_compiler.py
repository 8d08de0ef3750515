"""A context in which torch imports neither its compiler nor sympy, for measurements on the meta device and trials before a run; no run trains inside it.

Torch marks functions that its compiler must skip, and imports `torch._dynamo` for the mark when such a function is first called: the
decompositions of the meta device are among them. They also ask about sizes that may be symbols, of sympy. Either import takes longer than all
measurements of a plan. No code is compiled here and sizes are numbers, so the marks may be left out, and what is asked of numbers is answered
here. Whatever else is wanted of these modules comes from the real ones, which can be imported again afterwards.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_COMPILER, _SYMBOLS, _ALGEBRA = "torch._dynamo", "torch.fx.experimental.symbolic_shapes", "sympy"
_NAMES = _COMPILER, _SYMBOLS, _ALGEBRA
"""Each with what it imports behind it."""
_SAME = (
    *("expect_true", "guard_bool", "guard_int", "guard_or_false", "guard_or_true", "guard_size_oblivious"),
    *("guarding_hint_or_throw", "statically_known_true"),
)
_OF_NUMBERS: Mapping[str, Callable[..., Any]] = {
    **dict.fromkeys(_SAME, lambda value, *_: value),
    "has_guarding_hint": lambda _: True,
    "is_nested_int": lambda _: False,
    "sym_and": lambda *values: all(values),
    "sym_or": lambda *values: any(values),
    "sym_eq": lambda one, other: one == other if isinstance(one, int) else [*one] == [*other],
}
"""What the functions of these names return where no value is a symbol."""


@contextmanager
def uncompiled() -> Iterator[None]:
    """Stand in for these modules inside the context, unless they are already imported."""
    unmarked: list[Callable[..., Any]] = []

    def disable(function: Any = None, *recursive: bool, **named: Any) -> Any:
        # Torch itself gives a function and a number only; any other mark is an author's, and stays.
        if function is None or not recursive or "reason" in named:
            return _real(_COMPILER).disable(function, *recursive, **named)
        unmarked.append(function)
        return function

    own: Mapping[str, Mapping[str, Any]] = {
        # Outside compilation the real `graph_break`, which torch's optimizers call, does nothing either.
        _COMPILER: {"disable": disable, "graph_break": lambda: None},
        _SYMBOLS: {name: _answer(name, of_numbers) for name, of_numbers in _OF_NUMBERS.items()},
        _ALGEBRA: {"Basic": type("Basic", (), {})},  # of which no number is
    }
    present = [_StandIn(name, own[name]) for name in _NAMES if name not in sys.modules]
    sys.modules.update((one.__name__, one) for one in present)
    for one in present:
        package, _, last = one.__name__.rpartition(".")
        if (
            one.__name__ == _SYMBOLS
        ):  # `import a.b` binds `a` alone, so b is an attribute; `torch` finds its compiler itself
            setattr(sys.modules[package], last, one)
    beneath = _Beneath()
    sys.meta_path.insert(0, beneath)
    try:
        yield
    finally:
        sys.meta_path.remove(beneath)
        for one in present:
            one.withdraw()
        for function in unmarked:  # torch stores a mark as an attribute of the function
            vars(function).pop("__dynamo_disable", None)


class _StandIn(ModuleType):
    """A module in another one's place with a little of it; any other attribute comes from the real one, which is then in its own place."""

    def __init__(self, name: str, own: Mapping[str, Any]) -> None:
        super().__init__(name)
        self.__spec__ = spec = find_spec(name)  # by which others ask whether it is installed
        if spec is not None and spec.submodule_search_locations is not None:
            self.__path__ = spec.submodule_search_locations
        vars(self).update(own)
        self._own = tuple(own)

    def __getattr__(self, name: str) -> Any:
        # `inspect` and `unittest` ask every module for the first two, and an import whether it is a package.
        if name in {"__file__", "__warningregistry__", "__path__"}:
            raise AttributeError(name)
        return getattr(_real(self.__name__), name)

    def withdraw(self) -> None:
        """Leave the place; a module that was imported meanwhile and has this one finds the real attributes in it."""
        for name in self._own:
            vars(self).pop(name, None)
        if sys.modules.get(self.__name__) is self:
            del sys.modules[self.__name__]


class _Beneath:
    """Finds modules beneath a stand-in: the real package is imported first, and with it often the module itself, which must not be made twice."""

    def find_spec(
        self, name: str, _path: Sequence[str] | None, _target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        package = name.rpartition(".")[0]
        if not isinstance(sys.modules.get(package), _StandIn):
            return None
        _real(package)
        made = sys.modules.pop(name, None)  # where it stays, Python loads it by its own specification, again
        return None if made is None else ModuleSpec(name, _Made(made))


class _Made(Loader):
    """Gives an import the module that is there, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


def _real(name: str) -> ModuleType:
    for standing in map(sys.modules.get, _NAMES[_NAMES.index(name) :]):  # what the real one imports shall be real, too
        if isinstance(standing, _StandIn):
            standing.withdraw()
    return importlib.import_module(name)


def _answer(name: str, of_numbers: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that answers of numbers, and asks the real one of symbols: a module that is imported meanwhile keeps it."""

    def answer(*values: Any) -> Any:
        flat = [part for value in values for part in (value if isinstance(value, tuple | list) else (value,))]
        if all(isinstance(part, int | float) for part in flat):
            return of_numbers(*values)
        return getattr(_real(_SYMBOLS), name)(*values)

    return answer
