"""A forward only reads the parameters, and hands its streams through in their own precision."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from petra_graph.blocks.randomness import fork_rng
from petra_graph.measure.tally import tensors
from petra_graph.units import listed
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.blocks.learned_and_running_state import LEAVE
from petra_graph_conformance.blocks.micro_batches_through_block import Harness, gradients_for
from petra_graph_conformance.broken_promise import BrokenPromise, name_of

_GROWN = 10.0
"""By how much parameters are larger in the second trial: a bound that a forward puts on them may be far from their first values."""


def check_parameters(trial: Trial) -> None:
    """Forward and backward leave the values of parameters as they are, also of those that have grown, and through `data`.

    What a block raises here, other promises say: values of grown parameters may be out of range.
    """
    for factor in (1.0, _GROWN):
        harness = Harness(trial)
        block = harness.block
        with torch.no_grad():
            for parameter in block.parameters():
                if parameter.is_floating_point():
                    parameter.mul_(factor)
        before = {name: parameter.detach().clone() for name, parameter in block.named_parameters()}
        with suppress(Exception, SystemExit):
            inputs = harness.inputs(0)
            outputs = harness.forward(0, inputs)
            harness.backward(0, outputs, gradients_for(0, outputs))
            with torch.no_grad():
                block.eval()(*inputs)
        after = dict(block.named_parameters())
        changed = [name for name, one in before.items() if not torch.allclose(one, after[name], 0, 0, equal_nan=True)]
        if changed:
            found = f"forward or backward changed the values of {', '.join(changed)}, which the optimizer and a recomputation read"
            raise BrokenPromise("parameters", found, LEAVE)


def check_precision(trial: Trial) -> None:
    """Streams keep their precision inside the block: under float64, nothing that is made of them is rounded to float32.

    Parts of the parameters alone may be in another type, such as a norm of weights.
    """
    harness = Harness(trial)
    inputs = harness.inputs(0)
    with harness.without_graph(), _Rounding(inputs) as rounding:
        harness.block(*inputs)
    if rounding.found:
        found = (
            f"under float64 it rounds a stream to {rounding.found}, so that reconstructions have errors of that type"
        )
        remedy = "cast to x.dtype, or to float32 only where x is coarser: x.float() if x.dtype in (torch.float16, torch.bfloat16)"
        raise BrokenPromise("precision", found, remedy)


def check_types(trial: Trial) -> None:
    """Parameters and buffers keep the type in which the block makes them: those of float64 become float32 in a network of float32."""
    with fork_rng(0, torch.device("cpu")):
        made = trial.block_class(trial.inputs, trial.options)
    placed = Harness(trial, "float32").block
    dtypes = {name: one.dtype for name, one in chain(placed.named_parameters(), placed.named_buffers())}
    parameters, buffers = (
        [name for name, one in tensors_of if one.dtype == torch.float64 != dtypes.get(name, one.dtype)]
        for tensors_of in (made.named_parameters(), made.named_buffers())
    )
    if parameters or buffers:
        found = f"in a network of float32, what it makes in float64 becomes float32: {listed([*parameters, *buffers])}"
        remedy = (
            "name buffers in the block's `keep_dtype`"
            if buffers
            else 'set precision.compute = "float64", since parameters have the type of the streams'
        )
        raise BrokenPromise("types", found, f"{remedy}; or make them in float32")


class _Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that makes fewer bits of a float64 value that follows from the streams."""

    def __init__(self, streams: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._made = {id(stream): stream for stream in streams}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        read = [one for one in tensors((args, kwargs or {})) if id(one) in self._made]
        if read:
            for one in tensors(result):
                self._made[id(one)] = one
                coarse = one.is_floating_point() and one.dtype != torch.float64
                if coarse and any(each.dtype == torch.float64 for each in read):
                    self.found = self.found or name_of(one.dtype)
        return result
