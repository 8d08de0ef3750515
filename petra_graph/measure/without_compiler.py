"""A context in which torch does not import its compiler.

Torch marks functions that its compiler must skip, and imports `torch._dynamo` for the mark when such a function is first
called: the decompositions of the meta device and the optimizers are among them, and the import takes longer than all
measurements of a plan, or than the start of a process. No code is compiled here, so the mark may be left out; it is possible again afterwards.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

_NAME = "torch._dynamo"


@contextmanager
def uncompiled() -> Iterator[None]:
    """Turn marks off inside the context, unless the compiler is already imported."""
    if _NAME in sys.modules:
        yield
        return
    stand_in = _StandIn()
    sys.modules[_NAME] = stand_in
    try:
        yield
    finally:
        stand_in.withdraw()


def import_compiler() -> None:
    """Import the compiler also inside the context, before a part of it is imported: that would be a second copy otherwise."""
    found = sys.modules.get(_NAME)
    if isinstance(found, _StandIn):
        found.compiler()
    else:
        importlib.import_module(_NAME)


class _StandIn(ModuleType):
    """A module in the compiler's place that marks nothing; any other attribute comes from the real compiler."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.unmarked: list[Callable[..., Any]] = []
        self.trace_rules = _TraceRules(self)

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return the function without a mark."""
        self.unmarked.append(function)
        return function

    def graph_break(self) -> None:
        """Do nothing, as the real function outside compilation; optimizers call it."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for its file, also while torch.distributed is imported, which the compiler imports.
        # Who asks for the path imports a part of the compiler, and gets a copy of it: `import_compiler` first avoids that.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        return getattr(self.compiler(), name)

    def compiler(self) -> ModuleType:
        """Import the compiler, which this object has stood in for."""
        self.withdraw()
        return importlib.import_module(_NAME)

    def withdraw(self) -> None:
        """Give the compiler its place back, and torch its marks: it stores a mark as an attribute of the function."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        for function in self.unmarked:
            vars(function).pop("__dynamo_disable", None)
        self.unmarked.clear()


class _TraceRules:
    """The compiler's rules, of which there is nothing to forget yet: a process group that is opened asks for it."""

    def __init__(self, stand_in: _StandIn) -> None:
        self._stand_in = stand_in

    def clear_lru_cache(self) -> None:
        """Do nothing."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stand_in.compiler().trace_rules, name)
