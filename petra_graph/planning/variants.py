"""Variants of a specification's tables under another training method."""

from __future__ import annotations

from attrs import evolve

from petra_graph.spec.model import AskedName, MethodSpec, OptimizerSpec


def with_method(table: MethodSpec, name: str, schedule: AskedName) -> MethodSpec:
    """Return a table with another method and schedule, and without the keys that override a method's properties."""
    return evolve(table, name=name, schedule=schedule, reversible=None, buffered=None, backward=None, flush=None)


def without_global_clip(table: OptimizerSpec) -> OptimizerSpec:
    """Return a table that clips by stage, which every method allows; one norm over all stages needs synchronous ones."""
    return table if table.clip is None else evolve(table, clip=evolve(table.clip, scope="stage"))
