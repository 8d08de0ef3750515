"""Training methods as points of one space: schedule, stashes of the forward, parameters of the backward, flush.

keeps      in the forward                  in the backward
nothing    no graph, nothing kept          reconstruct the input from the output, differentiate there
input      no graph, input to a FIFO       run again from the stored input, differentiate there
graph      graph kept                      differentiate the kept graph

uses       parameters of the backward
current    those of its own time; a kept graph has the activations of its forward, and the weights of its backward
stored     those of the forward, kept once for each distinct version; a reconstruction still uses the current ones
"""

from attrs import frozen

from petra_graph.spec.model import BufferedKeeps, Flush, Keeps, Kind, RequestedSchedule, RequestedScheduleName, Uses

Mode = tuple[Keeps, Uses]
"""What a node keeps between its passes, and the parameters that its backward uses."""


@frozen
class Method:
    """A training method: what nodes of each kind keep, and the schedules under which it is itself."""

    name: str
    schedules: tuple[RequestedScheduleName, ...]
    reversible: Keeps
    buffered: BufferedKeeps
    backward: Uses = "current"
    flush: Flush = "drain"

    @property
    def differentiates_old_graphs(self) -> bool:
        """Whether updates may come between the forward of a kept graph and its backward, which then has the current parameters."""
        return self.buffered == "graph" and "lockstep" in self.schedules

    @property
    def schedule(self) -> RequestedScheduleName:
        """The schedule where a specification names none: of full speed, that with the least delay."""
        return "1f1b" if "1f1b" in self.schedules else self.schedules[0]

    def keeps(self, kind: Kind) -> Keeps:
        return self.reversible if kind == "reversible" else self.buffered

    def mode(self, kind: Kind, asked: Keeps | None, *, delayed: bool, allow_stored: bool) -> Mode:
        """Return what a node keeps, and whose parameters its backward uses; `asked` is what the specification says of it (`method.keep`)."""
        # Where the method itself keeps no graphs, a delayed node only keeps its graph if the parameters of its forward are stored.
        if asked == "graph" and (not delayed or self.keeps(kind) == "graph"):
            return "graph", "current"
        if asked == "graph" and (allow_stored or self.backward == "stored"):
            return "graph", "stored"
        return self.keeps(kind) if asked is None or asked == "graph" else asked, self.backward


def is_delayed(depth: int, flush: Flush) -> bool:
    """Whether a stage's parameters may change between a micro-batch's forward and its backward."""
    return depth > 1 and flush == "drain"


def is_synchronous(schedule: RequestedSchedule, flush: Flush) -> bool:
    """Whether no parameter changes between a micro-batch's forward and its backward, in any stage."""
    depths_are_one = isinstance(schedule, tuple) and set(schedule) == {1}
    return schedule == "sequential" or depths_are_one or flush == "window"


_DELAYED: tuple[RequestedScheduleName, ...] = ("lockstep", "1f1b", "sequential", "auto")

METHODS = {
    method.name: method
    for method in (  # name, schedules, reversible nodes keep, buffered nodes keep
        # PETRA section 3.1, equations (1) to (3)
        Method("backprop", ("sequential",), "graph", "graph"),
        # Gomez et al. 2017, https://arxiv.org/abs/1707.04585; PETRA section 3.2, equation (4)
        Method("reversible-backprop", ("sequential",), "nothing", "input"),
        # Huang et al. 2019, https://arxiv.org/abs/1811.06965
        Method("gpipe", ("fill-drain",), "graph", "graph", flush="window"),
        # PipeDream-Flush: Narayanan et al. 2021, https://arxiv.org/abs/2006.09503
        Method("1f1b-flush", ("1f1b",), "graph", "graph", flush="window"),
        # Harlap et al. 2018, https://arxiv.org/abs/1806.03377; PETRA table 3, row 1
        Method("pipedream", _DELAYED, "input", "input", backward="stored"),
        # Xu et al. 2019, https://arxiv.org/abs/1909.02625; PETRA table 3, row 2
        Method("dsp", _DELAYED, "input", "input"),
        # PETRA table 3, row 3, and table 4, row 4
        Method("delayed-reconstructed", _DELAYED, "nothing", "input", backward="stored"),
        # PETRA algorithm 1; table 3, row 4
        Method("petra", _DELAYED, "nothing", "input"),
        # PACI, https://arxiv.org/abs/2606.07881
        Method("paci", _DELAYED, "graph", "graph"),
    )
}
