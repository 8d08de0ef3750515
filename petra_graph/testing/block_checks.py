"""The twelve checks of a block."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor
from torch.autograd.gradcheck import GradcheckError, gradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from petra_graph.blocks import Streams, frozen_statistics
from petra_graph.blocks.randomness import draws_watched, fork_rng, may_draw
from petra_graph.executor.runners import Reconstruct
from petra_graph.testing.block_trial import MICRO_BATCHES, NODE, Compute, Harness, Trial, drawn_gradients
from petra_graph.testing.promises import (
    ROUNDINGS,
    BrokenPromise,
    NotTried,
    equal,
    expect,
    expect_close,
    expect_still_generators,
    short,
)

_AGAIN = "the same micro-batch gives other outputs when it is evaluated again, with a graph"
_TRIED = 16
"""Micro-batches, at most, in which a gradient is to reach each parameter."""
_OF_GRADIENTS: Mapping[Compute, int] = {"float64": ROUNDINGS, "float32": 2**17, "bfloat16": 2**5}
"""Units of rounding by which gradients may be off, behind a reconstructed input in that precision."""


def check_shapes(trial: Trial) -> None:
    """Outputs are tensors [n, ...] of the streams' type; forward leaves its inputs alone, and backward outputs and gradients."""
    harness = Harness(trial)
    inputs = harness.inputs(0)
    before = [one.clone() for one in inputs]
    with harness.alone():
        outputs: Any = harness.block(*inputs)
    is_tuple = isinstance(outputs, tuple) and bool(outputs)
    expect(is_tuple, f"forward returned {type(outputs).__name__}, not a tensor or a tuple")
    for one in outputs:
        expect(isinstance(one, Tensor), f"forward returned a {type(one).__name__} among its outputs, not a tensor")
        found = f"{trial.batch} samples came in, and an output is {list(one.shape)}"
        expect(one.shape[:1] == (trial.batch,), found)
        found = f"an output is {short(one.dtype)}, where inputs and parameters are {short(harness.dtype)}"
        expect(one.dtype == harness.dtype or not one.is_floating_point(), found)
    real = any(one.is_floating_point() for one in outputs)
    expect(real, "no output is of real numbers, so nothing below it can learn")
    expect(equal(inputs, before), "forward changes its inputs in place: others hold the same tensors")
    outputs = harness.runner.forward(0, inputs)
    gradients = drawn_gradients(0, outputs)
    before = [one.clone() for one in (*outputs, *gradients)]
    with suppress(Exception):  # inverse and gradients say it
        harness.backward(0, outputs, gradients)
    expect(equal((*outputs, *gradients), before), "backward changes its outputs or their gradients in place")


def check_inverse(trial: Trial) -> None:
    """The inputs follow from the outputs, in training mode and with the forward's random numbers."""
    computes: tuple[Compute, ...] = ("float64", "float32") if trial.compute is None else (trial.compute,)
    for compute in computes:
        harness = Harness(trial, compute)
        if not isinstance(harness.runner, Reconstruct):
            raise NotTried("it is not reversible")
        for trip in harness.train():
            found = harness.runner.invert(trip.m, trip.outputs)
            expect_close("inverse(*forward(*x)) is not x", found, trip.inputs, harness.dtype)
            message = "the input that the backward reconstructs is not x"
            expect_close(message, trip.back.inputs, trip.inputs, harness.dtype)


def check_gradients(trial: Trial) -> None:
    """Gradients of inputs and parameters are plain autograd's, summed over micro-batches."""
    harness, plain = Harness(trial), Harness(trial)
    dtype = torch.bfloat16 if harness.compute == "bfloat16" else harness.dtype
    allowed = _OF_GRADIENTS[harness.compute]
    for trip in harness.train():
        _, expected = plain.plain(trip)
        pairs = [pair for pair in zip(trip.back.gradients, expected, strict=True) if pair[1].numel()]
        found, of_plain = [one for one, _ in pairs], [one for _, one in pairs]
        expect_close("the gradient of the input is not plain autograd's", found, of_plain, dtype, allowed)
    message = "the gradient of the parameters, over some micro-batches, is not plain autograd's"
    expect_close(message, harness.parameter_gradients(), plain.parameter_gradients(), dtype, allowed)


def check_gradcheck(trial: Trial) -> None:
    """Autograd's gradients are derivatives, by `torch.autograd.gradcheck`: a `backward` of one's own may leave out a term."""
    harness = Harness(trial, "float64")
    inputs = [one.requires_grad_(one.is_floating_point()) for one in harness.inputs(0)]
    with Rounding(inputs) as rounding:
        try:
            harness.peek(0, tuple(inputs))
        except RuntimeError as error:
            if trial.compute in {None, "float64"}:
                raise
            raise NotTried(f"it does not compute in float64, nor does the run: {error}") from error
    if rounding.found:
        raise NotTried(f"it computes in {rounding.found} what came in float64")
    trained = [one for one in harness.block.parameters() if one.requires_grad and one.dtype == torch.float64]

    def outputs(*moved: Tensor) -> Streams:
        with frozen_statistics(harness.block), harness.numerics.node(NODE, 0):
            return tuple(one for one in harness.block(*moved[: len(inputs)]) if one.is_floating_point())

    if not any(one.requires_grad for one in (*inputs, *trained)):
        raise NotTried("it has neither streams of real numbers nor parameters")
    try:
        gradcheck(outputs, (*inputs, *trained), fast_mode=True, atol=1e-4, rtol=1e-3)
    except GradcheckError as error:
        numbers = " ".join(line for line in str(error).splitlines() if line.strip())
        raise BrokenPromise(f"gradients are not the derivatives of finite differences: {numbers[:300]}") from error


def check_randomness(trial: Trial) -> None:
    """A micro-batch draws the same numbers whenever it runs, another one others, and no global generator moves."""
    harness = Harness(trial)
    inputs = harness.inputs(0)
    if not may_draw(harness.block):
        with draws_watched() as drew, fork_rng(0, torch.device("cpu")), harness.alone():
            harness.block(*inputs)
        expect(not drew, "random numbers were drawn, or micro_batch() was asked, though a class says `draws = False`")
    with expect_still_generators("draw with torch functions: training moved"):
        same = equal(harness.peek(0, inputs), harness.peek(0, inputs))
        expect(same, "the same micro-batch drew other numbers: draw with torch's own generator, as dropout does")
        harness.round_trip(0, inputs)

    def left(m: int) -> bytes:
        with harness.alone(m):
            harness.block(*inputs)
            return torch.get_rng_state().numpy().tobytes()

    # Outputs would not tell: dropout of a small rate often has the same mask twice.
    others = left(0) != left(1) or not may_draw(harness.block)
    expect(others, "it seeds torch's generator: all micro-batches draw the same")


def check_recomputation(trial: Trial) -> None:
    """A micro-batch gives the same outputs again, with a graph and after others have passed."""
    harness = Harness(trial)
    for trip in harness.train():
        expect_close(f"{_AGAIN} and after others", harness.plain(trip)[0], trip.outputs, harness.dtype)


def check_statistics(trial: Trial) -> None:
    """A forward without a graph leaves the block as it is; forward and backward together update running statistics once."""
    harness, plain = Harness(trial), Harness(trial)
    remedy = "keep them in a submodule with `track_running_stats`, and update them only where that is true"
    for m in range(MICRO_BATCHES):
        inputs, before = harness.inputs(m), harness.state()
        harness.peek(m, inputs)
        twice = _changed(before, harness.state())
        expect(not twice, f"{twice} changed in a forward without a graph, so each micro-batch counts twice: {remedy}")
        plain.plain(harness.round_trip(m, inputs))
        once = plain.state()
        for name, one in harness.state().items():
            message = f"{name} is not as after one training forward of plain torch: {remedy}"
            expect_close(message, [one], [once[name]], harness.dtype)


def check_every_parameter(trial: Trial) -> None:
    """A gradient reaches each parameter that requires one, in some micro-batch."""
    harness = Harness(trial)
    lacking: list[str] = []
    for m in range(_TRIED):
        harness.round_trip(m, harness.inputs(m))
        trained = ((name, one) for name, one in harness.block.named_parameters() if one.requires_grad and one.numel())
        if not (lacking := [name for name, one in trained if one.grad is None]):
            return
    hint = "use it in forward, or freeze it with requires_grad_(False)"
    raise BrokenPromise(f"no gradient reaches {', '.join(lacking)}: {hint}")


def check_precision(trial: Trial) -> None:
    """Under float64, nothing that is made of the streams is rounded to fewer bits."""
    _only_in(trial, "float64")
    harness = Harness(trial)
    inputs = harness.inputs(0)
    with harness.alone(), Rounding(inputs) as rounding:
        harness.block(*inputs)
    remedy = "cast to x.dtype, so that reconstructions have no errors of that type"
    expect(not rounding.found, f"under float64 it rounds a stream to {rounding.found}: {remedy}")


def check_autocast(trial: Trial) -> None:
    """Under bfloat16 a micro-batch gives the same outputs again, with a graph, and what it gives stays finite float32."""
    _only_in(trial, "bfloat16")
    harness = Harness(trial, "bfloat16")
    trip = harness.round_trip(0, harness.inputs(0))
    expect_close(f"under autocast {_AGAIN}", harness.plain(trip)[0], trip.outputs, torch.float32)
    streams = {
        "output": trip.outputs,
        "reconstructed input": trip.back.inputs,
        "gradient of an input": trip.back.gradients,
        "gradient of a parameter": harness.parameter_gradients(),
    }
    for noun, several in streams.items():
        for one in filter(torch.is_floating_point, several):
            sound = one.dtype == torch.float32 and bool(one.isfinite().all())
            expect(sound, f"an {noun} is {short(one.dtype)}, or not finite; streams are to be finite float32")


def check_evaluation(trial: Trial) -> None:
    """In evaluation a batch gives the outputs of its samples one by one, draws nothing, and changes nothing."""
    harness = _trained(trial)
    block, inputs = harness.block.eval(), harness.inputs(0)
    before = harness.state()
    with torch.no_grad(), expect_still_generators("draw only where self.training: evaluation moved"):
        whole = block(*inputs)
        single = [block(*(one[row : row + 1] for one in inputs)) for row in range(trial.batch)]
    moved = _changed(before, harness.state())
    expect(not moved, f"{moved} changed: update buffers only where self.training")
    rows = [torch.cat(streams) for streams in zip(*single, strict=True)]
    expect_close("a batch's outputs are not those of its samples", rows, whole, harness.dtype)


def check_state_dictionary(trial: Trial) -> None:
    """A trained block's state dictionary, loaded into another one, makes it the same block."""
    trained, other = _trained(trial), Harness(trial, copy=1)
    other.block.load_state_dict({key: one.clone() for key, one in trained.block.state_dict().items()})
    inputs, remedy = trained.inputs(MICRO_BATCHES), "hold state in parameters and persistent buffers"
    for mode in ("training", "evaluation"):
        for one in (trained, other):
            one.block.train(mode == "training")
        same = equal(*(one.peek(MICRO_BATCHES, inputs) for one in (trained, other)))
        expect(same, f"a block that has loaded it gives other outputs in {mode}: {remedy}")


BLOCK_CHECKS = (
    check_shapes,
    check_inverse,
    check_gradients,
    check_gradcheck,
    check_randomness,
    check_recomputation,
    check_statistics,
    check_every_parameter,
    check_precision,
    check_autocast,
    check_evaluation,
    check_state_dictionary,
)


def _only_in(trial: Trial, compute: Compute) -> None:
    """Leave a check of one precision out where the run has another."""
    if trial.compute not in {None, compute}:
        raise NotTried(f"the run computes in {trial.compute}, not in {compute}")


def _trained(trial: Trial) -> Harness:
    harness = Harness(trial)
    for _ in harness.train():
        pass
    return harness


def _changed(before: Mapping[str, Tensor], now: Mapping[str, Tensor]) -> str:
    """Return the names of tensors that are others than before."""
    return ", ".join(name for name, one in now.items() if name not in before or not torch.equal(one, before[name]))


class Rounding(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operation that makes fewer bits of a float64 value that follows from the streams."""

    def __init__(self, streams: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""
        self._made = {id(one): one for one in streams}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation."""
        result = func(*args, **(kwargs or {}))
        made, read = _tensors(result), [one for one in _tensors((args, kwargs or {})) if id(one) in self._made]
        coarse = [one for one in made if one.is_floating_point() and one.dtype != torch.float64]
        if coarse and any(one.dtype == torch.float64 for one in read):
            self.found = self.found or short(coarse[0].dtype)
        if read:
            self._made.update({id(one): one for one in made})
        return result


def _tensors(tree: Any) -> list[Tensor]:
    return [one for one in tree_leaves(tree) if isinstance(one, Tensor)]
