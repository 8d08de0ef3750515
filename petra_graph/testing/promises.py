"""A plugin with its options, the promises that are checked of it, and what each check finds: kept, broken, or not tried."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, NamedTuple, Self
from unittest import SkipTest

import numpy as np
import torch
from attrs import frozen
from torch import Tensor

from petra_graph.errors import SpecError
from petra_graph.measure.without_compiler import uncompiled
from petra_graph.plugins.author_code import author_line
from petra_graph.plugins.contract import Plugin, PluginKind, plugin_of

ROUNDINGS = 2**12
"""Units of rounding that a result may be off by: sums over a few thousand terms, in another order."""


class BrokenPromise(AssertionError):
    """What was found, and is not as training needs it."""


class NotTried(SkipTest):
    """Why a check says nothing of this plugin; a test is skipped."""


@frozen(kw_only=True)
class AnyTrial:
    """A plugin of a kind, with its options and the seed of parameters and samples."""

    kind: ClassVar[PluginKind]
    checks: ClassVar[Sequence[Callable[[Any], None]]]
    """Each raises `BrokenPromise` or `NotTried`; its name is that of the promise: "state dictionary" of check_state_dictionary."""
    plugin: Plugin
    seed: int = 0

    @classmethod
    def of(cls, given: Any, options: Any = None, **more: Any) -> Self:
        """Make a trial of code or of a plugin, with its `options` table; None: those that it was read with, or no keys."""
        plugin = given
        if not isinstance(given, Plugin):
            name = getattr(given, "__qualname__", type(given).__name__)
            plugin = plugin_of(cls.kind, f"{getattr(given, '__module__', '')}:{name}", given)
        if options is not None or plugin.options is None:
            plugin, problems = plugin.read(options or {}, ("options",))
            if problems:
                raise SpecError(problems)
        return cls(plugin=plugin, **more)


class Outcome(NamedTuple):
    """Of one check."""

    check: str
    status: Literal["kept", "broken", "not tried"]
    found: str = ""


def outcome_of(check: Callable[[Any], None], trial: AnyTrial) -> Outcome:
    """Make one check; what a plugin's code raises breaks it."""
    name = check.__name__.removeprefix("check_").replace("_", " ")
    try:
        with uncompiled():
            check(trial)
    except NotTried as reason:
        return Outcome(name, "not tried", str(reason))
    except BrokenPromise as broken:
        return Outcome(name, "broken", str(broken))
    except Exception as error:  # noqa: BLE001  code of a plugin may raise anything
        at = author_line(error)
        said = f"it raised {type(error).__name__}{f' at {at}' if at else ''}: {error}"
        return Outcome(name, "broken", said)
    return Outcome(name, "kept")


def expect(kept: bool, found: str) -> None:
    if not kept:
        raise BrokenPromise(found)


def expect_close(
    message: str, found: Sequence[Tensor], expected: Sequence[Tensor], dtype: torch.dtype, roundings: int = ROUNDINGS
) -> None:
    """Compare tensors, |found - expected| / |expected| with norms over all, in units of rounding of a type; absolutely, if zero is expected."""
    if not all(bool(one.isfinite().all()) for one in expected):
        raise NotTried("it computes values that are not finite of what it was given")
    pairs = [(one.detach().double(), other.detach().double()) for one, other in zip(found, expected, strict=True)]
    difference = math.hypot(*(float((one - other).norm()) for one, other in pairs))
    error = difference / (math.hypot(*(float(other.norm()) for _, other in pairs)) or 1.0)
    allowed = roundings * torch.finfo(dtype).eps
    # Not a number compares as false.
    expect(error <= allowed, f"{message}: relative error {error:.1e} in {dtype}, allowed {allowed:.1e}")


def equal(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(map(torch.equal, one, other))


def generator_states() -> Mapping[str, str]:
    """Return the states of the global generators by name, to be compared."""
    of_torch, of_numpy = torch.get_rng_state().numpy().tobytes(), np.random.get_state()  # noqa: NPY002
    return {"torch": repr(of_torch), "numpy": repr(of_numpy), "Python": repr(random.getstate())}


@contextmanager
def generators_stay(found: str) -> Iterator[None]:
    """Expect that the global generators stand where they stood; a message ends with the names of those that moved."""
    before = generator_states()
    yield
    moved = [name for name, state in generator_states().items() if state != before[name]]
    expect(not moved, f"{found} the global generator of {' and '.join(moved)}")
