"""The value of a loss: a finite scalar with a graph, which follows from output and target alone."""

from __future__ import annotations

from contextlib import suppress

import torch
from torch import Tensor

from petra_graph.kinds.generators import seeded
from petra_graph.kinds.loss import (
    expect_share,
    target_count,
    target_weight,
    value_fault,
)
from petra_graph.kinds.tensor_trees import Tree, leaves, mapped
from petra_graph_conformance.broken_promise import BrokenPromise, all_equal, name_of
from petra_graph_conformance.kinds.loss_trial import LossTrial
from petra_graph_conformance.moved_generators import moved_since, states

_FAR, _GROWS = (1e3, 1e6), 100.0
"""How far outputs are moved down the gradient of a loss, and by how much more it falls at the second, where it has no bound."""
_SAME = 1e-5
"""The relative difference of a loss that rounding explains, in float32."""


def _gradients(value: Tensor, output: Tree) -> list[Tensor]:
    """Return the gradients of a loss with respect to the outputs that it depends on."""
    reads = [one for one in leaves(output) if one.requires_grad]
    return [one for one in torch.autograd.grad(value, reads, allow_unused=True) if one is not None]


def check_loss_construction(trial: LossTrial) -> None:
    """`build` returns a function with the method `metrics`; it has no parameters, since no optimizer would step them."""
    trial.build(trial.options)


def check_scalar(trial: LossTrial) -> None:
    """The loss is a finite scalar with a graph, in each type that a head has: its gradient is finite, and not zero."""
    if trial.micro_batch is not None:
        _try_micro_batch(trial, trial.micro_batch)
        return
    remedy = "return the mean over the samples of a differentiable function of the output"
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        output, target = trial.batch(dtype)
        value = trial.loss()(output, target)
        fault = value_fault(output, value)
        if fault:
            raise BrokenPromise("scalar", f"{fault} (outputs in {name_of(dtype)})", remedy)
        gradients = _gradients(value, output)
        if not any(one.count_nonzero() for one in gradients):
            raise BrokenPromise("scalar", f"its gradient is zero (outputs in {name_of(dtype)})", remedy)
        if not all(one.isfinite().all() for one in (value, *gradients)):
            raise BrokenPromise("scalar", f"it, or its gradient, is not finite (outputs in {name_of(dtype)})", remedy)


def _try_micro_batch(trial: LossTrial, targets: Tensor) -> None:
    """Call a run's loss as the training does, on random outputs and a micro-batch of the data's targets.

    Raises:
        PluginError: it raised, is not finite, has no gradient, or breaks its contract.
    """
    loss = trial.loss()
    generator = torch.Generator().manual_seed(0)
    output = torch.randn(len(targets), *trial.output, generator=generator).requires_grad_()
    value = loss(output, targets)
    (gradient,) = torch.autograd.grad(value, output, allow_unused=True)
    if gradient is None or not bool(value.isfinite()) or not bool(gradient.isfinite().all()):
        found = f"is {float(value.detach()):g}, or its gradient is not finite"
        pair = f"outputs drawn from a normal distribution {list(output.shape)} and targets {list(targets.shape)}"
        raise trial.plugin.broken(f"on {pair} it {found if gradient is not None else 'has no gradient'}")
    counted = target_count(loss, targets, target_weight(loss, targets))
    for name, metric in loss.metrics(output.detach(), targets).items():
        expect_share(trial.plugin.owned, name, float(metric), len(targets), counted)


def check_bounded(trial: LossTrial) -> None:
    """The loss does not fall without bound where outputs follow its gradient: a sign may be wrong.

    A loss that refuses outputs so far away is let be.
    """
    loss, (output, target) = trial.loss(), trial.batch()
    value = loss(output, target)
    gradients = iter(torch.autograd.grad(value, leaves(output), allow_unused=True, materialize_grads=True))
    down, falls = mapped(lambda _: next(gradients), output), [0.0, 0.0]
    norm = torch.stack([one.norm() for one in leaves(down)]).norm()
    with suppress(Exception), torch.no_grad():
        falls = [float(value - loss(_moved(output, down, length / norm), target)) for length in _FAR]
    if falls[1] > _GROWS * falls[0] > 0:
        moved = " and ".join(
            f"by {fall:.3g} where they move by {length:g}" for fall, length in zip(falls, _FAR, strict=True)
        )
        remedy = "see its sign"
        raise BrokenPromise("bounded", f"down the gradient of its outputs it falls {moved}", remedy)


def _moved(output: Tree, down: Tree, length: Tensor) -> Tree:
    steps = iter(leaves(down))
    return mapped(lambda one: one - length * next(steps), output)


def check_logits(trial: LossTrial) -> None:
    """A loss that takes the softmax of outputs is not given probabilities: of a softmax twice, gradients are small."""
    if trial.head is None:
        return
    output = trial.head()
    ones = [
        torch.isclose(output.sum(dim), output.new_ones(())).all() for dim in {1, output.dim() - 1} if output.dim() > 1
    ]
    if not any(ones) or bool((output < 0).any()):
        return
    loss, target = trial.loss(), trial.batch()[1][: len(output)]
    same = False
    with suppress(Exception), torch.no_grad():
        same = bool(torch.isclose(loss(output, target), loss(output + 1, target), rtol=_SAME))
    if same:
        found = "the head returns probabilities, which sum to 1, and this loss takes their softmax: adding 1 to all does not change it"
        raise BrokenPromise("logits", found, "leave out the head's softmax")


def check_untouched(trial: LossTrial) -> None:
    """Loss and metrics write to neither output nor target, draw no random numbers, and remember nothing."""
    loss, (output, target) = trial.loss(), trial.batch()
    before = [one.detach().clone() for one in (*leaves(output), *leaves(target))]
    generators = states()
    with seeded(1):
        first = loss(output, target).detach()
    with seeded(2):
        again = loss(output, target).detach()
    with torch.no_grad():
        loss.metrics(output, target)
    if not all_equal([*leaves(output), *leaves(target)], before):
        found = "the output or the target has other values afterwards"
        raise BrokenPromise(
            "untouched", found, "write y = f(x) for in-place operations: callbacks read the same tensors"
        )
    if not torch.equal(first, again) or moved_since(generators):
        found = "the same output and target have another loss when it is asked again"
        raise BrokenPromise("untouched", found, "draw no random numbers, and remember no batch")
