"""All promises of a block."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Unpack

from petra_graph.blocks import Block
from petra_graph.registry.contracts import BlockDeclaration
from petra_graph.testing.conformance import conclude, examine
from petra_graph.testing.report import Report
from petra_graph.testing.trial import Settings, Trial


def check_block(
    block: type[Block] | BlockDeclaration,
    inputs: Sequence[Sequence[int]],
    options: Mapping[str, Any] | object = None,
    *,
    leave_out: Collection[str] = (),
    **settings: Unpack[Settings],
) -> Report:
    """Check all that training relies on.

    Args:
        block: as in `Trial.of`, with `inputs`, `options` and the other settings.
        inputs: shapes of the streams that it reads, without the batch dimension.
        options: its `options` table; None: no keys.
        leave_out: names of promises that the block does not make, as in `PROMISES["block"]`.
        settings: `batch`, `draw` or `seed` of the trial.

    Returns:
        the outcome of every promise.

    Raises:
        AssertionError: the promises that are broken, by how much, and what to do; its `report` has them as values.
        SpecError: the block's options class refuses the options.
        ValueError: `leave_out` names no promise.
    """
    return conclude(examine(Trial.of(block, inputs, options, **settings), leave_out=leave_out))
