"""Split backwards in plain PyTorch: chains of additive couplings, buffered nodes and a head, executed in one loop over stages.

It shares no code with the package's executor, program or runtime; the modules are the network's own, copied.

    F  y = t + F(x), no graph      R  x = s, t = y - F(s), graph of F(s)      I  dx = ds + J dy, dt = dy      W  dF/dp dy

A B is the parts that its word does not have, one after another.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from attrs import define, field
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Block
from petra_graph.blocks.randomness import random_key

Batch = tuple[torch.Tensor, torch.Tensor]
Streams = tuple[torch.Tensor, ...]
# m micro-batch, k accumulation; F R I W U forward, reconstruction, input gradient, parameter gradient, update


def kind(module: nn.Module) -> str:
    assert isinstance(module, Block)
    return module.kind


def operations(word: str, depth: int, count: int, k: int) -> Iterator[tuple[str, int]]:
    """A stage's operations on `count` micro-batches, and the drain."""
    yield from (("F", m) for m in range(min(depth - 1, count)))
    for m in range(count):
        for letter in word:
            if letter != "F" or m + depth - 1 < count:
                yield letter, m + (depth - 1) * (letter == "F")
        if (m + 1) % k == 0 or m + 1 == count:
            yield "U", m


@define
class Stage:
    """Consecutive nodes of a chain, in the order of their forward."""

    modules: dict[str, nn.Module]
    word: str
    depth: int
    rate: float
    momentum: float
    seed: int
    stored: dict[tuple[int, str], Any] = field(factory=dict)
    """By micro-batch and the first node of a run of buffered ones."""
    graphs: list[tuple[Streams, Streams]] = field(factory=list)
    """Of the open micro-batch, from the last run to the first: leaves and outputs."""
    outgoing: list[list[torch.Tensor]] = field(factory=list)
    """The gradients of those outputs."""
    velocity: dict[nn.Parameter, torch.Tensor] = field(factory=dict)
    weights: float = 0.0
    updates: int = 0
    seen: list[tuple[str, int, int]] = field(factory=list)
    """The operations with the number of updates before them."""

    @property
    def last(self) -> nn.Module:
        return list(self.modules.values())[-1]

    def runs(self) -> list[list[str]]:
        """Nodes that run together: consecutive buffered ones, any other alone."""
        found: list[list[str]] = []
        for name, module in self.modules.items():
            both = found and all(kind(one) == "buffered" for one in (module, self.modules[found[-1][-1]]))
            found[-1].append(name) if both else found.append([name])
        return found

    def keyed(self, name: str, m: int, function: Any, *streams: torch.Tensor) -> Any:
        torch.manual_seed(random_key(self.seed, name, m, 0))
        return function(*streams)

    def run(self, names: list[str], m: int, streams: Streams, *, frozen: bool = False) -> Streams:
        """Run nodes; frozen: running statistics change in a copy."""
        for name in names:
            module = copy.deepcopy(self.modules[name]) if frozen else self.modules[name]
            streams = self.keyed(name, m, module, *streams)
        return streams

    def forward(self, m: int, streams: Streams, target: torch.Tensor) -> Streams:
        """F; of the head the loss, and its graph is kept."""
        for names in self.runs():
            module = self.modules[names[0]]
            if kind(module) == "head":
                leaves = tuple(stream.detach().requires_grad_() for stream in streams)
                (output,) = self.run(names, m, leaves)
                counted = target != -100
                self.weights = float(counted.sum()) / len(target)
                loss = nn.functional.cross_entropy(output, target, reduction="sum") / len(target)
                self.stored[m, names[0]] = leaves, (loss,)
                return (loss.detach() / self.weights,)
            if kind(module) == "buffered":
                self.stored[m, names[0]] = streams
            with torch.no_grad():
                streams = self.run(names, m, streams, frozen=True)
        return streams

    def reconstruct(self, m: int, streams: Streams | None) -> Streams:
        """R, from the output of the stage to its input."""
        for names in reversed(self.runs()):
            module = self.modules[names[0]]
            if kind(module) == "head":
                leaves, outputs = self.stored.pop((m, names[0]))
            elif kind(module) == "buffered":
                inputs = self.stored.pop((m, names[0]))
                leaves = tuple(one.detach().requires_grad_() for one in inputs)
                outputs = self.run(names, m, leaves)
            else:
                assert isinstance(module, AdditiveCoupling)
                assert streams is not None
                y, s = streams
                x = s.detach().requires_grad_()
                value = self.keyed(names[0], m, module.residual, x)
                t = (y - value.detach()).requires_grad_()
                leaves, outputs = (x, t), (t + value, x)
            self.graphs.append((leaves, outputs))
            streams = tuple(leaf.detach() for leaf in leaves)
        assert streams is not None
        return streams

    def input_gradient(self, gradients: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        """I, from the gradient of the stage's output to that of its input; () is the head's."""
        for leaves, outputs in self.graphs:
            given = list(gradients) if gradients else [torch.ones(())]
            self.outgoing.append([one.to(output.dtype) for one, output in zip(given, outputs, strict=True)])
            gradients = torch.autograd.grad(outputs, leaves, self.outgoing[-1], retain_graph=True)
        return gradients

    def parameter_gradient(self) -> None:
        """W."""
        parameters = [one for module in self.modules.values() for one in module.parameters()]
        for (_, outputs), given in zip(self.graphs, self.outgoing, strict=True):
            found = (
                torch.autograd.grad(outputs, parameters, given, retain_graph=True, allow_unused=True)
                if parameters
                else ()
            )
            for parameter, gradient in zip(parameters, found, strict=True):
                if gradient is not None:
                    parameter.grad = gradient if parameter.grad is None else parameter.grad + gradient
        self.graphs, self.outgoing = [], []

    @torch.no_grad()
    def update(self, weight: float) -> None:
        """U: momentum SGD (torch's form)."""
        self.updates += 1
        for parameter in (one for module in self.modules.values() for one in module.parameters()):
            if parameter.grad is not None:
                mean = parameter.grad / (weight or 1.0)
                before = self.velocity.get(parameter)
                self.velocity[parameter] = mean if before is None else self.momentum * before + mean
                parameter.sub_(self.rate * self.velocity[parameter])
                parameter.grad = None


class Pipeline:
    """Stages, and what they have sent to each other."""

    def __init__(self, stages: Sequence[Stage], batches: Sequence[Batch], k: int) -> None:
        self.stages, self.batches = stages, batches
        self.orders = [list(operations(stage.word, stage.depth, len(batches), k)) for stage in stages]
        self.sent: dict[tuple[str, int, int], Any] = {}
        """By kind, receiving stage and micro-batch."""
        self.weights: dict[int, float] = {}
        self.windows = [0.0] * len(stages)
        self.losses: list[float] = []

    def parts(self, verb: str, j: int) -> str:
        return verb if verb != "B" else "IW" if "R" in self.stages[j].word else "RIW"

    def needed(self, verb: str, j: int, m: int) -> list[tuple[str, int, int]]:
        """The messages that an operation reads."""
        if verb == "B":
            return [key for part in self.parts(verb, j) for key in self.needed(part, j, m)]
        follows = j + 1 < len(self.stages)
        reads = {"F": j > 0, "R": follows and kind(self.stages[j].last) == "reversible", "I": follows}
        return [(verb, j, m)] if reads.get(verb) else []

    def perform(self, verb: str, j: int, m: int) -> None:
        for part in self.parts(verb, j):
            self.perform_part(part, j, m)

    def perform_part(self, verb: str, j: int, m: int) -> None:
        stage = self.stages[j]
        received = [self.sent.pop(key) for key in self.needed(verb, j, m)]
        stage.seen.append((verb, m, stage.updates))
        if verb == "F":
            samples, target = self.batches[m]
            streams = stage.forward(m, received[0] if received else (samples,), target)
            if j + 1 == len(self.stages):
                self.weights[m] = stage.weights
                self.losses.append(float(streams[0]))
            else:
                self.sent["F", j + 1, m] = streams
        elif verb == "R":
            inputs = stage.reconstruct(m, received[0] if received else None)
            if j and kind(self.stages[j - 1].last) == "reversible":
                self.sent["R", j - 1, m] = inputs
        elif verb == "I":
            gradients = stage.input_gradient(received[0] if received else ())
            if j:
                self.sent["I", j - 1, m] = gradients
        elif verb == "W":
            stage.parameter_gradient()
            self.windows[j] += self.weights[m]
        else:
            stage.update(self.windows[j])
            self.windows[j] = 0.0


def train(stages: Sequence[Stage], batches: Sequence[Batch], k: int) -> list[float]:
    """Train until the pipeline has drained; return the losses. Any stage that has its messages does its next operation."""
    pipeline = Pipeline(stages, batches, k)
    while any(pipeline.orders):
        able = [
            j
            for j, order in enumerate(pipeline.orders)
            if order and all(key in pipeline.sent for key in pipeline.needed(order[0][0], j, order[0][1]))
        ]
        assert able, "every stage waits"
        for j in able:
            verb, m = pipeline.orders[j].pop(0)
            pipeline.perform(verb, j, m)
    assert not pipeline.sent
    return pipeline.losses
