"""One block in the graph of autograd: its forward keeps nothing, its backward undoes it.

    forward     streams ─ block 0 ─ block 1 ─ ... ─ block L-1 (keeps its outputs)
    backward    streams of block i's output: left by block i+1, which has reconstructed them

Decision: each block is a node of its own, which has the block's parameters as inputs. So autograd itself accumulates
every gradient as soon as it is known, one block after the other: hooks fire once, data-parallel buckets fill during the
backward, `torch.autograd.grad` works. A block gets the outputs that it undoes from the node after it, which autograd
always runs before: its only way to a gradient.
"""

from __future__ import annotations

import operator
from contextlib import nullcontext
from typing import Any

import torch
from attrs import frozen
from torch import Tensor

from petra_graph.autograd.block_state import BlockState
from petra_graph.autograd.sequence_call import SequenceCall, alone
from petra_graph.blocks import Reversed, Reversible, Streams, frozen_statistics


@frozen(eq=False)
class Step:
    """A block in one forward."""

    block: Reversible
    index: int
    call: SequenceCall
    anchor: bool
    """Whether it keeps its outputs: the last block, or one from which reconstruction begins again."""
    streams: int
    """Number of streams; the differentiated arguments follow them, then the parameters."""
    differentiated: int
    state: BlockState
    """As it is in the forward."""

    @staticmethod
    def forward(
        block: Reversible, index: int, call: SequenceCall, streams: Streams, differentiated: Streams, *, anchor: bool
    ) -> Streams:
        """Run a block; the outputs have a graph that keeps no activation."""
        with alone:
            state = BlockState.of(block)
            step = Step(block, index, call, anchor, len(streams), len(differentiated), state)
            outputs: Streams = _Node.apply(step, *streams, *differentiated, *state.values)
        return outputs

    def expect_unchanged(self) -> None:
        """Check that the block is as it was in its forward.

        Raises:
            RuntimeError: other inputs would be reconstructed.
        """
        # Functions may write to their arguments in each evaluation: the first backward of a call looks at them.
        change = self.state.change or (self.call.change if self.index == self.call.last else "")
        if change:
            raise RuntimeError(
                f"petra_graph.reversible: block {self.index} is not as it was in its forward, so that its backward would "
                f"reconstruct other inputs: {change}"
            )

    def evaluate(self, streams: Streams, differentiated: Streams) -> Streams:
        """Run the block as it is."""
        with self.call.block(self.index):
            outputs: Streams = self.block(*streams, *differentiated)
        return outputs[: self.streams]

    def reverse(
        self, outputs: Streams, gradients: Streams, differentiated: Streams
    ) -> tuple[Reversed, list[Tensor | None]]:
        """Undo the block; return its inputs, and the gradients with respect to all that it read."""
        nothing = tuple(torch.zeros((), dtype=one.dtype, device=one.device).expand_as(one) for one in differentiated)
        frozen_where_any = frozen_statistics(self.block) if self.state.tracks_statistics else nullcontext()
        methods = type(self.block).reverse_vjp, type(self.block).reverse_steps
        if self.state.copies and all(map(operator.is_, methods, (Reversible.reverse_vjp, Reversible.reverse_steps))):
            raise RuntimeError(
                f"petra_graph.reversible: block {self.index} writes to its buffers, and its backward would evaluate it twice, once "
                "to invert it; let it define reverse_steps, or leave the buffers alone"
            )
        own = not all(method.__module__.startswith("petra_graph.") for method in methods)
        with self.call.block(self.index), self.state.evaluated_again(adds_to_grad=own) as found, frozen_where_any:
            reverse = self.block.reverse_vjp((*outputs, *differentiated), (*gradients, *nothing))
        return reverse, found


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: Step, *read: Tensor) -> Streams:
        """Run the block without a graph; `read` are streams, differentiated arguments and parameters."""
        split = step.streams + step.differentiated
        outputs = step.evaluate(read[: step.streams], read[step.streams : split])
        step.state.note_written()
        ctx.step = step
        ctx.save_for_backward(*read[step.streams : split], *(outputs if step.anchor else ()))
        return outputs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Undo the block, and leave its inputs to the block before it."""
        if torch.is_grad_enabled():
            raise RuntimeError(
                "petra_graph.reversible: a second derivative was asked for (create_graph=True), and a backward that "
                "reconstructs has none; set keep_graphs=len(sequence) to differentiate it with plain autograd"
            )
        step: Step = ctx.step
        step.expect_unchanged()
        saved = ctx.saved_tensors
        differentiated = saved[: step.differentiated]
        backward = torch._C._current_graph_task_id()  # noqa: SLF001  as torch's own checkpoints tell backwards apart
        left = step.call.left.pop(backward, None)
        outputs = saved[step.differentiated :] if step.anchor else left
        if outputs is None:
            raise RuntimeError(
                f"petra_graph.reversible: the backward has reached block {step.index} without the block after it; "
                "differentiate the outputs of the sequence, not values from within"
            )
        if step.index == step.call.last:

            def forget() -> None:  # where it stops before the first block
                step.call.left.pop(backward, None)

            torch.autograd.Variable._execution_engine.queue_callback(forget)  # noqa: SLF001  nothing public runs at its end
        reverse, of_parameters = step.reverse(outputs, gradients, differentiated)
        if step.index and any(ctx.needs_input_grad[1 : 1 + step.streams]):  # else no block before it has a backward
            step.call.left[backward] = reverse.inputs[: step.streams]
        found = [
            gradient if stream.is_floating_point() else None
            for stream, gradient in zip(reverse.inputs, reverse.gradients, strict=True)
        ]
        return None, *found, *of_parameters
