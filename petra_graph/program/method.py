"""Training methods as points of one space: a schedule, what nodes keep, whose parameters the backward uses, when to flush.

    keeps      in the forward                  in the backward
    nothing    no graph, nothing kept          reconstruct the input from the output, differentiate there
    input      no graph, input to a FIFO       run again from the stored input, differentiate there
    graph      graph kept                      differentiate the kept graph

    uses       parameters of the backward
    current    those of its own time; a kept graph then needs that nothing is updated between the passes
    stored     those of the forward, kept once for each distinct version; a reconstruction still uses the current ones

    method                   schedule        reversible  buffered  backward  flush
    backprop                 sequential      graph       graph     current
    reversible-backprop      sequential      nothing     input     current
    gpipe                    fill-drain      graph       graph     current   window
    1f1b-flush               1f1b            graph       graph     current   window
    pipedream                lockstep, 1f1b  input       input     stored
    dsp                      lockstep, 1f1b  input       input     current
    delayed-reconstructed    lockstep, 1f1b  nothing     input     stored
    petra                    lockstep, 1f1b  nothing     input     current

All delayed methods also run under `sequential`, a list of depths, or `auto`, which finds one.
"""

from __future__ import annotations

from attrs import frozen

from petra_graph.spec.model import AskedName, AskedSchedule, BufferedKeeps, Flush, Keeps, Kind, Uses


@frozen(kw_only=True)
class Method:
    """A training method."""

    name: str
    schedules: tuple[AskedName, ...]
    """Schedules under which the method is itself; the first is the default."""
    reversible: Keeps
    """What reversible nodes keep."""
    buffered: BufferedKeeps
    """What buffered nodes keep."""
    backward: Uses = "current"
    flush: Flush = "drain"
    source: str
    """Where it is described."""

    def keeps(self, kind: Kind) -> Keeps:
        """Return what a node of `kind` keeps; a head differentiates at once and keeps its input's gradient alone."""
        return self.reversible if kind == "reversible" else self.buffered


def is_synchronous(schedule: AskedSchedule, flush: Flush) -> bool:
    """Whether no parameter changes between a micro-batch's forward and its backward, in any stage."""
    depths_are_one = isinstance(schedule, tuple) and set(schedule) == {1}
    return schedule == "sequential" or depths_are_one or flush == "window"


_DELAYED: tuple[AskedName, ...] = ("lockstep", "1f1b", "sequential", "auto")

METHODS = {
    method.name: method
    for method in (
        Method(
            name="backprop",
            schedules=("sequential",),
            reversible="graph",
            buffered="graph",
            source="PETRA section 3.1, equations (1) to (3)",
        ),
        Method(
            name="reversible-backprop",
            schedules=("sequential",),
            reversible="nothing",
            buffered="input",
            source="Gomez et al. 2017, https://arxiv.org/abs/1707.04585; PETRA section 3.2, equation (4)",
        ),
        Method(
            name="gpipe",
            schedules=("fill-drain",),
            reversible="graph",
            buffered="graph",
            flush="window",
            source="Huang et al. 2019, https://arxiv.org/abs/1811.06965",
        ),
        Method(
            name="1f1b-flush",
            schedules=("1f1b",),
            reversible="graph",
            buffered="graph",
            flush="window",
            source="Narayanan et al. 2021, https://arxiv.org/abs/2006.09503 (PipeDream-Flush)",
        ),
        Method(
            name="pipedream",
            schedules=_DELAYED,
            reversible="input",
            buffered="input",
            backward="stored",
            source="Harlap et al. 2018, https://arxiv.org/abs/1806.03377; PETRA table 3, row 1",
        ),
        Method(
            name="dsp",
            schedules=_DELAYED,
            reversible="input",
            buffered="input",
            source="Xu et al. 2019, https://arxiv.org/abs/1909.02625; PETRA table 3, row 2",
        ),
        Method(
            name="delayed-reconstructed",
            schedules=_DELAYED,
            reversible="nothing",
            buffered="input",
            backward="stored",
            source="PETRA table 3, row 3, and table 4, row 4",
        ),
        Method(
            name="petra",
            schedules=_DELAYED,
            reversible="nothing",
            buffered="input",
            source="PETRA algorithm 1; table 3, row 4",
        ),
    )
}
