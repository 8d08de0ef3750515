"""How stages read received messages: in their slots, or as copies where something keeps what a stage has received.

A channel has few slots, and a slot is taken for as long as a tensor over it lives. A block, a hook or a reference cycle that
keeps tensors of earlier micro-batches would take them all, and the run would wait for ever. So what a stage has received is
observed: it must be gone when the stage begins its next operation of that kind. The first messages of every kind are copied into memory of
their own, since a slot that is kept cannot be had back; those that follow are read in place, unless one of them was kept.
"""

from __future__ import annotations

import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Literal

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from petra_graph.executor.encoded_tensors import EncodedTensors, copied, payload
from petra_graph.executor.stage_executor import StageExecutor

Kind = Literal["forward", "backward", "evaluation"]
TRIALS = 2
"""Operations of a stage, of each kind, whose messages are copied to see whether something keeps them."""


class ReceivedMessages:
    """Decides for each stage of a process, and each kind of its operations, how messages are read."""

    def __init__(self, executors: Iterable[StageExecutor]) -> None:
        self._nodes = {executor.program.index: ", ".join(executor.program.nodes) for executor in executors}
        self._trials: Counter[tuple[int, Kind]] = Counter()
        self._kept: set[tuple[int, Kind]] = set()
        self._handed: dict[tuple[int, Kind], list[StorageWeakRef]] = defaultdict(list)

    def hand(self, stage: int, kind: Kind, message: EncodedTensors) -> EncodedTensors:
        """Return a message that lies in a slot as a stage is to read it, and observe its memory."""
        if (stage, kind) in self._kept:
            return copied(message)
        handed = copied(message) if self._trials[stage, kind] < TRIALS else message
        self._handed[stage, kind] += [_observed(payload(value)) for value in handed]
        return handed

    def expect_gone(self, stage: int, kind: Kind) -> None:
        """Expect that nothing is left of what a stage received for its operation before of this kind, else copy from now on."""
        handed = self._handed.pop((stage, kind), None)
        if handed is None:
            return
        self._trials[stage, kind] += 1
        if all(map(_gone, handed)):
            return
        self._kept.add((stage, kind))
        message = (
            f"something keeps what stage {stage} ({self._nodes[stage]}) has received for its {kind}, a block, a hook or a cycle of "
            "references: its messages are copied from now on, which costs their bytes once more"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def _observed(tensor: Tensor) -> StorageWeakRef:
    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _gone(memory: StorageWeakRef) -> bool:
    return bool(memory.expired())  # type: ignore[no-untyped-call]
