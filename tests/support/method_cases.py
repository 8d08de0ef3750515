"""Methods on the test pipelines: the rows that hold for every method, written out.

A row is a graph, its stages, the accumulation, a method and its schedule. `test_every_method_is_in_the_list` finds a method that is in none.
"""

from typing import Any, Literal

from attrs import frozen

from petra_graph.program.method import METHODS, is_synchronous
from petra_graph.spec.model import ScheduleName
from tests.support.pipelines import GRAPHS, SHAPES, Pipeline, pipeline

Stages = Literal["one a node", "pairs", "one"]
PAIRS = {
    "revnet": (("stem", "a0"), ("a1", "down"), ("b0", "head")),
    "chain": (("stem",), ("rev0", "rev1"), ("rev2", "head")),
    "skip": (("stem", "rev0"), ("rev1", "join"), ("rev2", "head")),
}


@frozen
class MethodCase:
    """A method under a schedule on one of the test pipelines' graphs."""

    graph: str
    stages: Stages
    accumulation: int
    method: str
    schedule: ScheduleName

    @property
    def synchronous(self) -> bool:
        """Whether no parameter changes between a micro-batch's forward and its backward."""
        return is_synchronous(self.schedule, METHODS[self.method].flush)

    @property
    def settings(self) -> dict[str, Any]:
        """As `pipeline` takes them."""
        names = tuple(table.name for table in GRAPHS[self.graph])
        stages = {"one a node": "per-block", "one": (names,)}.get(self.stages) or PAIRS[self.graph]
        return {"method": self.method, "schedule": self.schedule, "accumulation": self.accumulation, "stages": stages}

    def __str__(self) -> str:
        """Write for the name of a test."""
        return f"{self.graph}, stages {self.stages}, k={self.accumulation}, {self.method} {self.schedule}"

    def built(self, **settings: Any) -> Pipeline:
        """Return the case's pipeline."""
        built: Pipeline = pipeline(GRAPHS[self.graph], SHAPES[self.graph], **self.settings, **settings)
        return built


CASES = tuple(
    MethodCase(*row)
    for row in (
        ("revnet", "one a node", 1, "backprop", "sequential"),
        ("revnet", "one a node", 1, "reversible-backprop", "sequential"),
        ("revnet", "pairs", 3, "gpipe", "fill-drain"),
        ("revnet", "one a node", 3, "1f1b-flush", "1f1b"),
        ("revnet", "one a node", 1, "pipedream", "lockstep"),
        ("revnet", "one a node", 3, "pipedream", "1f1b"),
        ("revnet", "one a node", 1, "dsp", "1f1b"),
        ("revnet", "one a node", 1, "delayed-reconstructed", "lockstep"),
        ("revnet", "one a node", 1, "petra", "lockstep"),
        ("revnet", "pairs", 1, "paci", "1f1b"),
        ("chain", "one a node", 1, "backprop", "sequential"),
        ("chain", "one a node", 3, "delayed-reconstructed", "sequential"),
        ("chain", "pairs", 3, "paci", "lockstep"),
        ("skip", "one a node", 4, "dsp", "sequential"),
        ("skip", "pairs", 3, "paci", "sequential"),
        ("branches", "one a node", 1, "paci", "lockstep"),
        ("branches", "one a node", 1, "petra", "1f1b"),
    )
)
EXACT = tuple(case for case in CASES if case.synchronous)
"""Nothing is updated between forward and backward, so gradients are exact."""
DELAYED = tuple(case for case in CASES if not case.synchronous)
