"""What a probe computes with: the clock of all stages, one micro-batch's share of a sum, and plain backpropagation at parameters of the past.

**The clock.** The number of updates that each stage has made when another stage operates: a global clock that the depths determine.

Between two drains a stage of staleness tau does its forward of micro-batch m when tau of its own backwards before m are
still to come. The micro-batch takes as long to the head as back. So stage j differentiates micro-batch m when stage i
has finished its backwards of all micro-batches before

    m + ceil((tau_j - tau_i) / 2)

which is equation (5) of PETRA under `lockstep`, where tau = 2(J-j): stages nearer to the head are ahead by one micro-batch
a stage. Each stage's number of updates, for three stages, k = 1, micro-batch 4:

                    lockstep         1f1b            sequential
    forwards        0  2  4          2  3  4         4  4  4
    backward of 1   4  5  6          4  5  5         4  4  4
    backward of 2   3  4  5          4  4  5         4  4  4
    backward of 3   2  3  4          3  4  4         4  4  4

Under `1f1b` it is the clock on which every stage does a forward or a backward at each half tick, and for a list of depths
it is a convention. Without delay, and where the pipeline flushes after each window, all stages update together.

Decision: the clock counts; it does not read the run. A runtime may let a stage be ahead of the clock for a while, which
changes no number that the stage computes, and so must not change a probe's reference either.

**Contributions** are exact: hooks of parameters report the gradients that autograd adds, and change no bit of the sum.

**The replay** leaves no trace. The network is the stages' own: their modules, random keys, normalisation, precision and devices. Parameters as they
were after given numbers of updates take the place of the modules' own, and running statistics are frozen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import chain
from typing import cast

import torch
from attrs import frozen
from torch import Tensor, nn

from petra_graph.blocks import Streams, frozen_statistics
from petra_graph.executor.delayed_weights import Parameters, copied_parameters, having
from petra_graph.executor.head import HeadRunner
from petra_graph.executor.stage import StageExecutor
from petra_graph.graph.node_graph import INPUT
from petra_graph.plugins.stage_facts import backwards_before, updates_after
from petra_graph.plugins.tensor_trees import Tree
from petra_graph.program.channels import Edge
from petra_graph.runtime.channels import moved
from petra_graph.spec.model import Flush

# i, j stages counted from 0; m micro-batch counted from the last drain; tau staleness; k accumulation

Versions = tuple[int, ...]
"""For each stage, how many updates it has made since the last drain."""


@frozen(kw_only=True)
class Clock:
    """The clock of all stages between two drains."""

    depths: Sequence[int]
    """Of each stage."""
    micro_batches: int
    """Until the next drain."""
    accumulation: int
    flush: Flush
    filled: int = 0
    """The micro-batch with which the pipeline filled again."""

    def at_forward(self, m: int) -> Versions:
        """Return each stage's updates before its own forward of micro-batch m."""
        return tuple(self._updates(m, backwards_before(m, depth)) for depth in self.depths)

    def at_backward(self, m: int, j: int) -> Versions:
        """Return all stages' updates before stage j's backward of micro-batch m."""
        return tuple(self._updates(m, m + -((depth - self.depths[j]) // 2)) for depth in self.depths)

    def _updates(self, m: int, done: int) -> int:
        """Return the updates of a stage that has done `done` backwards at its part of micro-batch m."""
        if self.flush == "window":
            return m // self.accumulation
        done = min(max(done, self.filled, 0), self.micro_batches)
        return updates_after(done, self.micro_batches, self.accumulation)


Contributions = dict[nn.Parameter, Tensor]
"""By parameter, the increase of its `grad`; parameters without a contribution are absent."""


@contextmanager
def contributions(parameters: Iterable[nn.Parameter]) -> Iterator[Contributions]:
    """Record the gradients that are added to `parameters` inside the context."""
    record: Contributions = {}
    with ExitStack() as hooks:
        for parameter in parameters:
            if parameter.requires_grad:
                handle = parameter.register_hook(partial(_add, record, parameter))  # type: ignore[no-untyped-call]
                hooks.callback(handle.remove)
        yield record


def _add(record: Contributions, parameter: nn.Parameter, gradient: Tensor) -> None:
    # Copied, since autograd may make this very tensor the parameter's `grad`, and add to it later.
    record[parameter] = record[parameter] + gradient if parameter in record else gradient.detach().clone()


Gradient = Mapping[nn.Parameter, Tensor]
"""By a module's own parameter; a parameter that the loss does not depend on is missing."""


def gradients(
    executors: Sequence[StageExecutor],
    micro_batch: int,
    *,
    samples: Streams,
    target: Tree,
    parameters: Sequence[Parameters],
    stages: Collection[int],
) -> Mapping[int, Gradient]:
    """Return the loss's gradient in some stages, indices of `executors`, with all stages at the given parameters.

    The random numbers are those of the micro-batch; only the stages between these and the loss are differentiated.
    """
    read = (edge for executor in executors for edge in executor.program.receives if edge.producer == INPUT)
    edges: dict[Edge, Streams] = dict.fromkeys(read, samples)
    loss: Tensor | None = None
    with ExitStack() as entered:
        for executor, own in zip(executors, parameters, strict=True):
            entered.enter_context(having(executor.modules, own))
        for index, executor in enumerate(executors):
            with torch.set_grad_enabled(index >= min(stages)):
                loss = _forward(executor, micro_batch, edges, target)
        assert loss is not None
        wanted = [
            (index, one)
            for index in stages
            for one in dict.fromkeys(p for module in executors[index].modules.values() for p in module.parameters())
            if one.requires_grad
        ]
        found: dict[int, dict[nn.Parameter, Tensor]] = {index: {} for index in stages}
        if wanted and loss.requires_grad:
            made = torch.autograd.grad(loss, [one for _, one in wanted], allow_unused=True)
            for (index, one), gradient in zip(wanted, made, strict=True):
                if gradient is not None:
                    found[index][one] = gradient
    return found


def _forward(executor: StageExecutor, micro_batch: int, edges: dict[Edge, Streams], target: Tree) -> Tensor | None:
    """Run the forward of a stage, which takes what it reads from `edges` and adds what it sends; it leaves no trace.

    Returns the loss of the stage that holds the head, times the share of the targets that count.
    """
    loss: Tensor | None = None
    device = torch.device(executor.program.device)
    with frozen_statistics(*executor.modules.values()):
        for segment, runner in executor.runners:
            read = chain.from_iterable(moved(edges.pop(entry.edge), device) for entry in segment.inputs)
            outputs = runner.run(micro_batch, cast(Streams, tuple(read)))
            edges |= dict.fromkeys(segment.outputs, outputs)
            if isinstance(runner, HeadRunner):
                result, _ = runner.compare(micro_batch, runner.returned(outputs), target)
                loss = result.loss * (result.weight / result.samples)
    return loss


class Snapshots:
    """The parameters of all stages as they were after given numbers of updates, counted from a drain.

    A version is copied when an update is about to overwrite it while a request for it is open. The copy is dropped when
    the last request for it is closed.
    """

    def __init__(self, executors: Sequence[StageExecutor], updates: Sequence[int] | None = None) -> None:
        """Begin after these updates of each stage since the drain; None: this is a drain."""
        self._executors = executors
        self._updates = [0] * len(executors) if updates is None else list(updates)
        self._requests: Counter[tuple[int, int]] = Counter()
        """Open requests by stage and version."""
        self._copies: dict[tuple[int, int], Parameters] = {}

    def request(self, versions: Versions) -> None:
        """Request one version of each stage, before any of them is overwritten."""
        self._requests.update(enumerate(versions))

    def release(self, versions: Versions) -> None:
        for key in enumerate(versions):
            self._requests[key] -= 1
            if not self._requests[key]:
                del self._requests[key]
                self._copies.pop(key, None)

    def before_update(self, stage: int) -> None:
        """Copy a stage's parameters where their version is requested, since the update overwrites them."""
        key = stage, self._updates[stage]
        if key in self._requests:
            self._copies[key] = copied_parameters(self._executors[stage].modules)

    def after_update(self, stage: int) -> None:
        self._updates[stage] += 1

    def reached(self, versions: Versions) -> bool:
        """Return whether every stage has made at least as many updates."""
        return all(made >= version for made, version in zip(self._updates, versions, strict=True))

    def at(self, versions: Versions) -> list[Parameters]:
        """Return each stage's parameters: a copy, or the modules' own until their next update."""
        live = [
            {name: dict(module.named_parameters()) for name, module in stage.modules.items()}
            for stage in self._executors
        ]
        return [self._copies.get((stage, version), live[stage]) for stage, version in enumerate(versions)]
