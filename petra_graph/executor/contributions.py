"""The gradients that backwards add to parameters, recorded while they are added: one micro-batch's share of a window's sum.

The record is exact: parameter hooks report the gradients that autograd adds, and `report_contribution` those that a
backward at older parameters adds. Neither changes a bit of the sum.

Decision: the record is a context variable, since `report_contribution` is reached through segment runners, which take no
listener.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial

from torch import Tensor, nn

Contributions = dict[nn.Parameter, Tensor]
"""By parameter, the increase of its `grad`; parameters without a contribution are absent."""

_record: ContextVar[Contributions | None] = ContextVar("petra_graph_contributions", default=None)


@contextmanager
def contributions(parameters: Iterable[nn.Parameter]) -> Iterator[Contributions]:
    """Record the gradients that are added to `parameters` inside the context."""
    record: Contributions = {}
    token = _record.set(record)
    with ExitStack() as hooks:
        for parameter in parameters:
            if parameter.requires_grad:
                handle = parameter.register_hook(partial(_add, record, parameter))  # type: ignore[no-untyped-call]
                hooks.callback(handle.remove)
        try:
            yield record
        finally:
            _record.reset(token)


def report_contribution(parameter: nn.Parameter, gradient: Tensor) -> None:
    """Record that code other than autograd adds `gradient` to a parameter's `grad`."""
    record = _record.get()
    if record is not None:
        _add(record, parameter, gradient)


def _add(record: Contributions, parameter: nn.Parameter, gradient: Tensor) -> None:
    # Copied, since autograd may make this very tensor the parameter's `grad`, and add to it later.
    record[parameter] = record[parameter] + gradient if parameter in record else gradient.detach().clone()
