"""A block as a stage would have it, and what is checked of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Self

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.blocks import Block, Reversed, Reversible, Shape, Streams, backpropagate, frozen_statistics, leaf
from petra_graph.blocks.randomness import draws_watched, fork_rng, may_draw, random_key
from petra_graph.executor.numerics import NumericsContext, place
from petra_graph.executor.runners import Recompute, Reconstruct
from petra_graph.measure.nodes import checked_streams
from petra_graph.plugins.contract import BLOCK
from petra_graph.spec.model import PrecisionSpec
from petra_graph.testing.promises import ROUNDINGS, AnyTrial, NotTried, equal, expect, expect_close, generators_stay

Draw = Callable[[Shape, torch.Generator], Tensor]
"""Draws an input stream of a given shape, the batch included."""
NODE, MICRO_BATCHES, CPU = "checked", 3, torch.device("cpu")
_OF_GRADIENTS = {"float64": ROUNDINGS, "float32": 2**17, "bfloat16": 2**5}
"""Units of rounding by which gradients may be off, behind a reconstructed input in that precision."""


def normal(shape: Shape, generator: torch.Generator) -> Tensor:
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def tokens(vocabulary: int) -> Draw:
    """Return what draws streams of tokens, int64 from 0 to below a vocabulary."""
    return lambda shape, generator: torch.randint(vocabulary, shape, generator=generator)


@frozen(kw_only=True)
class Trial(AnyTrial):
    """A block with options, and the streams that it reads: their shapes without the batch, the samples in a micro-batch, what draws them.

    `draw` draws each stream, or is one for each of them; `tokens(50_000)` for a block that reads tokens. The others are as in a spec's
    `precision`.
    """

    kind = BLOCK
    inputs: tuple[Shape, ...]
    batch: int = 4
    draw: Draw | Sequence[Draw] = normal
    memory_format: Literal["channels-last", "contiguous"] = "channels-last"
    compute: Literal["float64", "float32", "bfloat16"] = "float64"

    @classmethod
    def of(cls, block: Any, inputs: Sequence[Sequence[int]], options: Any = None, **more: Any) -> Self:  # type: ignore[override]
        """Make a trial of a block's class, with its `options` table."""
        return super().of(block, options, inputs=tuple(map(tuple, inputs)), **more)


class Harness:
    """A trial's block as a stage on the CPU would have it: reversible ones keep nothing, others, and heads, their input.

    Its parameters are off their initial values: a last layer that starts at zero hides every mistake. Each `copy` has other parameters.
    """

    def __init__(self, trial: Trial, copy: int = 0) -> None:
        self.trial = trial
        precision = PrecisionSpec(compute=trial.compute, memory_format=trial.memory_format)
        self.numerics = NumericsContext(device=CPU, precision=precision, seed=trial.seed)
        self.dtype = self.numerics.dtype
        with fork_rng(random_key(trial.seed, NODE, "initial", copy), CPU):
            self.block: Block = place(trial.plugin.make(trial.inputs), self.numerics)
            for parameter in filter(torch.is_floating_point, self.block.parameters()):
                parameter.data.add_(torch.randn_like(parameter), alpha=0.05)
        kind = Reconstruct if isinstance(self.block, Reversible) else Recompute
        self.runner = kind({NODE: self.block}, self.numerics, reads_samples=False)

    def inputs(self, m: int) -> Streams:
        """Draw the input streams of micro-batch m."""
        generator = torch.Generator().manual_seed(random_key(self.trial.seed, "sample", m))
        shapes = [(self.trial.batch, *shape) for shape in self.trial.inputs]
        draws = [self.trial.draw] * len(shapes) if callable(self.trial.draw) else self.trial.draw
        return self.numerics.canonicalize([draw(shape, generator) for draw, shape in zip(draws, shapes, strict=True)])

    def train(self) -> Iterator[tuple[int, Streams, Streams, Streams, Reversed]]:
        """Run micro-batches forward and back as a stage of this depth does; gradients of parameters add up.

        Yields the number of each, its inputs, its outputs, their gradients, and what the backward returned.
        """
        read = [self.inputs(m) for m in range(MICRO_BATCHES)]
        returned = [self.runner.forward(m, streams) for m, streams in enumerate(read)]
        for m, (inputs, outputs) in enumerate(zip(read, returned, strict=True)):
            drawn = torch.Generator().manual_seed(random_key("gradient", m))
            gradients = tuple(normal(y.shape, drawn).to(y.dtype) for y in outputs)
            before = [one.clone() for one in (*outputs, *gradients)]
            back = self.runner.backward(m, outputs if isinstance(self.block, Reversible) else None, gradients)
            found = "backward changes its outputs or their gradients in place: others hold the same tensors"
            expect(equal((*outputs, *gradients), before), found)
            yield m, inputs, outputs, gradients, back

    def plain(self, m: int, inputs: Streams, gradients: Streams) -> tuple[Streams, Streams]:
        """Return the outputs and the inputs' gradients under plain autograd; parameters' gradients add up in `grad`."""
        own = tuple(map(leaf, inputs))
        with self.numerics.node(NODE, m):
            outputs = self.block(*own)
        return outputs, backpropagate(outputs, gradients, own)

    def alone(self, inputs: Streams, m: int = 0) -> tuple[Any, Tensor]:
        """Return what a training forward without a graph makes of a micro-batch, and the state of torch's generator behind it."""
        with torch.no_grad(), frozen_statistics(self.block), self.numerics.node(NODE, m):
            return self.block(*inputs), torch.get_rng_state()

    def state(self) -> dict[str, Tensor]:
        """Return a copy of all parameters and buffers."""
        both = (*self.block.named_parameters(), *self.block.named_buffers())
        return {name: one.detach().clone() for name, one in both}


# --- the checks ---------------------------------------------------------------------------------------------------------


def check_shapes(trial: Trial) -> None:
    """Outputs are tensors [n, ...] of the streams' type, and forward leaves its inputs alone."""
    harness = Harness(trial)
    inputs = harness.inputs(0)
    before = [one.clone() for one in inputs]
    for one in checked_streams(harness.alone(inputs)[0], trial.batch):
        found = f"an output is {one.dtype}, where inputs and parameters are {harness.dtype}"
        expect(one.dtype == harness.dtype or not one.is_floating_point(), found)
    expect(equal(inputs, before), "forward changes its inputs in place: others hold the same tensors")


def check_inverse(trial: Trial) -> None:
    """The inputs follow from the outputs, in training mode and with the forward's random numbers."""
    harness = Harness(trial)
    if not isinstance(harness.runner, Reconstruct):
        raise NotTried("it is not reversible")
    for m, inputs, outputs, _, back in harness.train():
        found = harness.runner.invert(m, outputs)
        expect_close("inverse(*forward(*x)) is not x", found, inputs, harness.dtype)
        expect_close("the input that the backward reconstructs is not x", back.inputs, inputs, harness.dtype)


def check_gradients(trial: Trial) -> None:
    """Gradients of inputs and parameters are plain autograd's, summed over micro-batches."""
    harness, plain = Harness(trial), Harness(trial)
    dtype = torch.bfloat16 if trial.compute == "bfloat16" else harness.dtype
    allowed = _OF_GRADIENTS[trial.compute]
    for m, inputs, outputs, gradients, back in harness.train():
        again, by_autograd = plain.plain(m, inputs, gradients)
        message = "a micro-batch gives other outputs a second time, with a graph"
        expect_close(message, again, outputs, dtype, allowed)
        # A stream of integers has a gradient without values.
        pairs = [pair for pair in zip(back.gradients, by_autograd, strict=True) if pair[1].numel()]
        found, expected = [one for one, _ in pairs], [one for _, one in pairs]
        expect_close("the gradient of the input is not plain autograd's", found, expected, dtype, allowed)
    trained = [[one for one in of.block.parameters() if one.requires_grad] for of in (harness, plain)]
    found, expected = (
        [torch.zeros_like(one) if one.grad is None else one.grad.to_dense() for one in own] for own in trained
    )
    message = "the gradient of the parameters, over some micro-batches, is not plain autograd's"
    expect_close(message, found, expected, dtype, allowed)


def check_randomness(trial: Trial) -> None:
    """A micro-batch draws the same numbers whenever it runs, another one others, and no global generator moves."""
    harness = Harness(trial)
    inputs, draws = harness.inputs(0), may_draw(harness.block)
    if not draws:
        with draws_watched() as drew, fork_rng(0, CPU):
            harness.alone(inputs)
        expect(not drew, "random numbers were drawn, or micro_batch() was asked, though a class says `draws = False`")
    with generators_stay("draw with torch functions: training moved"):
        same = equal(*(harness.runner.run_without_graph(0, inputs) for _ in range(2)))
        expect(same, "the same micro-batch drew other numbers: draw with torch's own generator, as dropout does")
        list(harness.train())
    # Outputs would not tell: dropout of a small rate often has the same mask twice.
    left = [harness.alone(inputs, m)[1] for m in range(2)]
    expect(not draws or not torch.equal(*left), "it seeds torch's generator: all micro-batches draw the same")


def check_statistics(trial: Trial) -> None:
    """Forward and backward together update running statistics once."""
    harness, plain = Harness(trial), Harness(trial)
    remedy = "keep them in a submodule with `track_running_stats`, and update them only where that is true"
    for m, inputs, _, gradients, _ in harness.train():
        plain.plain(m, inputs, gradients)
        once = plain.state()
        for name, one in harness.state().items():
            message = f"{name} is not as after one training forward of plain torch: {remedy}"
            expect_close(message, [one], [once[name]], harness.dtype)


def check_evaluation(trial: Trial) -> None:
    """In evaluation a batch gives the outputs of its samples one by one, draws nothing, and changes nothing."""
    harness = Harness(trial)
    list(harness.train())
    block, inputs, before = harness.block.eval(), harness.inputs(0), harness.state()
    with torch.no_grad(), generators_stay("draw only where self.training: evaluation moved"):
        whole = block(*inputs)
        single = [block(*(one[row : row + 1] for one in inputs)) for row in range(trial.batch)]
    moved = [name for name, one in harness.state().items() if name not in before or not torch.equal(one, before[name])]
    expect(not moved, f"{', '.join(moved)} changed: update buffers only where self.training")
    rows = [torch.cat(streams) for streams in zip(*single, strict=True)]
    expect_close("a batch's outputs are not those of its samples", rows, whole, harness.dtype)


def check_state_dictionary(trial: Trial) -> None:
    """A trained block's state dictionary, loaded into another one, makes it the same block."""
    trained, other = Harness(trial), Harness(trial, copy=1)
    list(trained.train())
    other.block.load_state_dict({key: one.clone() for key, one in trained.block.state_dict().items()})
    inputs, remedy = trained.inputs(MICRO_BATCHES), "hold state in parameters and persistent buffers"
    for mode in ("training", "evaluation"):
        for one in (trained, other):
            one.block.train(mode == "training")
        outputs = [one.runner.run_without_graph(MICRO_BATCHES, inputs) for one in (trained, other)]
        expect(equal(*outputs), f"a block that has loaded it gives other outputs in {mode}: {remedy}")


Trial.checks = (
    check_shapes, check_inverse, check_gradients, check_randomness, check_statistics, check_evaluation, check_state_dictionary,
)  # fmt: skip
