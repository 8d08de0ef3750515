"""Gradients of a block's own parameters, in the backward of a node whose outputs they are.

Autograd would add them to `grad`, before the node has returned them. So they are asked for by name, of the parameters
themselves: nothing takes their place, and other threads, forwards in a hook and weights that are tied to a layer
elsewhere find the module as it is.

Two things come with that. Autograd calls the hooks of a tensor wherever its gradient is asked for: a parameter's are
silent here, since they see the gradient that the node returns. And of a tensor that a function only refers to nobody
asks: the graph is searched for those, which get their gradient as from any backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from typing import Any

import torch
from attrs import define, frozen
from torch import Tensor

from petra_graph.blocks.couplings.coupling import owned


@define(eq=False)
class ParameterGradients:
    """What one backward of a block finds; `petra_graph.blocks.differentiation.Differentiate`."""

    parameters: tuple[Tensor, ...]
    known: frozenset[int]
    """Identities of all tensors of the block's modules."""
    found: list[Tensor | None]
    """The sum for each parameter; None where nothing depends on it."""

    def __call__(
        self, outputs: Sequence[Tensor], gradients: Sequence[Tensor], inputs: Sequence[Tensor]
    ) -> Sequence[Tensor | None]:
        """Differentiate; return the gradients of the inputs, and add those of the parameters to `found`."""
        elsewhere = _leaves_elsewhere(outputs, self.known.union(map(id, inputs)))
        if elsewhere:
            torch.autograd.backward(outputs, gradients, retain_graph=True, inputs=elsewhere)
        places = [at for at, one in enumerate(self.parameters) if one.requires_grad]
        asked = [*inputs, *(self.parameters[at] for at in places)]
        if not asked:
            return []
        call_hooks_once(self.parameters)  # that the evaluation has set, as torch's counter of operations does
        token = _silent.set(True)
        try:
            results = torch.autograd.grad(outputs, asked, gradients, allow_unused=True)
        finally:
            _silent.reset(token)
        of_inputs = results[: len(inputs)]
        there = [(at, one) for at, one in zip(places, results[len(inputs) :], strict=True) if one is not None]
        # Couplings add to the gradients of inputs in place, and `grad` may take what it is given.
        kept = owned(tuple(one for _, one in there), [*gradients, *(one for one in of_inputs if one is not None)])
        for (at, _), one in zip(there, kept, strict=True):
            before = self.found[at]
            self.found[at] = one if before is None else before + one
        return of_inputs


_silent: ContextVar[bool] = ContextVar("petra_graph_silent_hooks", default=False)
"""Whether gradients of parameters are asked for here, which a node will return."""


@frozen(eq=False)
class _OnceReturned:
    """A hook of a parameter, for what autograd itself brings it."""

    hook: Callable[[Tensor], Any]

    def __call__(self, gradient: Tensor) -> Any:
        return None if _silent.get() else self.hook(gradient)


def call_hooks_once(parameters: Iterable[Tensor]) -> None:
    """Make hooks of parameters skip the gradients that a node has yet to return."""
    for parameter in parameters:
        hooks = parameter._backward_hooks or {}  # noqa: SLF001  `register_hook` has no other list
        for key, hook in list(hooks.items()):
            if not isinstance(hook, _OnceReturned):
                hooks[key] = _OnceReturned(hook)


def _leaves_elsewhere(outputs: Sequence[Tensor], known: frozenset[int]) -> list[Tensor]:
    """Return the leaves of a graph that are not known."""
    leaves = [output for output in outputs if output.is_leaf and id(output) not in known]
    nodes = {output.grad_fn for output in outputs if output.grad_fn is not None}
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        following = node.next_functions
        if not following:
            variable = getattr(node, "variable", None)
            if variable is not None and id(variable) not in known:
                leaves.append(variable)
        for one, _ in following:
            if one is not None and one not in nodes:
                nodes.add(one)
                waiting.append(one)
    return leaves
