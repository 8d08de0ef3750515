"""Under bfloat16 autocast a block computes in the same types in forward and backward; streams stay float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from petra_graph.blocks import Block
from petra_graph.testing.passage import Rig, gradients_for
from petra_graph.testing.promise import BrokenPromise, name_of
from petra_graph.testing.reversal import residual_names, watched
from petra_graph.testing.trial import Trial

PROMISE = "autocast"
Seen = dict[str, set[str]]


def check_autocast(trial: Trial) -> None:
    """Every part of the block returns the same type in forward and backward; what the stage keeps is finite float32."""
    numerics = trial.numerics("bfloat16")
    block = trial.build(numerics)
    rig = Rig(block, numerics)
    inputs = trial.streams(numerics, 0)
    with _types(block) as forward:
        outputs = rig.forward(0, inputs)
    gradients = gradients_for(0, outputs)
    with _types(block) as backward:
        found = rig.backward(0, outputs, gradients)
    for name in forward.keys() & backward.keys():
        if forward[name] != backward[name]:
            came = f"`{name}` returned {_join(forward[name])} in forward and {_join(backward[name])} in backward"
            raise BrokenPromise(PROMISE, came, "switch autocast neither on nor off inside the block, or in both passes")
    for what, streams in (
        ("output", outputs),
        ("reconstructed input", found.inputs),
        ("input gradient", found.gradients),
        ("parameter gradient", [p.grad for p in block.parameters() if p.grad is not None]),
    ):
        for stream in streams:
            if stream.is_floating_point() and (stream.dtype != torch.float32 or not stream.isfinite().all()):
                came = (
                    f"an {what} is {name_of(stream.dtype)}" if stream.isfinite().all() else f"an {what} is not finite"
                )
                raise BrokenPromise(PROMISE, came, "let additions to streams happen outside bfloat16, as couplings do")


@contextmanager
def _types(block: Block) -> Iterator[Seen]:
    """Record the types that residual functions and submodules return."""
    seen: Seen = {}

    def note(name: str) -> Callable[[Any], None]:
        def see(value: Any) -> None:
            if isinstance(value, Tensor):
                seen.setdefault(name, set()).add(name_of(value.dtype))

        return see

    with ExitStack() as stack:
        for name in residual_names(block):
            stack.enter_context(watched(block, name, note(name)))
        for name, module in block.named_modules():
            if name:
                stack.enter_context(_hooked(module, note(name)))
        yield seen


@contextmanager
def _hooked(module: nn.Module, see: Callable[[Any], None]) -> Iterator[None]:
    handle = module.register_forward_hook(lambda _module, _inputs, value: see(value))
    try:
        yield
    finally:
        handle.remove()


def _join(names: set[str]) -> str:
    return " and ".join(sorted(names))
