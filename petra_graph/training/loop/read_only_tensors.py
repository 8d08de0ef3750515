"""Tensors of stages that a callback of a run may read: if it writes to one, the call says so.

A write moves a tensor's version, which every call compares. One through `.data` does not, so that the first call of each
method compares the values, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import cast

import torch
from attrs import define, field
from torch import Tensor

from petra_graph.errors import PluginError, shown
from petra_graph.kinds.callback import CallbackDeclaration
from petra_graph.kinds.plugin import Plugin
from petra_graph.units import listed


@define(eq=False)
class ReadOnly:
    """Of one callback, or of one companion."""

    plugin: Plugin
    tensors: Mapping[str, Tensor]
    """By their names in the file of weights."""
    _seen: set[str] = field(factory=set, init=False)
    """The methods that have been called."""

    @contextmanager
    def during(self, method: str, given: Mapping[str, Tensor]) -> Iterator[None]:
        """Call a method, with tensors that are `given` to it alone.

        Raises:
            PluginError: it wrote to a tensor.
        """
        tensors, values = {**self.tensors, **given}, method not in self._seen
        self._seen.add(method)
        before = [_mark(tensor, values=values) for tensor in tensors.values()]
        yield
        pairs = zip(tensors.items(), before, strict=True)
        written = [shown(name) for (name, tensor), mark in pairs if _mark(tensor, values=values) != mark]
        if written:
            declared = cast(CallbackDeclaration, self.plugin.declaration).changes
            found = f'its {method} wrote to {listed(written)}, and its declaration says changes = "{declared}"'
            raise PluginError(f"{self.plugin.owned} breaks a promise (changes): {found}", _COPY)


_COPY = 'copy what is to be changed, as in parameter.detach().clone(); a companion may write where changes = "weights"'


def _mark(tensor: Tensor, *, values: bool) -> tuple[int | None, ...]:
    """Return what tells whether a tensor, or its gradient, has been written to."""
    gradient = tensor.grad if tensor.is_leaf else None
    versions = tensor._version, None if gradient is None else gradient._version  # noqa: SLF001  torch has no public name
    if not values:
        return tensor.data_ptr(), *versions
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)  # an update may be under way
    words = tensor.detach().reshape(-1).view(getattr(torch, _WORDS[tensor.itemsize]))
    return tensor.data_ptr(), *versions, int(words.sum(dtype=torch.int64))


_WORDS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "int64"}
"""Integers of a tensor's bits, by the bytes of an element."""
