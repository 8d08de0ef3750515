"""Whether the methods of a plugin's object can be called as a run calls them, by their signatures: nothing is called, no torch imported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from attrs import frozen


@frozen
class ExpectedCall:
    """How a run calls a method."""

    method: str
    positional: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Return the signature, as an author writes it."""
        star = ("*",) if self.keywords else ()
        return f"{self.method}({', '.join((*self.positional, *star, *self.keywords))})"


def calls_of(contract: type, names: Iterable[str]) -> tuple[ExpectedCall, ...]:
    """Return the calls of a base class's methods, whose arguments are positional."""
    return tuple(ExpectedCall(name, tuple(inspect.signature(getattr(contract, name)).parameters)[1:]) for name in names)


def public_methods(contract: type) -> tuple[str, ...]:
    """Return the names of a class's methods, those of its base classes among them."""
    return tuple(name for name in dir(contract) if not name.startswith("_") and callable(getattr(contract, name)))


def names_in(cls: type) -> frozenset[str]:
    """Return the names that the functions of a class, and of its bases, read or write: attributes that an object may be given."""
    functions = (value for one in cls.__mro__ for value in vars(one).values() if inspect.isfunction(value))
    return frozenset(name for function in functions for name in function.__code__.co_names)


def call_faults(owner: Any, calls: Sequence[ExpectedCall]) -> Iterator[str]:
    """Yield why methods of an object, or of a class's objects, cannot be called; methods that it lacks are passed over."""
    for call in calls:
        method = getattr(owner, call.method, None)
        if isinstance(owner, type) and inspect.isfunction(inspect.getattr_static(owner, call.method, None)):
            method = partial(getattr(owner, call.method), None)  # in the place of self
        if callable(method):
            yield from function_faults(method, call, of=owner if isinstance(owner, type) else type(owner))


def function_faults(function: Callable[..., Any], call: ExpectedCall, of: type | None = None) -> Iterator[str]:
    """Yield why a function cannot be called; one whose signature is not known is passed over."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(*call.positional, **dict.fromkeys(call.keywords))
    except TypeError as error:
        written = signature.replace(return_annotation=signature.empty)
        name = f"{of.__name__}.{call.method}" if of is not None else call.method
        yield f"its {name}{written} cannot be called as {call}: {error}"
