"""Everything that is wrong, gathered over several steps, so that it is told at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import attrs
from attrs import field, frozen

from petra_graph.errors import Path, PluginError, Problem, SpecError
from petra_graph.spec.load import LoadedSpec

T = TypeVar("T")


@frozen(kw_only=True)
class ProblemCollector:
    """Problems of the specification, and problems of plugins, which end in different exit codes."""

    wrong: list[Problem] = field(factory=list)
    broken: list[Problem] = field(factory=list)

    def attempt(self, action: Callable[[], T], path: Path, *, inside: bool = False) -> T | None:
        """Do one step.

        Args:
            action: may raise SpecError or PluginError.
            path: where in the specification its problems are.
            inside: its problems' own paths count from `path`.

        Returns:
            what the action returns, or None where it raised.
        """
        try:
            return action()
        except SpecError as error:
            self.wrong.extend(_moved(problem, path, inside=inside) for problem in error.problems)
        except PluginError as error:
            self.broken.extend(_moved(problem, path, inside=inside) for problem in error.problems)
        return None

    def add(self, problems: Iterable[Problem]) -> None:
        """Add problems of the specification."""
        self.wrong.extend(problems)

    def raise_any(self, loaded: LoadedSpec) -> None:
        """Raise all of it, located and in reading order; nothing where nothing was found.

        Raises:
            SpecError: the specification is wrong, and perhaps plugins are too.
            PluginError: only plugins are at fault.
        """
        self._raise(loaded.located([*self.wrong, *self.broken]))

    def raise_unlocated(self) -> None:
        """Raise all of it with paths alone, for a caller that locates.

        Raises:
            SpecError: the specification is wrong, and perhaps plugins are too.
            PluginError: only plugins are at fault.
        """
        self._raise((*self.wrong, *self.broken))

    def _raise(self, problems: tuple[Problem, ...]) -> None:
        if self.wrong:
            raise SpecError(problems)
        if self.broken:
            raise PluginError(problems)


def _moved(problem: Problem, path: Path, *, inside: bool) -> Problem:
    if problem.where is not None:
        return problem
    return attrs.evolve(problem, path=(*path, *problem.path) if inside else path)
