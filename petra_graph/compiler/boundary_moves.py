"""Moving stages between neighbouring devices until the memory model accepts: where no cut of the solver fits.

    d0: 1 2 3 | d1: 4 5 6     -->     d0: 1 2 | d1: 3 4 5 6     or     d0: 1 2 3 4 | d1: 5 6

The solver adds up bytes node by node, and the memory model executes the stages of a device together, so near the tightest
limits the two rank placements differently. Each step takes the move after which the fullest device, as a share of
its limit, is least full by the memory model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, pairwise

from attrs import evolve

from petra_graph.program.placement import Stage

Stages = tuple[Stage, ...]
_EXECUTIONS = 32
"""Placements that are tried, at most."""
_MOST_STAGES = 64
"""With more stages, executing them so often would take minutes."""
_NEAR = 1.25
"""Share of its limit above which a device is too full for moves of single stages."""


def moved_until_fits(stages: Stages, fullest: Callable[[Stages], float]) -> Stages | None:
    """Return stages that fit, None where none were found.

    Args:
        stages: consecutive ones on each device.
        fullest: returns the largest share of its limit that a device would hold; up to 1 fits.
    """
    if len(stages) > _MOST_STAGES:
        return None
    seen, share, executions = {_hosts(stages)}, fullest(stages), 0
    if share > _NEAR:
        return None
    while share > 1:
        tried: list[tuple[float, Stages]] = []
        for other in _moves(stages):
            if _hosts(other) not in seen and executions < _EXECUTIONS:
                seen.add(_hosts(other))
                executions += 1
                tried.append((fullest(other), other))
        if not tried:
            return None
        share, stages = min(tried, key=lambda pair: pair[0])
    return stages


def _hosts(stages: Stages) -> tuple[str, ...]:
    return tuple(stage.device for stage in stages)


def _moves(stages: Stages) -> Iterator[Stages]:
    """Yield the placements in which one stage at the end of a device's has gone to the neighbouring device."""
    runs = [(device, len(list(run))) for device, run in groupby(_hosts(stages))]
    end = 0
    for (device, count), (following, others) in pairwise(runs):
        end += count
        if count > 1:
            yield _with_host(stages, end - 1, following)
        if others > 1:
            yield _with_host(stages, end, device)


def _with_host(stages: Sequence[Stage], index: int, device: str) -> Stages:
    return (*stages[:index], evolve(stages[index], device=device), *stages[index + 1 :])
