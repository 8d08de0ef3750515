"""A reversible block's input follows from its output, at the cost of one evaluation of F."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from petra_graph.blocks import AdditiveCoupling, Block, Reversible, TwoFunctionCoupling
from petra_graph.testing.passage import Rig, gradients_for, invert, train
from petra_graph.testing.promise import BrokenPromise, expect_close
from petra_graph.testing.trial import Trial


def check_inverse(trial: Trial) -> None:
    """`inverse`, and what `reverse_vjp` reconstructs, are the input: in training mode, with the forward's dropout masks.

    Several micro-batches are under way at once, as in a pipeline.
    """
    promise = "inverse"
    for compute, dtype in (("float64", torch.float64), ("float32", torch.float32)):
        numerics = trial.numerics("float64" if compute == "float64" else "float32")
        block = trial.build(numerics)
        assert isinstance(block, Reversible)
        for passage in train(trial, Rig(block, numerics)):
            remedy = (
                "undo the steps of forward in the opposite order, and evaluate F at the same tensor as forward did; "
                "F must be a function of its argument, the parameters and torch's own generator"
            )
            again = invert(block, numerics, passage.m, passage.outputs)
            what = "inverse(*forward(*x)) is not x"
            expect_close(promise, what, again, passage.inputs, dtype=dtype, remedy=remedy)
            what = "the input that reverse_vjp reconstructs is not x"
            expect_close(promise, what, passage.found.inputs, passage.inputs, dtype=dtype, remedy=remedy)


def check_one_evaluation(trial: Trial) -> None:
    """The backward of a coupling evaluates each residual function once: the value reconstructs, the graph differentiates."""
    numerics = trial.numerics("float64")
    block = trial.build(numerics)
    rig = Rig(block, numerics)
    inputs = trial.streams(numerics, 0)
    outputs = rig.forward(0, inputs)
    with _counted(block) as counts:
        rig.backward(0, outputs, gradients_for(0, outputs))
    wrong = {name: count for name, count in counts.items() if count != 1}
    if wrong:
        found = ", ".join(f"`{name}` was evaluated {count} times in one backward" for name, count in wrong.items())
        remedy = "leave reverse_vjp to the coupling; each more evaluation costs a backward a fourth of a step"
        raise BrokenPromise("one evaluation", found, remedy)


def residual_names(block: Block) -> tuple[str, ...]:
    """Return the names of a coupling's residual functions; () for other blocks."""
    if isinstance(block, AdditiveCoupling):
        return ("residual",)
    return ("f", "g") if isinstance(block, TwoFunctionCoupling) else ()


@contextmanager
def watched(block: nn.Module, name: str, see: Callable[[Tensor], None]) -> Iterator[None]:
    """Show the value of each call of a method to `see`."""
    method = getattr(block, name)

    def watching(*arguments: Any) -> Any:
        value = method(*arguments)
        see(value)
        return value

    setattr(block, name, watching)
    try:
        yield
    finally:
        delattr(block, name)


@contextmanager
def _counted(block: Block) -> Iterator[dict[str, int]]:
    counts = dict.fromkeys(residual_names(block), 0)

    def count(name: str) -> Callable[[Tensor], None]:
        def see(_: Tensor) -> None:
            counts[name] += 1

        return see

    with ExitStack() as stack:
        for name in counts:
            stack.enter_context(watched(block, name, count(name)))
        yield counts
