"""Under bfloat16 autocast a block computes in the same types in forward and backward; streams stay float32."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.testing.harness import Harness, gradients_for, recorded
from petra_graph.testing.promise import BrokenPromise, name_of
from petra_graph.testing.trial import Trial

PROMISE = "autocast"


def check_autocast(trial: Trial) -> None:
    """Every part of the block returns the same type in forward and backward; the streams of a stage are finite float32."""
    harness = Harness(trial, "bfloat16")
    block = harness.block
    with _types(block) as forward:
        outputs = harness.forward(0, harness.inputs(0))
    gradients = gradients_for(0, outputs)
    with _types(block) as backward:
        reverse = harness.backward(0, outputs, gradients)
    for name in forward.keys() & backward.keys():
        if forward[name] != backward[name]:
            found = f"`{name}` returned {_join(forward[name])} in forward and {_join(backward[name])} in backward"
            remedy = "switch autocast neither on nor off inside the block, or in both passes"
            raise BrokenPromise(PROMISE, found, remedy)
    for noun, streams in (
        ("output", outputs),
        ("reconstructed input", reverse.inputs),
        ("input gradient", reverse.gradients),
        ("parameter gradient", [p.grad for p in block.parameters() if p.grad is not None]),
    ):
        for stream in filter(torch.is_floating_point, streams):
            finite = bool(stream.isfinite().all())
            if stream.dtype != torch.float32 or not finite:
                found = f"an {noun} is {name_of(stream.dtype) if finite else 'not finite'}"
                raise BrokenPromise(PROMISE, found, "let additions to streams happen outside bfloat16, as couplings do")


@contextmanager
def _types(block: Block) -> Iterator[Mapping[str, set[str]]]:
    """Record the types that residual functions and submodules return."""
    types: dict[str, set[str]] = defaultdict(set)

    def record(name: str, _module: object, _inputs: object, value: object) -> None:
        if isinstance(value, Tensor):
            types[name].add(name_of(value.dtype))

    with ExitStack() as stack:
        values = stack.enter_context(recorded(block))
        for name, module in block.named_modules():
            if name:
                stack.enter_context(module.register_forward_hook(partial(record, name)))
        yield types
        for name, of_calls in values.items():
            types[name].update(name_of(value.dtype) for value in of_calls)


def _join(names: set[str]) -> str:
    return " and ".join(sorted(names))
