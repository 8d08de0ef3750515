"""The first passes of every node, observed for what would make a recomputation differ from its forward.

    random numbers of Python's `random` or of numpy's global generator    no key fixes them: each pass draws others
    a buffer, a parameter or a number of a module that changes            both passes would change it, where running
    in a pass whose statistics are frozen                                 statistics change once a micro-batch

Neither raises an error by itself, and both spoil gradients silently, so the first passes look for them. A number may be made or set
in the first pass of all, and must then stay: `functools.cached_property` is a constant. Later passes are not observed, and cost nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from attrs import define, field
from torch import nn

from petra_graph.errors import RunFailed
from petra_graph.kinds.generators import drawn_without_key, states_without_key

PASSES = 2
"""Passes of each node that are observed."""
_DRAW = "draw from torch's generators, which have a seed of their own for every node and micro-batch"
_MAKE = "make all parameters and buffers in __init__, and write to them in place"
LEAVE = (
    "leave parameters to the optimizer: normalise a copy of them in forward, as in F.normalize(self.weight); "
    "for nn.Embedding(max_norm=...), scale the rows that it returns"
)
"""What to do about a parameter that a forward writes to."""
_FROZEN = (
    "a forward and its recomputation would both change it: give the module that holds it the attribute `track_running_stats`, "
    "and change it only while that is true; if it decides no output, run.self_check = false"
)


@define(eq=False)
class FirstPasses:
    """Observes the first passes of the nodes of one stage."""

    passes: int = PASSES
    """Of each node; 0: none is observed (`run.self_check = false`)."""
    drawn: set[str] = field(factory=set, init=False)
    """Nodes whose random numbers are observed no more."""
    _drawing: Counter[str] = field(factory=Counter, init=False)
    """Passes that were observed for their random numbers, by node."""
    _drew: dict[str, Counter[str]] = field(factory=lambda: defaultdict(Counter), init=False)
    """Passes in which a generator moved, by generator, then by node."""
    _frozen: Counter[str] = field(factory=Counter, init=False)
    """Passes that were observed for what they change, by node."""

    @contextmanager
    def drawing(self, name: str) -> Iterator[None]:
        """Observe the random numbers of a pass of node `name`, if it is among the first.

        Raises:
            RunFailed: a generator without a key has moved in every pass: other threads may draw from it now and then.
        """
        if name in self.drawn or not self.passes:
            yield
            return
        before = states_without_key()
        yield
        self._drawing[name] += 1
        if self._drawing[name] == self.passes:
            self.drawn.add(name)
        for source in drawn_without_key(before):
            self._drew[source][name] += 1
            if self._drew[source][name] >= PASSES:
                raise RunFailed(f'node "{name}" draws random numbers from {source}', hint=_DRAW)

    def watch(self, modules: Iterable[str]) -> bool:
        """Whether `frozen` observes the next pass of any of these nodes."""
        return any(self._frozen[name] < self.passes for name in modules)

    def frozen(self, modules: Mapping[str, nn.Module]) -> AbstractContextManager[None]:
        """Return a context that observes a pass of nodes, by name, whose statistics are frozen.

        Raises:
            RunFailed: a module has changed.
        """
        observed = {name: module for name, module in modules.items() if self._frozen[name] < self.passes}
        return self._observed(observed) if observed else nullcontext()

    @contextmanager
    def _observed(self, observed: Mapping[str, nn.Module]) -> Iterator[None]:
        before = {name: _state(module) for name, module in observed.items()}
        yield
        for name, module in observed.items():
            first = not self._frozen[name]
            self._frozen[name] += 1
            tensors, numbers = _state(module)
            tensors_before, numbers_before = before[name]
            parameters = dict(module.named_parameters(remove_duplicate=False))
            held = {key: one[0] for key, one in tensors_before.items()}
            if made := [
                key
                for key, one in tensors.items()
                if held.get(key) != one[0] and (key in parameters or key not in held)
            ]:
                named = ", ".join(f'"{key}"' for key in made)
                kind = "parameter" if made[0] in parameters else "buffer"
                raise RunFailed(f'node "{name}" makes the {kind} {named} in a forward, after its optimizer', hint=_MAKE)
            written = [key for key in _changed(tensors_before, tensors) if key in parameters]
            if written:
                named = ", ".join(f'"{key}"' for key in sorted(written))
                message = (
                    f'node "{name}" changes the parameter {named} in a forward, so its recomputation finds other values'
                )
                raise RunFailed(message, hint=LEAVE)
            changed = _changed(tensors_before, tensors) + ([] if first else _changed(numbers_before, numbers))
            if changed:
                named = ", ".join(f'"{key}"' for key in sorted(changed))
                message = f'node "{name}" changes {named} in a forward whose running statistics are frozen'
                raise RunFailed(message, hint=_FROZEN)


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    return [key for key in before.keys() | after.keys() if before.get(key) != after.get(key)]


def _state(module: nn.Module) -> tuple[dict[str, tuple[int, int | None]], dict[str, float]]:
    """Return what tells whether a module's tensors, and its numbers, are as before: an in-place change moves a tensor's version."""
    tensors: dict[str, tuple[int, int | None]] = {}
    numbers: dict[str, float] = {}
    for prefix, part in module.named_modules():
        dot = "." if prefix else ""
        for held in (part._parameters, part._buffers):  # noqa: SLF001  named_parameters would leave out shared ones
            for key, tensor in held.items():
                version = None if tensor is None else tensor._version  # noqa: SLF001  torch has no public name for it
                tensors[f"{prefix}{dot}{key}"] = id(tensor), version
        numbers |= {f"{prefix}{dot}{key}": value for key, value in vars(part).items() if type(value) in (int, float)}
    return tensors, numbers
