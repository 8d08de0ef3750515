"""Which method, under which schedule: what the specification says, checked against what the method is."""

from __future__ import annotations

from petra_graph.errors import Problem, SpecError, shown, suggestion
from petra_graph.program.method import METHODS, Method
from petra_graph.spec.model import ClipSpec, MethodSpec, ScheduleName


def method_and_schedule(chosen: MethodSpec, clip: ClipSpec | None) -> tuple[Method, ScheduleName]:
    """Return the method and its schedule, the method's own where the specification names none.

    Raises:
        SpecError: no such method, a schedule under which it would be another method, or a global norm to clip by
            where no moment exists at which all stages' gradients are complete. Paths count from the whole.
    """
    method = METHODS.get(chosen.name)
    if method is None:
        message = f"unknown method {shown(chosen.name)}"
        raise SpecError(Problem(message=message, hint=suggestion(chosen.name, METHODS), path=("method", "name")))
    schedule = chosen.schedule or method.schedules[0]
    problems = []
    if schedule not in method.schedules:
        problems.append(
            Problem(
                message=f'method "{method.name}" runs under {" or ".join(method.schedules)} (got {shown(schedule)})',
                hint=f'leave out `schedule`, or set schedule = "{method.schedules[0]}"',
                path=("method", "schedule"),
            )
        )
    if clip is not None and clip.scope == "global" and schedule != "sequential":
        problems.append(
            Problem(
                message=f'scope = "global" needs a synchronous schedule (got {shown(schedule)})',
                hint="asynchronous stages update at different times, so no global norm exists when one steps; "
                'set scope = "stage", or method.schedule = "sequential"',
                path=("optimizer", "clip", "scope"),
            )
        )
    if problems:
        raise SpecError(problems)
    return method, schedule
