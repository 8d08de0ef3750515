"""The base learning rate throughout."""

from __future__ import annotations

from collections.abc import Callable

from petra_graph.registry.contracts import Horizon, LrScheduleDeclaration, NoOptions


def constant(options: NoOptions, horizon: Horizon) -> Callable[[int], float]:  # noqa: ARG001  the contract's signature
    """Return the factor 1 for every update."""
    return lambda _: 1.0


CONSTANT = LrScheduleDeclaration(
    summary="The base learning rate throughout.",
    build="petra_graph.catalog.lr_schedules.constant:constant",
)
