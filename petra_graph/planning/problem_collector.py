"""Problems of several steps, collected so that all of them are raised at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

import attrs
from attrs import field, frozen

from petra_graph.errors import NoFeasiblePlan, Path, PluginError, Problem, SpecError
from petra_graph.spec.load_spec import LoadedSpec

P = ParamSpec("P")
T = TypeVar("T")


@frozen(kw_only=True)
class ProblemCollector:
    """Problems of the specification with problems of plugins, which end in different exit codes."""

    loaded: LoadedSpec
    """Locates the problems in its files."""
    path: Path = ()
    """Where the paths of the problems begin."""
    wrong: list[Problem] = field(factory=list)
    broken: list[Problem] = field(factory=list)

    def at(self, *path: str | int) -> ProblemCollector:
        """Return the same collector for the problems of a part of the specification, whose paths begin there."""
        return attrs.evolve(self, path=path)

    @property
    def any(self) -> bool:
        return bool(self.wrong or self.broken)

    def attempt(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """Return the value of a step, or None where the step raised SpecError or PluginError.

        Raises:
            NoFeasiblePlan: the step did, and nothing else is wrong; located.
        """
        try:
            return step(*args, **kwargs)
        except SpecError as error:
            self.add(error.problems)
        except PluginError as error:
            self.add(error.problems, of_plugin=True)
        except NoFeasiblePlan as error:
            self.raise_any()
            raise NoFeasiblePlan(self.loaded.located(map(self._under_path, error.problems))) from None
        return None

    def require(self, step: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the value of the last step, or raise all problems.

        Raises:
            SpecError, PluginError: as `raise_any`.
        """
        value = self.attempt(step, *args, **kwargs)
        self.raise_any()
        return value  # type: ignore[return-value]  # A step that returned None has done so without an error.

    def add(self, problems: Iterable[Problem], *, of_plugin: bool = False) -> None:
        (self.broken if of_plugin else self.wrong).extend(map(self._under_path, problems))

    def raise_any(self) -> None:
        """Raise all problems, located and in reading order, and what is wrong with a plugin once; return where there are none.

        Raises:
            SpecError: the specification is wrong, and perhaps plugins are too.
            PluginError: only plugins are at fault.
        """
        if self.any:
            kind = SpecError if self.wrong else PluginError
            raise kind(self.loaded.located([*self.wrong, *self.broken]))

    def _under_path(self, problem: Problem) -> Problem:
        return problem if problem.where is not None else attrs.evolve(problem, path=(*self.path, *problem.path))
