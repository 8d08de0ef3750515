"""A sound plugin of each kind, of which tests break one promise, and the outcome that the kit gives."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from attrs import frozen
from petra_graph_conformance.examined_promises import examine

from petra_graph.plugins import (
    DataFacts,
    Declaration,
)


@frozen(kw_only=True)
class Rate:
    lr: float = 0.1


def declared(contract: type[Declaration], build: Callable[..., Any], **more: Any) -> Any:
    """Return a declaration whose code is this function."""
    module = sys.modules[__name__]
    name = f"build_{len(vars(module))}"
    setattr(module, name, build)
    return contract(summary="x", build=f"{__name__}:{name}", **more)


def broken(trial: Any, *leave_out: str) -> dict[str, str]:
    """Return what was found, by the broken promise."""
    return {one.promise: one.found for one in examine(trial, leave_out=leave_out).broken}


FACTS = DataFacts(shape=(2, 3), dtype="float32", classes=3)


class Split:
    """Samples whose noise follows from seed, epoch and index in training, from the index alone in the test."""

    augmented = True

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def fetch(self, indices: Any, *, seed: int, epoch: int) -> Any:
        samples = [self.sample(int(index), seed, epoch) for index in indices]
        return torch.stack(samples), self.fetch_targets(indices)

    def sample(self, index: int, seed: int, epoch: int) -> torch.Tensor:
        key = [seed, epoch, index] if self.augmented else [index]
        return torch.randn(2, 3, generator=torch.Generator().manual_seed(hash(tuple(key))))

    def fetch_targets(self, indices: Any) -> torch.Tensor:
        return torch.as_tensor([int(index) % 3 for index in indices])


class TestSplit(Split):
    __test__ = False
    augmented = False


class Data:
    facts = FACTS
    train: Any = Split(20)
    test: Any = TestSplit(8)

    def __init__(self, options: Any) -> None:
        pass
