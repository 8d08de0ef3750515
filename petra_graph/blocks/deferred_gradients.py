"""Gradients of parameters apart from those of inputs: what `backpropagate` leaves for later.

    x ── conv ── norm ── relu ── y        with deferred_gradients() as deferred:
          │       │                           d_x = ...             from y to x: the gradient of x
         w, b    g, s                     deferred.accumulate()     from conv and norm: those of w, b, g and s

The nodes of the graph from which an input can be reached are its trunk. Where a node of the trunk has a branch, which ends in
parameters only, a hook keeps the gradients that come to that node; with them the same node is run again later, for the branch alone.

Decision: of torch's own division (torch.distributed.pipelining._backward, after Qi et al. 2024, "Zero Bubble Pipeline Parallelism",
https://arxiv.org/abs/2401.10241) this takes the captured gradients, and not the groups of parameters: there parameters that share a node
are differentiated together, so that the trunk between their nodes is computed again, and each group's sum is added by itself, in
another order than autograd's. Here every node is run again alone, and autograd accumulates. Some parameters are differentiated with the
inputs instead, and their gradients wait:

- one that is read at two places: autograd sums its gradients in the order in which it comes by;
- those of a normalisation: its sums over the batch are what the gradient of its input needs, too;
- those of a `torch.autograd.Function`, and all where a part is compiled: they compute all gradients together, and some can be run only
  once.

Reentrant checkpoints (`use_reentrant=True`) refuse to be asked for the gradients of inputs alone, and say so.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
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

    _waiting: deque[_Waiting] = field(factory=deque)
    """In the order of the backward."""

    def __call__(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Return the gradients of the inputs; None where nothing depends on one."""
        nodes = [get_gradient_edge(output).node for output in outputs]
        graph = _Graph.of(nodes, inputs)
        pairs = list(zip(map(_root, outputs), gradients, strict=True))
        waiting = _Waiting(device_type=outputs[0].device.type)
        self._waiting.append(waiting)
        if graph.trunk.isdisjoint(nodes):
            waiting.apart = pairs
            return [None] * len(inputs)
        division = graph.divided([node for node in nodes if node not in graph.trunk])
        waiting.later = division.later
        now: list[_Pair] = []
        for node, pair in zip(nodes, pairs, strict=True):
            (now if node in graph.trunk or not division.apart else waiting.apart).append(pair)
        with waiting.arrivals():
            found = _gradients(now, [*inputs, *division.early], retain_graph=bool(division.later))
        waiting.early = list(zip(division.early, found[len(inputs) :], strict=True))
        return waiting.unshared(found[: len(inputs)])

    def accumulate(self) -> None:
        """Add the gradients of parameters to `grad`, as one backward of each function would have; a second call adds nothing."""
        while self._waiting:
            waiting = self._waiting.popleft()
            with without_autocast(waiting.device_type):
                waiting.accumulate()


@contextmanager
def deferred_gradients() -> Iterator[DeferredGradients]:
    """Make `backpropagate` return the gradients of inputs, and leave those of parameters to `accumulate` of what this yields."""
    deferred = DeferredGradients()
    with differentiated_by(deferred):
        yield deferred


_Pair = tuple[Any, Tensor]
"""An output, or the edge of the graph that stands for it, and its gradient."""


@define(eq=False)
class _Waiting:
    """What one function's backward has left."""

    device_type: str
    early: list[tuple[Tensor, Tensor | None]] = field(factory=list)
    """Parameters with the gradients that came with those of the inputs."""
    later: dict[Node, list[Tensor]] = field(factory=dict)
    """Nodes of the trunk, and the parameters for which each is run again."""
    arrived: deque[tuple[Node, Sequence[Tensor | None]]] = field(factory=deque)
    """Those nodes, with the gradients that came to them."""
    apart: list[_Pair] = field(factory=list)
    """Outputs that depend on no input."""

    @contextmanager
    def arrivals(self) -> Iterator[None]:
        """Keep the gradients that come to nodes which are run again later."""

        def keep(node: Node, given: Sequence[Tensor | None]) -> None:
            self.arrived.append((node, given))

        with ExitStack() as hooks:
            for node in self.later:
                hooks.callback(node.register_prehook(partial(keep, node)).remove)
            yield

    def unshared(self, found: _Found) -> _Found:
        """Copy gradients of inputs that share memory with what is kept: couplings add to them in place."""
        kept = (one.untyped_storage() for _, given in self.arrived for one in given if one is not None)
        storages = {id(storage): storage for storage in kept}
        return [one.clone() if one is not None and id(one.untyped_storage()) in storages else one for one in found]

    def accumulate(self) -> None:
        for parameter, gradient in self.early:
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
        while self.arrived:
            node, given = self.arrived.popleft()
            there = [(GradientEdge(node, at), one) for at, one in enumerate(given) if one is not None]
            if there:
                _backward(there, self.later[node])
        if self.apart:
            _backward(self.apart)


_Found = Sequence[Tensor | None]


def _root(output: Tensor) -> Tensor | GradientEdge:
    """Return what stands for an output without its memory; only a tensor keeps the node of a `torch.autograd.Function` alive."""
    return output if isinstance(output.grad_fn, BackwardCFunction) else get_gradient_edge(output)


def _backward(pairs: Sequence[_Pair], inputs: Sequence[Tensor] | None = None, *, retain_graph: bool = False) -> None:
    """Differentiate; with `inputs`, for these leaves alone."""
    roots, gradients = [root for root, _ in pairs], [gradient for _, gradient in pairs]
    torch.autograd.backward(roots, gradients, retain_graph=retain_graph, inputs=inputs)


def _gradients(pairs: Sequence[_Pair], leaves: Sequence[Tensor], *, retain_graph: bool) -> _Found:
    """Return the gradients of leaves, whose `grad` stays as it is; hooks of theirs are called once, as in any backward."""
    before = [one.grad for one in leaves]
    for one in leaves:
        one.grad = None
    try:
        _backward(pairs, leaves, retain_graph=retain_graph)
        return [one.grad for one in leaves]
    finally:
        for one, grad in zip(leaves, before, strict=True):
            one.grad = grad


@frozen
class _Division:
    """When the gradient of each parameter is computed."""

    early: list[Tensor]
    """With those of the inputs."""
    later: dict[Node, list[Tensor]]
    """By nodes of the trunk, which are run again."""
    apart: bool
    """Whether outputs that depend on no input are differentiated later."""


@frozen(eq=False)
class _Graph:
    """The nodes between outputs and leaves."""

    following: dict[Node, list[Node]]
    """The nodes to which each hands gradients."""
    trunk: frozenset[Node]
    """From which an input can be reached."""

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
        return _Graph(following, frozenset(trunk))

    def divided(self, apart: Sequence[Node]) -> _Division:
        """Divide the parameters; `apart` are nodes of outputs that are not on the trunk."""
        sides = {node: [one for one in self.following[node] if one not in self.trunk] for node in self.trunk}
        branches = {node: self._leaves(side) for node, side in sides.items() if side}
        of_apart = self._leaves(apart)
        places = Counter(id(one) for leaves in (*branches.values(), of_apart) for one in leaves)
        once = all(places[id(one)] == 1 for one in of_apart)
        python = {node for node in self.trunk if issubclass(type(node), BackwardCFunction)}
        compiled = any("Compiled" in node.name() for node in python)
        early = {} if once else {id(one): one for one in of_apart}
        later: dict[Node, list[Tensor]] = {}
        for node, leaves in branches.items():
            together = compiled or node in python or "Norm" in node.name()
            for one in leaves:
                if together or places[id(one)] > 1:
                    early[id(one)] = one
                else:
                    later.setdefault(node, []).append(one)
        return _Division(list(early.values()), later, once)

    def _leaves(self, nodes: Sequence[Node]) -> list[Tensor]:
        seen: set[Node] = set()
        leaves, waiting = [], list(nodes)
        while waiting:
            node = waiting.pop()
            if node in seen:
                continue
            seen.add(node)
            waiting += self.following[node]
            if not self.following[node] and (variable := _variable(node)) is not None:
                leaves.append(variable)
        return leaves


def _variable(node: Node) -> Tensor | None:
    """Return the tensor to whose `grad` a node adds; None for other nodes that hand nothing on."""
    variable: Tensor | None = getattr(node, "variable", None)
    return variable
