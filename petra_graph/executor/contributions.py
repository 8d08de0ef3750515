"""What is added to gradients, heard while it is added: one micro-batch's share of a window's sum, exactly.

Autograd tells by the parameters' own hooks. Where the backward ran at other parameters than the modules' own, `credit`
tells. Neither changes a bit of the sum.

Decision: who listens is a context variable, since `credit` is reached through cells, which have nobody to tell.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial

from torch import Tensor, nn

Contributions = dict[nn.Parameter, Tensor]
"""By parameter, what its `grad` grew by; a parameter that nothing reached is not there."""

_listening: ContextVar[Contributions | None] = ContextVar("petra_graph_contributions", default=None)


@contextmanager
def contributions(parameters: Iterable[nn.Parameter]) -> Iterator[Contributions]:
    """Collect what is added to the `grad` of `parameters` inside."""
    found: Contributions = {}
    token = _listening.set(found)
    with ExitStack() as hooks:
        for parameter in parameters:
            if parameter.requires_grad:
                handle = parameter.register_hook(partial(_add, found, parameter))  # type: ignore[no-untyped-call]
                hooks.callback(handle.remove)
        try:
            yield found
        finally:
            _listening.reset(token)


def report_contribution(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Say that `gradient` is added to a parameter's `grad` by other hands than autograd's."""
    found = _listening.get()
    if found is not None:
        _add(found, parameter, gradient)


def _add(found: Contributions, parameter: nn.Parameter, gradient: Tensor) -> None:
    # Copied, since autograd may make this very tensor the parameter's `grad`, and add to it later.
    found[parameter] = found[parameter] + gradient if parameter in found else gradient.detach().clone()
