"""What torch has for two processes: pipelines, plain and checkpointed, and data parallelism, on the duel's network."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from duel import RANKS, Contestant, Duel
from network import Plain
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from petra_graph.blocks.parameter_groups import parameter_groups
from petra_graph.plugins.contract import load
from petra_graph.training.prepare import Prepared


class Baselines:
    """Builds torch's contestants."""

    def __init__(self, duel: Duel) -> None:
        self.duel = duel

    def balanced(self, *, again: bool) -> list[list[str]]:
        """Balance two stages for a method of torch's, by timings that rank 0 takes; `again` is checkpointing."""
        costs = [forward + backward + again * repeat for forward, backward, repeat in self.timings.values()]
        at = min(range(1, len(costs)), key=lambda at: max(sum(costs[:at]), sum(costs[at:])))
        return [list(self.duel.names[:at]), list(self.duel.names[at:])]

    @cached_property
    def timings(self) -> dict[str, tuple[float, float, float]]:
        """Seconds of each node's forward with a graph, its backward, and its forward without one."""
        own = self.timed_nodes() if self.duel.world.rank == 0 else None
        found: dict[str, tuple[float, float, float]] = self.duel.told("timings", own)
        return found

    def timed_nodes(self) -> dict[str, tuple[float, float, float]]:
        """Take these timings."""
        module = self.plain()
        graph, (samples, target) = self.duel.ready.network.graph, self.duel.micro_batches(4)[0]
        found: dict[str, list[list[float]]] = {name: [] for name in self.duel.names}
        for _ in range(9):
            streams: dict[str, tuple[Tensor, ...]] = {"input": (self.duel.evaluation.prepare(samples),)}
            for name in self.duel.names:
                inputs = tuple(s.detach().requires_grad_() for p in graph.nodes[name].inputs for s in streams[p])
                block = module.blocks[name.replace(".", "_")]
                marks = [time.perf_counter()]
                with torch.no_grad():
                    self.duel.evaluation.canonicalize(block(*inputs))
                marks.append(time.perf_counter())
                outputs = self.duel.evaluation.canonicalize(block(*inputs))
                if name == self.duel.names[-1]:
                    outputs = (self.duel.loss(outputs[0], target),)
                marks.append(time.perf_counter())
                torch.autograd.backward(outputs, [torch.ones_like(one) for one in outputs])
                marks.append(time.perf_counter())
                found[name].append([marks[2] - marks[1], marks[3] - marks[2], marks[1] - marks[0]])
                streams[name] = tuple(one.detach() for one in outputs)
        return {name: tuple(map(statistics.median, zip(*times, strict=True))) for name, times in found.items()}

    def pipeline(self, schedule: Any, parts: int, stages: list[list[str]], *, again: bool) -> Contestant:
        """Two stages under a schedule of torch.distributed.pipelining; `again` is checkpointing, node by node."""
        rank = self.duel.world.rank
        module = Part(self.plain(), stages[rank], again=again)
        first, last = rank == 0, rank == RANKS - 1
        stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
        built = schedule(stage, parts, loss_fn=self.duel.loss)
        step = update_of(self.duel.ready, module)
        samples = self.duel.samples.to(torch.float32).div(255) if first else None

        def train() -> None:
            for _ in range(self.duel.updates):
                if first:
                    built.step(samples)
                else:
                    built.step(target=self.duel.targets if last else None, losses=[])
                step()

        return Contestant(train=train)

    def ddp(self) -> Contestant:
        """Each process has half of the batch, in two micro-batches."""
        module = DistributedDataParallel(self.plain())
        step = update_of(self.duel.ready, module.module)
        own = [
            pair for index, pair in enumerate(self.duel.micro_batches(4)[:4]) if index % RANKS == self.duel.world.rank
        ]

        def train() -> None:
            for _ in range(self.duel.updates):
                for index, (samples, target) in enumerate(own):
                    with module.no_sync() if index < len(own) - 1 else nullcontext():
                        torch.autograd.backward(self.duel.loss(module(samples), target) / len(own))
                step()

        return Contestant(train=train)

    def plain(self) -> Plain:
        """Return the network as a module under autograd."""
        return Plain(self.duel.ready.network.graph, self.duel.ready.executors(), self.duel.evaluation)


def update_of(ready: Prepared, module: Any) -> Callable[[], None]:
    """Return an update of a module's blocks."""
    chosen = ready.checked.optimizer
    optimizer = load(chosen.plugin)(parameter_groups(module.blocks.values()), chosen.options)

    def step() -> None:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


class Part(nn.Module):
    """Some nodes of a chain as torch's pipelining wants them."""

    def __init__(self, whole: Plain, names: Sequence[str], *, again: bool) -> None:
        super().__init__()
        self.evaluation, self.again = whole.evaluation, again
        self.blocks = nn.ModuleDict({key: whole.blocks[key] for name in names for key in [name.replace(".", "_")]})

    def forward(self, *streams: Tensor) -> Any:
        """Map the streams that come in to those that go out."""
        for stream in streams:
            if stream.requires_grad:  # torch sends nothing but contiguous tensors, and so no other gradients
                stream.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
        streams = self.evaluation.canonicalize(streams)
        for block in self.blocks.values():
            streams = checkpoint(block, *streams, use_reentrant=False) if self.again else block(*streams)
            streams = self.evaluation.canonicalize(streams)
        # Convolutions like channels last.
        return tuple(stream.contiguous() for stream in streams) if len(streams) > 1 else streams[0]
