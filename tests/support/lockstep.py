"""Executors observed, and driven without a runtime: the global clock of PETRA equation (5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from petra_graph.executor.stage import StageExecutor
from petra_graph.program.channels import Edge


def recorded_gradients(executor: StageExecutor) -> list[dict[str, torch.Tensor]]:
    """The gradient at each update of a stage, as it trains."""
    seen: list[dict[str, torch.Tensor]] = []
    step = executor.updater.step

    def recording(norm: torch.Tensor | None = None) -> None:
        executor.updater.average()
        seen.append(
            {
                f"{name}/{key}": p.grad.clone()
                for name, module in executor.modules.items()
                for key, p in module.named_parameters()
                if p.grad is not None
            }
        )
        step(norm)

    executor.updater.step = recording  # type: ignore[method-assign]
    return seen


def run_by_clock(
    executors: Sequence[StageExecutor], data: Sequence[tuple[torch.Tensor, torch.Tensor]], accumulation: int
) -> None:
    """PETRA equation (5): at each tick every stage does one forward, then one backward, then its update.

    A stage's forward of m falls on tick m + D - d and its backward on tick m + D + d, where d is its distance from the
    head and D the source's.
    """
    distance = [(executor.program.depth - 1) // 2 for executor in executors]
    deepest = max(distance)
    edges: dict[tuple[str, Edge, int], Any] = {}
    done = [0] * len(executors)
    last = len(data) - 1
    for tick in range(len(data) + 2 * deepest):
        for executor, d in zip(executors, distance, strict=True):
            m = tick - (deepest - d)
            if not 0 <= m <= last:
                continue
            received = {
                edge: (data[m][0],) if edge.producer == "input" else edges.pop(("forward", edge, m))
                for edge in executor.program.receives
            }
            target = data[m][1] if executor.program.holds_head else None
            for edge, streams in executor.forward(m, received, target).sent.items():
                edges["forward", edge, m] = streams
        for index in reversed(range(len(executors))):
            executor, d = executors[index], distance[index]
            m = tick - (deepest + d)
            if not 0 <= m <= last:
                continue
            returned = {edge: edges.pop(("backward", edge, m)) for edge in executor.program.sends}
            for edge, message in executor.backward(m, returned).items():
                edges["backward", edge, m] = message
            done[index] += 1
            if done[index] % accumulation == 0 or m == last:
                executor.update()
    assert not edges
