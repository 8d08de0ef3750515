"""Running torch without importing its compiler.

Torch marks functions that are not to be compiled, and imports `torch._dynamo` to say so when one is first called: the
decompositions of the meta device and the optimizers are among them, and the import takes longer than all that a plan
measures. Nothing is compiled here, so the mark may be left out, and is taken back afterwards.
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
    """Let marks do nothing inside the context, unless the compiler is there already."""
    if _NAME in sys.modules:
        yield
        return
    stand_in = _StandIn()
    sys.modules[_NAME] = stand_in
    try:
        yield
    finally:
        stand_in.withdraw()


class _StandIn(ModuleType):
    """In the compiler's place: it marks nothing; whoever wants anything else gets the real one."""

    def __init__(self) -> None:
        super().__init__(_NAME)
        self.unmarked: list[Callable[..., Any]] = []

    def disable(self, function: Callable[..., Any], *_: Any, **__: Any) -> Callable[..., Any]:
        """Return the function as it is."""
        self.unmarked.append(function)
        return function

    def graph_break(self) -> None:
        """Do nothing, as the real one where nothing is being compiled; optimizers call it."""

    def __getattr__(self, name: str) -> Any:
        self.withdraw()
        return getattr(importlib.import_module(_NAME), name)

    def withdraw(self) -> None:
        """Go, and forget what was not marked: torch keeps that as an attribute of the function."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        for function in self.unmarked:
            vars(function).pop("__dynamo_disable", None)
        self.unmarked.clear()
