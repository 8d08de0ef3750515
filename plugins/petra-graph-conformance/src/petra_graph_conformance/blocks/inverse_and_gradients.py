"""A block's backward: the input follows from the output, at the cost of one evaluation; gradients are plain autograd's.

Under bfloat16 autocast a block computes in the same types in forward and backward; streams stay float32.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor

from petra_graph.blocks import Block, Reversible
from petra_graph.errors import shown
from petra_graph.units import listed
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.blocks.micro_batches_through_block import Harness, gradients_for, recorded, residual_names
from petra_graph_conformance.broken_promise import (
    ROUNDINGS,
    BrokenPromise,
    expect_close,
    name_of,
    relative_error,
    tolerance,
)

_TRIED = 16
"""Micro-batches, at most, in which a gradient is to reach each parameter."""
_OTHER_WAY = 2**8
"""Units of rounding in float32 by which two ways through one part of a block may differ."""


def check_inverse(trial: Trial) -> None:
    """`inverse` and `reverse_vjp` reconstruct the input: in training mode, with the forward's dropout masks.

    Several micro-batches are in flight, as in a pipeline.
    """
    undo = remedy = (
        "undo the steps of forward in the opposite order, and evaluate F at the same tensor as forward did; "
        "F must be a function of its argument, the parameters and torch's own generator"
    )
    for harness in (Harness(trial, "float64"), Harness(trial, "float32")):
        other = "inverse(*forward(*x)) is not x"
        if harness.draws(0):
            if _is_right_without_draws(trial, harness):
                other += ", because it draws other random numbers (in evaluation mode it is)"
                remedy = _IN_ORDER
            else:
                remedy = f"{_IN_ORDER}; {undo}"
        for trip in harness.train():
            exact, coarse = harness.numerics.dtype, harness.precision
            found = harness.invert(trip.m, trip.outputs)
            expect_close("inverse", other, found, trip.inputs, dtype=exact, remedy=remedy)
            # With a graph, torch may take another way through a part that is in float32.
            roundings = ROUNDINGS if coarse == exact else _OTHER_WAY
            what, found = "the input that reverse_vjp reconstructs is not x", trip.reverse.inputs
            expect_close("inverse", what, found, trip.inputs, dtype=coarse, roundings=roundings, remedy=remedy)


_IN_ORDER = (
    "draw random numbers in the inverse in the order in which forward draws them, though it undoes the last step first; or draw "
    'those of each function within `with petra_graph.blocks.rng_scope("f"):`, by a name of its own, as couplings do'
)


def _is_right_without_draws(trial: Trial, harness: Harness) -> bool:
    block = Harness(trial, "float64").block.eval()
    inputs = tuple(one.double() if one.is_floating_point() else one for one in harness.inputs(0))
    try:
        with torch.no_grad():
            found = block.invert(*block(*inputs)) if isinstance(block, Reversible) else ()
    except Exception:  # noqa: BLE001  a block may have no inverse in evaluation mode
        return False
    return len(found) == len(inputs) and relative_error(found, inputs) <= tolerance(torch.float32)


def check_one_evaluation(trial: Trial) -> None:
    """The backward of a coupling evaluates each residual function once: the value reconstructs, the graph differentiates."""
    harness = Harness(trial)
    outputs = harness.forward(0, harness.inputs(0))
    with recorded(harness.block) as values:
        harness.backward(0, outputs, gradients_for(0, outputs))
    counts = {name: len(values.get(name, ())) for name in residual_names(harness.block)}
    wrong = [(name, count) for name, count in counts.items() if count != 1]
    if wrong:
        found = ", ".join(f"`{name}` was evaluated {count} times in one backward" for name, count in wrong)
        remedy = "leave reverse_steps to the coupling; each more evaluation costs a backward a fourth of a step"
        raise BrokenPromise("one evaluation", found, remedy)


def check_gradients(trial: Trial) -> None:
    """Gradients of inputs and parameters are plain autograd's, summed over the micro-batches of a window.

    Errors are taken over all parameters together: a bias before batch normalisation has no gradient but rounding.
    """
    remedy = (
        "differentiate one evaluation of each function at the input's own value with petra_graph.blocks.backpropagate; "
        "it adds to `grad`, since gradients of a window of micro-batches add up"
    )
    harness, plain = Harness(trial), Harness(trial)
    trips = harness.train()
    for trip in trips:
        _, expected = plain.plain_pass(trip.m, trip.inputs, trip.gradients)
        pairs = [pair for pair in zip(trip.reverse.gradients, expected, strict=True) if pair[1].numel()]
        if any(one.shape != other.shape for one, other in pairs):
            raise BrokenPromise("gradients", "an input's gradient has not the input's shape", remedy)
        found, of_plain = [one for one, _ in pairs], [other for _, other in pairs]
        message = "the gradient of the input is not plain autograd's"
        expect_close("gradients", message, found, of_plain, dtype=harness.precision, remedy=remedy)
    message = f"the gradient of the parameters over {len(trips)} micro-batches is not plain autograd's"
    of_block, of_plain = gradients_of(harness.block), gradients_of(plain.block)
    expect_close("gradients", message, of_block, of_plain, dtype=harness.precision, remedy=remedy)


def gradients_of(block: Block) -> list[Tensor]:
    """Return the gradients of a block's trained parameters; zeros where one has none."""
    return [
        torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.to_dense()
        for parameter in block.parameters()
        if parameter.requires_grad
    ]


def check_every_gradient(trial: Trial) -> None:
    """Each parameter that requires a gradient gets one: forward uses it, and not behind no_grad or detach.

    Some micro-batches may pass one over, as those of experts and of dropped layers.
    """
    harness = Harness(trial)
    for m in range(_TRIED):
        outputs = harness.forward(m, harness.inputs(m))
        harness.backward(m, outputs, gradients_for(m, outputs))
        trained = ((name, one) for name, one in harness.block.named_parameters() if one.requires_grad)
        lacking = [shown(name) for name, one in trained if one.grad is None and one.numel()]
        if not lacking:
            return
    remedy = (
        "let forward use it, outside of torch.no_grad() and without detach(); or freeze it with requires_grad_(False), or do not "
        "have it"
    )
    found = f"no gradient reaches {listed(lacking)} in {_TRIED} micro-batches"
    raise BrokenPromise("every parameter", found, remedy)


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
            raise BrokenPromise("autocast", found, remedy)
    for noun, streams in (
        ("output", outputs),
        ("reconstructed input", reverse.inputs),
        ("input gradient", reverse.gradients),
        ("parameter gradient", gradients_of(block)),
    ):
        for stream in filter(torch.is_floating_point, streams):
            finite = bool(stream.isfinite().all())
            if stream.dtype != torch.float32 or not finite:
                found = f"an {noun} is {name_of(stream.dtype) if finite else 'not finite'}"
                remedy = "let additions to streams happen outside bfloat16, as couplings do"
                raise BrokenPromise("autocast", found, remedy)


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
