"""A context in which torch does not import its compiler, for measurements on the meta device and trials before a run; no run trains inside it.

Torch marks functions that its compiler must skip, and imports `torch._dynamo` for the mark when such a function is first called:
the decompositions of the meta device are among them, and the import takes longer than all measurements of a plan. No code is compiled here, so
the mark may be left out; it is possible again afterwards.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_NAME = "torch._dynamo"


@contextmanager
def uncompiled() -> Iterator[None]:
    """Turn marks off inside the context, unless the compiler is already imported."""
    if _NAME in sys.modules:
        yield
        return
    stand_in = _StandIn(_NAME)
    try:
        yield
    finally:
        stand_in.withdraw()


class _StandIn(ModuleType):
    """A module in the compiler's place that marks nothing; any other attribute comes from the real compiler."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        sys.modules[name] = self
        self.unmarked: list[Callable[..., Any]] = []
        # Fake tensors read the compiler's settings, a module that needs nothing of it.
        self.__path__ = [str(Path(torch.__file__).with_name("_dynamo"))]
        self.config = importlib.import_module(f"{_NAME}.config")
        del self.__path__

    def disable(self, function: Any = None, *recursive: bool, **named: Any) -> Any:
        """Return the function without a mark; torch itself gives a function and a number alone: any other mark is an author's, and stays."""
        if function is None or not recursive or "reason" in named:
            return self.__getattr__("disable")(function, *recursive, **named)
        self.unmarked.append(function)
        return function

    def graph_break(self) -> None:
        """Do nothing, as the real function outside compilation; torch's optimizers call it."""

    def __getattr__(self, name: str) -> Any:
        # `inspect` asks every module for its file.
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        self.withdraw()
        return getattr(importlib.import_module(_NAME), name)

    def withdraw(self) -> None:
        """Give the compiler its place back, and torch its marks: it stores a mark as an attribute of the function."""
        if sys.modules.get(_NAME) is self:
            del sys.modules[_NAME]
        for function in self.unmarked:
            vars(function).pop("__dynamo_disable", None)
        self.unmarked.clear()
