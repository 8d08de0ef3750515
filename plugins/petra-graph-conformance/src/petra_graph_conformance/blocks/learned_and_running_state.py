"""A block's state: the state dictionary holds all that it learns; running statistics count every micro-batch once."""

from __future__ import annotations

import torch
from torch import Tensor

from petra_graph.blocks import Block
from petra_graph.blocks.moving_state import Held, moved, state_of
from petra_graph.kinds.generators import drawn_without_key, states_without_key
from petra_graph_conformance.blocks.block_trial import Trial
from petra_graph_conformance.blocks.micro_batches_through_block import MICRO_BATCHES, Harness, gradients_for
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal, relative_error, tolerance

_UNSEEN = 7
"""A micro-batch on which neither block has trained."""


def check_state_dict(trial: Trial) -> None:
    """A trained block's state, loaded into another one, makes it the same block: in training and in evaluation."""
    trained, other = Harness(trial), Harness(trial, copy=1)
    trained.train()
    state = {key: value.clone() for key, value in trained.block.state_dict().items()}
    try:
        other.block.load_state_dict(state)
    except RuntimeError as error:
        found = f"another block of the same options does not take it: {str(error).splitlines()[-1].strip()}"
        remedy = "let its keys and shapes follow from inputs and options alone"
        raise BrokenPromise("state dictionary", found, remedy) from error
    inputs = trained.inputs(_UNSEEN)
    for mode in ("training", "evaluation"):
        for harness in (trained, other):
            harness.block.train(mode == "training")
        if not all_equal(trained.peek(_UNSEEN, inputs), other.peek(_UNSEEN, inputs)):
            found = f"a block that has loaded it gives other outputs in {mode} mode"
            remedy = "hold learned values in nn.Parameter, running ones in persistent buffers; Linear and BatchNorm do"
            raise BrokenPromise("state dictionary", found, remedy)


LEAVE = (
    "leave parameters to the optimizer: normalise a copy of them in forward, as in F.normalize(self.weight); "
    "for nn.Embedding(max_norm=...), scale the rows that it returns"
)
"""What to do about a parameter that a forward writes to."""
IN_A_FORWARD = "in a forward without a graph"
"""What moves there is the cause where other promises are broken, too."""
_STATISTICS_REMEDY = (
    "hold running statistics in buffers of a submodule with an attribute `track_running_stats`, "
    "and update them only where it is true and the module is training; a layer of others, as parametrizations.spectral_norm makes, "
    'trains under method.name = "backprop", where each forward runs once'
)


def check_statistics(trial: Trial) -> None:
    """A forward without a graph leaves alone what the block remembers; forward and backward together update buffers once."""
    _expect_still(Harness(trial))
    harness, plain = Harness(trial), Harness(trial)
    for m in range(MICRO_BATCHES):
        inputs = harness.inputs(m)
        before = _buffers(harness.block)
        harness.peek(m, inputs)
        changed = [name for name, value in _buffers(harness.block).items() if not torch.equal(value, before[name])]
        if changed:
            found = f"{', '.join(changed)} changed {IN_A_FORWARD}, so each micro-batch counts twice"
            raise BrokenPromise("statistics", found, _STATISTICS_REMEDY)
        outputs = harness.forward(m, inputs)
        gradients = gradients_for(m, outputs)
        harness.backward(m, outputs, gradients)
        plain.plain_pass(m, inputs, gradients)
        _compare_buffers(_buffers(harness.block), _buffers(plain.block), before, tolerance(harness.precision))


def remembers_in_buffers(trial: Trial) -> bool:
    """Whether a forward changes nothing but buffers: no parameter, no other attribute, no generator without a key."""
    before = states_without_key()
    try:
        _expect_still(Harness(trial))
    except (Exception, SystemExit):  # noqa: BLE001  other promises say what it raises
        return False
    return not drawn_without_key(before)


def _expect_still(harness: Harness) -> None:
    """Pass one micro-batch without a graph again and again: caches of its values stay, counters and averages move."""
    inputs = harness.inputs(0)
    held = Held.by(harness.block)
    harness.peek(0, inputs)
    if made := held.made(harness.block):
        found = f"{', '.join(made)} was made {IN_A_FORWARD}, after the optimizer"
        raise BrokenPromise(
            "statistics", found, "make all parameters and buffers in __init__, and write to them in place"
        )
    if written := held.written(harness.block):
        found = f"parameters {', '.join(written)} changed {IN_A_FORWARD}, so a recomputation finds other values"
        raise BrokenPromise("statistics", found, LEAVE)
    before = state_of(harness.block)
    harness.peek(0, inputs)
    names = [name for name in moved(before, state_of(harness.block)) if name not in dict(harness.block.named_buffers())]
    if names:
        found = f"{', '.join(names)} moved {IN_A_FORWARD}, so each micro-batch counts two or three times"
        raise BrokenPromise("statistics", found, f"count nothing in forward; or {_STATISTICS_REMEDY}")


def _compare_buffers(
    found: dict[str, Tensor], expected: dict[str, Tensor], before: dict[str, Tensor], allowed: float
) -> None:
    for name, value in found.items():
        if not relative_error([value], [expected[name]]) <= allowed:
            moved, once = (relative_error([after], [before[name]]) for after in (value, expected[name]))
            message = (
                f"over forward and backward of one micro-batch {name} moved by {moved:.2e} relative; "
                f"one training forward moves it by {once:.2e}"
            )
            raise BrokenPromise("statistics", message, _STATISTICS_REMEDY)


def _buffers(block: Block) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in block.named_buffers()}
