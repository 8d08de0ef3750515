"""One micro-batch's share of a window's sum of gradients, recorded while it is added.

The record is exact: hooks of parameters report the gradients that autograd adds, and `accumulate_grad` those of a backward at older
parameters. Neither changes a bit of the sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from torch import Tensor, nn

from petra_graph.executor.runners import observed

Contributions = dict[nn.Parameter, Tensor]
"""By parameter, the increase of its `grad`; parameters without a contribution are absent."""


@contextmanager
def contributions(parameters: Iterable[nn.Parameter]) -> Iterator[Contributions]:
    """Record the gradients that are added to `parameters` inside the context."""
    record: Contributions = {}
    add = partial(_add, record)
    token = observed.set(add)
    with ExitStack() as hooks:
        for parameter in parameters:
            if parameter.requires_grad:
                handle = parameter.register_hook(partial(add, parameter))  # type: ignore[no-untyped-call]
                hooks.callback(handle.remove)
        try:
            yield record
        finally:
            observed.reset(token)


def _add(record: Contributions, parameter: nn.Parameter, gradient: Tensor) -> None:
    # Copied, since autograd may make this very tensor the parameter's `grad`, and add to it later.
    record[parameter] = record[parameter] + gradient if parameter in record else gradient.detach().clone()
