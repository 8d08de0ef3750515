"""Gradients of parameters apart from those of inputs: what `backpropagate` leaves for later.

    x ── conv ── norm ── relu ── y        with deferred_gradients() as deferred:
          │       │                           d_x = ...             from y to x: the gradient of x
         w, b    g, s                     deferred.accumulate()     from conv and norm: those of w, b, g and s

The nodes of the graph from which an input can be reached are its trunk. Where a node of the trunk has a branch, which ends in
parameters only, a hook keeps the gradients that come to that node; with them the same node is run again later, for the branch alone.

Decision: of torch's own division (torch.distributed.pipelining._backward, after Qi et al. 2024, "Zero Bubble Pipeline Parallelism",
https://arxiv.org/abs/2401.10241) this takes the captured gradients, and not the groups of parameters: there parameters that share a node
are differentiated together, so that the trunk between their nodes is computed again, and each group's sum is added by itself, in
another order than autograd's. Here every node of the trunk is run again alone, and autograd accumulates. A graph that this cannot divide
bit for bit is differentiated at once, and its parameters' gradients wait:

- a parameter is read at two places of the trunk: autograd sums its gradients in the order in which it comes by;
- a branch begins at a `torch.autograd.Function`, or a part is compiled: such nodes compute all gradients together, and some can be run
  only once.

What a node computes for the trunk and for a branch together is computed twice: a normalisation's sums over the batch, a product's
broadcasts. Reentrant checkpoints (`use_reentrant=True`) refuse to be asked for the gradients of inputs alone, and say so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from attrs import define, field, frozen
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

from petra_graph.blocks.block_kinds import differentiated_by, without_autocast


@define(eq=False)
class DeferredGradients:
    """Gradients of parameters that wait; `petra_graph.blocks.block_kinds.Differentiate`.

    What waits refers to memory of others. Until `accumulate` must stay as they are: the streams that blocks were given, the gradients
    that their backwards were given, and those that they returned, which may be the same tensors.
    """

    _waiting: deque[tuple[str, Callable[[], None]]] = field(factory=deque)
    """The type of device, and what adds to `grad`; in the order of the backward."""

    def __call__(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Return the gradients of the inputs; None where nothing depends on one."""
        add, found = _divided(outputs, gradients, inputs)
        self._waiting.append((outputs[0].device.type, add))
        return found

    def accumulate(self) -> None:
        """Add the gradients of parameters to `grad`, as one backward of each function would have; a second call adds nothing."""
        while self._waiting:
            device_type, add = self._waiting.popleft()
            with without_autocast(device_type):
                add()


@contextmanager
def deferred_gradients() -> Iterator[DeferredGradients]:
    """Make `backpropagate` return the gradients of inputs, and leave those of parameters to `accumulate` of what this yields."""
    deferred = DeferredGradients()
    with differentiated_by(deferred):
        yield deferred


_Found = Sequence[Tensor | None]


def _divided(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
) -> tuple[Callable[[], None], _Found]:
    nodes = [get_gradient_edge(output).node for output in outputs]
    graph = _Graph.of(nodes, inputs)
    reached = [node in graph.trunk for node in nodes]
    pairs = list(zip(map(_root, outputs), gradients, strict=True))
    if not any(reached):
        return partial(_backward, pairs), [None] * len(inputs)
    apart = [pair for pair, on_trunk in zip(pairs, reached, strict=True) if not on_trunk]
    leaves = graph.branches([node for node, on_trunk in zip(nodes, reached, strict=True) if not on_trunk])
    if leaves is None:
        return _at_once(outputs, gradients, inputs, graph.leaves)
    arrived: deque[tuple[Node, Sequence[Tensor | None]]] = deque()

    def capture(node: Node, given: Sequence[Tensor | None]) -> None:
        arrived.append((node, given))

    handles = [node.register_prehook(partial(capture, node)) for node in leaves]
    try:
        found = torch.autograd.grad(
            [output for output, on_trunk in zip(outputs, reached, strict=True) if on_trunk],
            list(inputs),
            [gradient for gradient, on_trunk in zip(gradients, reached, strict=True) if on_trunk],
            retain_graph=bool(leaves),
            allow_unused=True,
        )
    finally:
        for handle in handles:
            handle.remove()
    kept = [one for _, given in arrived for one in given if one is not None]

    def add() -> None:
        while arrived:
            node, given = arrived.popleft()
            there = [(GradientEdge(node, at), one) for at, one in enumerate(given) if one is not None]
            if there:
                _backward(there, leaves[node])
        if apart:
            _backward(apart)

    return add, _unshared(found, kept)


def _root(output: Tensor) -> Tensor | GradientEdge:
    """Return what stands for an output without its memory; only a tensor keeps the node of a `torch.autograd.Function` alive."""
    return output if isinstance(output.grad_fn, BackwardCFunction) else get_gradient_edge(output)


def _backward(pairs: Sequence[tuple[Any, Tensor]], inputs: Sequence[Tensor] | None = None) -> None:
    """Differentiate outputs or edges with the gradients beside them; with `inputs`, for these leaves alone."""
    torch.autograd.backward([root for root, _ in pairs], [gradient for _, gradient in pairs], inputs=inputs)


def _at_once(
    outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[Callable[[], None], _Found]:
    """Differentiate all with one backward, which adds to an empty `grad` of each parameter, and exchange that for what was there."""
    before = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        torch.autograd.backward(list(outputs), list(gradients))
        waiting = [(parameter, parameter.grad) for parameter in parameters if parameter.grad is not None]
    finally:
        for parameter, sum_before in zip(parameters, before, strict=True):
            parameter.grad = sum_before

    def add() -> None:
        for parameter, gradient in waiting:
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        waiting.clear()

    return add, [one.grad for one in inputs]


def _unshared(found: _Found, kept: Iterable[Tensor]) -> _Found:
    """Copy gradients of inputs that share memory with what is kept for later: couplings add to them in place."""
    storages = {id(storage): storage for storage in (one.untyped_storage() for one in kept)}
    return [one.clone() if one is not None and id(one.untyped_storage()) in storages else one for one in found]


@frozen(eq=False)
class _Graph:
    """The nodes between outputs and leaves."""

    following: dict[Node, list[Node]]
    """The nodes to which each hands gradients."""
    trunk: frozenset[Node]
    """From which an input can be reached."""
    leaves: list[Tensor]
    """Those that are no inputs."""

    @staticmethod
    def of(nodes: Iterable[Node], inputs: Sequence[Tensor]) -> _Graph:
        wanted = set(map(id, inputs))
        following: dict[Node, list[Node]] = {}
        before: dict[Node, list[Node]] = {}
        waiting = list(nodes)
        while waiting:
            node = waiting.pop()
            if node in following:
                continue
            following[node] = [one for one, _ in node.next_functions if one is not None]
            for one in following[node]:
                before.setdefault(one, []).append(node)
            waiting += following[node]
        ends = {node: _variable(node) for node, after in following.items() if not after}
        waiting = [node for node, variable in ends.items() if id(variable) in wanted]
        trunk = set(waiting)
        while waiting:
            added = [one for one in before.get(waiting.pop(), ()) if one not in trunk]
            trunk.update(added)
            waiting += added
        leaves = [one for node, one in ends.items() if one is not None and node not in trunk]
        return _Graph(following, frozenset(trunk), leaves)

    def branches(self, apart: Sequence[Node]) -> dict[Node, list[Tensor]] | None:
        """Return the nodes of the trunk that have branches, and the leaves there; None where the graph cannot be divided.

        Args:
            apart: nodes of outputs that are not on the trunk.
        """
        found: dict[Node, list[Tensor]] = {}
        for node in self.trunk:
            branch = [one for one in self.following[node] if one not in self.trunk]
            python = isinstance(node, BackwardCFunction)
            if python and (branch or "Compiled" in node.name()):
                return None
            if branch and (leaves := self._leaves(branch)):
                found[node] = leaves
        all_leaves = [id(one) for leaves in (*found.values(), self._leaves(apart)) for one in leaves]
        return found if len(set(all_leaves)) == len(all_leaves) else None

    def _leaves(self, nodes: Sequence[Node]) -> list[Tensor]:
        seen, waiting = set(nodes), list(dict.fromkeys(nodes))
        leaves = []
        while waiting:
            node = waiting.pop()
            if not self.following[node] and (variable := _variable(node)) is not None:
                leaves.append(variable)
            added = [one for one in dict.fromkeys(self.following[node]) if one not in seen]
            seen.update(added)
            waiting += added
        return leaves


def _variable(node: Node) -> Tensor | None:
    """Return the tensor to whose `grad` a node adds; None for other nodes that hand nothing on."""
    variable: Tensor | None = getattr(node, "variable", None)
    return variable
