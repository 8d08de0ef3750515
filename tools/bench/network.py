"""What the benchmarks share: a spec's stages in this process, and the same network as a plain module under autograd."""

from __future__ import annotations

import copy
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from petra_graph.blocks import Block, Streams
from petra_graph.blocks.block_kinds import parameter_groups
from petra_graph.executor.numerics import NumericsContext
from petra_graph.graph.node_graph import INPUT
from petra_graph.record.run_directory import environment
from petra_graph.runtime.loop import Scheduler
from petra_graph.runtime.stage_io import MicroBatch
from petra_graph.training.prepare import Prepared

RESULTS = Path(__file__).parent / "results"
Train = Callable[[], object]
Way = TypeVar("Way")
Measured = TypeVar("Measured")


class Plain(nn.Module):
    """Nodes as one module under autograd, with a copy of their parameters: all of a network, or a stage of torch's pipelines."""

    def __init__(self, ready: Prepared, device: torch.device, nodes: Sequence[str] = ()) -> None:
        super().__init__()
        self.graph = ready.network.graph
        self.nodes = nodes or self.graph.order
        self.numerics = NumericsContext(device=device, precision=ready.spec.precision, seed=0)
        self.checkpointed = False
        """Whether each node keeps its input alone, and runs again in the backward."""
        built = {name: block for executor in ready.executors() for name, block in executor.modules.items()}
        self.blocks = nn.ModuleDict({_key(name): copy.deepcopy(built[name]) for name in self.nodes})
        for part in list(self.blocks.modules()):
            for name, layers in part.named_children():
                if isinstance(layers, nn.Sequential):  # as a user writes it
                    setattr(part, name, nn.Sequential(*layers))

    def forward(self, *streams: Tensor) -> Any:
        """Map samples as the data has them, or a stage's streams, to what the last node returns."""
        first = (self.numerics.prepare(*streams),) if self.nodes[0] == self.graph.order[0] else streams
        made: dict[str, Streams] = {INPUT: self.numerics.canonicalize(first)}
        for name in self.nodes:
            inputs = [one for producer in self.graph.nodes[name].inputs for one in made.get(producer, made[INPUT])]
            # Dense streams, as the runtime has them: convolutions of the views that a split gives are slower.
            block = self.blocks[_key(name)]
            outputs = checkpoint(block, *inputs, use_reentrant=False) if self.checkpointed else block(*inputs)
            made[name] = self.numerics.canonicalize(outputs)
        last = made[self.nodes[-1]]
        return last if len(last) > 1 else last[0]


class PlainTraining:
    """Trains the plain module, an update a micro-batch."""

    def __init__(self, ready: Prepared, data: Sequence[MicroBatch], device: torch.device) -> None:
        self.module, self.loss = Plain(ready, device), loss_of(ready)
        self.step = update_of(ready, self.module)
        self.data = [(samples.to(device), target.to(device)) for samples, target in data]

    def train(self) -> None:
        for samples, target in self.data:
            torch.autograd.backward(self.loss(self.module(samples), target))
            self.step()

    def train_checkpointed(self) -> None:
        self.module.checkpointed = True
        self.train()
        self.module.checkpointed = False

    def forward_without_graph(self) -> None:
        with torch.no_grad():
            for samples, target in self.data:
                self.loss(self.module(samples), target)


def trainer(runtime: Scheduler, data: Sequence[MicroBatch]) -> Train:
    """Return a training of a runtime on some micro-batches, without metrics, as the plain module has none."""
    return lambda: runtime.train(data, range(len(data)), None)


def loss_of(ready: Prepared) -> Callable[[Tensor, Tensor], Tensor]:
    """Build its loss."""
    loss: Callable[[Tensor, Tensor], Tensor] = ready.checked.loss.make()
    return loss


def update_of(ready: Prepared, module: Plain) -> Callable[[], None]:
    """Return an update of a plain module by the spec's optimizer."""
    chosen = ready.checked.optimizer
    groups = parameter_groups([cast(Block, block) for block in module.blocks.values()])
    optimizer = chosen.make(groups)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def in_turns(
    ways: Mapping[str, Way], rounds: int, measure: Callable[[Way], Measured], warm_up: int = 1
) -> dict[str, list[Measured]]:
    """Return what was measured of each way in each round; rounds before warm up."""
    found: dict[str, list[Measured]] = {name: [] for name in ways}
    for turn in range(-warm_up, rounds):
        for name, way in ways.items():
            taken = measure(way)
            if turn >= 0:
                found[name].append(taken)
    return found


def ratio(own: Sequence[float], other: Sequence[float]) -> float:
    """Return how much longer one takes than another, in the same round."""
    return statistics.median(one / two for one, two in zip(own, other, strict=True))


def save(name: str, values: dict[str, Any]) -> Path:
    """Write a result with its date and environment."""
    now = datetime.now(UTC)
    path = RESULTS / f"{name}-{now:%Y-%m-%d}.json"
    setting = {key: value for key, value in environment().items() if key != "command"}
    path.write_text(json.dumps({"date": now.isoformat(timespec="seconds"), **values, "environment": setting}, indent=2))
    return path


def _key(name: str) -> str:
    return name.replace(".", "_")
