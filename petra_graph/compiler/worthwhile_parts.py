"""The parts of each stage's backward that are operations of their own, where the spec leaves them open: by what they cost.

    FRIW    R, I and W take at most `TOLERATED` more than a whole backward
    FRB     else, if R and B do
    FB      else; and where a reversible node cannot return its input ahead of the gradient without more work

Decision: a data sheet does not know what it costs to split a backward. Where no profile has timed the parts, their sum is taken as
the whole, so all that can be split is.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from petra_graph.compiler.planner_inputs import PlannerInputs
from petra_graph.program.stage_program import StageProgram
from petra_graph.spec.model import Word

TOLERATED = 0.03
"""Of a whole backward; the head's is with its forward."""
_SPLIT: tuple[Word, ...] = ("FRIW", "FRB")


def worthwhile_words(inputs: PlannerInputs, programs: Sequence[StageProgram]) -> tuple[Word, ...]:
    """Return a word for each stage, for its parts; the forward comes first in all of them."""
    return tuple(_word(inputs, program) for program in programs)


def _word(inputs: PlannerInputs, program: StageProgram) -> Word:
    reconstructing = (segment for segment in program.segments if segment.keeps == "nothing" and segment.kind != "head")
    if not all(inputs.costs.nodes[name].reconstructs_ahead for segment in reconstructing for name in segment.nodes):
        return "FB"
    whole = inputs.seconds(evolve(program, word="FB"))
    tolerated = TOLERATED * (whole.backward + (whole.forward if program.holds_head else 0.0))
    for word in _SPLIT:
        parts = inputs.seconds(evolve(program, word=word))
        if parts.forward + parts.backward <= whole.forward + whole.backward + tolerated:
            return word
    return "FB"
