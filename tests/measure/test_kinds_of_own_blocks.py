"""Blocks of a user's own that do not keep their kind: without an inverse, or no block at all."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Head, Reversible, TwoFunctionCoupling
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.graph.build_graph import NodeInput, build_graph
from petra_graph.kinds.block import BLOCK, BlockDeclaration
from petra_graph.kinds.declaration import NoOptions
from petra_graph.kinds.plugin import Plugin
from petra_graph.measure.node_shapes import measure_shapes
from petra_graph.spec.model import NodeSpec
from tests.support.pipelines import node, node_inputs

STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)
IMAGE = (3, 6, 6)


class Broadcasts(AdditiveCoupling):
    def residual(self, x):
        return x[:, :1]


class InvertsOneStream(Reversible):
    def forward(self, x, t):
        return x, t

    def inverse(self, y, s):
        return (y,)


class InvertsToList(InvertsOneStream):
    def inverse(self, y, s):
        return [y, s]


class InverseRaises(InvertsOneStream):
    def inverse(self, y, s):
        return y @ s, s


class InverseReadsValues(InvertsOneStream):
    def inverse(self, y, s):
        return (y, s) if y.sum().item() == 0 else (s,)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Broadcasts, "cannot read its input: residual must return a tensor of its input's shape, [2, 6] (got [2, 1])"),
        (InvertsToList, "cannot invert its output: it returned list; a block returns a tensor or a tuple of tensors"),
        (InverseRaises, "cannot invert its output: "),  # the rest is torch's
    ],
)
def test_an_inverse_that_a_run_would_fail_on(made, block, message, refused):
    (problem,) = refused(made(block), (8,))
    assert problem.message.startswith(f'node "mine": block "mine" {message}')


def test_an_inverse_of_other_shapes(made, refused):
    assert refused(made(InvertsOneStream), (8,)) == [
        Problem(
            message='node "mine": the inverse of block "mine" returns 6',
            hint='it must return the input streams, 6, 6, in their order; or set kind = "buffered"',
            path=("graph", "node", 1),
        )
    ]


def test_an_inverse_that_reads_values_runs_on_the_cpu(made):
    assert measure_shapes(made(InverseReadsValues), (8,), torch.float32)["mine"].outputs == ((6,), (6,))


class ClaimsAnInverse(Buffered):
    kind = "reversible"

    def forward(self, x, t):
        return x, t


class ClaimsToBeAHead(Buffered):
    kind = "head"

    def forward(self, x, t):
        return (x,)


class NoInverse(Reversible):
    def forward(self, x, t):
        return x, t


class NoResidual(AdditiveCoupling):
    pass


class NoFunctions(TwoFunctionCoupling):
    pass


class NoForward(Head):
    pass


@pytest.mark.parametrize(
    ("block", "message", "hint"),
    [
        (
            ClaimsAnInverse,
            'node "mine" is reversible, and blocks_of_this_test:Mine is not a subclass of Reversible',
            "subclass AdditiveCoupling, or Reversible with an inverse",
        ),
        (
            NoInverse,
            "blocks_of_this_test:Mine does not define `inverse`",
            'write it, or set kind = "buffered"',
        ),
        (
            NoResidual,
            "blocks_of_this_test:Mine does not define `residual`",
            "write `residual` in the class",
        ),
        (
            NoFunctions,
            "blocks_of_this_test:Mine does not define `f`, `g`",
            "write `f`, `g` in the class",
        ),
    ],
)
def test_a_class_that_does_not_keep_its_kind(made, block, message, hint):
    with pytest.raises(PluginError) as caught:
        measure_shapes(made(block), (8,), torch.float32)
    assert caught.value.problems == (
        Problem(message=f'block "mine" of mine: {message}', hint=hint, path=("graph", "node", 1)),
    )


@pytest.mark.parametrize(
    ("block", "message"),
    [(ClaimsToBeAHead, 'node "head" is head, and it:Mine is not a subclass of Head'), (NoForward, "define `forward`")],
)
def test_a_head_that_is_none(block, message, monkeypatch):
    module = ModuleType("it")
    module.Mine = block
    monkeypatch.setitem(sys.modules, "it", module)
    declaration = BlockDeclaration(summary="x", build="it:Mine", kind="head")
    plugin = Plugin(kind=BLOCK, name="mine", distribution="mine", declaration=declaration)
    head = NodeInput(
        spec=NodeSpec(name="head", block="mine"), plugin=plugin, options=NoOptions(), path=("graph", "node", 1)
    )
    graph, problems = build_graph([*node_inputs((STEM,)), head])
    assert not problems
    with pytest.raises(PluginError, match=message):
        measure_shapes(graph, (8,), torch.float32)


def test_a_block_without_an_inverse_may_stand_as_a_buffered_node(made):
    assert measure_shapes(made(NoInverse, kind="buffered"), (8,), torch.float32)["mine"].outputs == ((6,), (6,))


class ExemptsNothing(Buffered):
    undecayed = ("scale",)

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(6, 6, bias=False)

    def forward(self, *streams):
        return streams


def test_a_parameter_without_decay_that_is_none(made):
    with pytest.raises(PluginError) as caught:
        measure_shapes(made(ExemptsNothing, kind="buffered"), (8,), torch.float32)
    assert caught.value.problems == (
        Problem(
            message=(
                'block "mine" of mine: node "mine" has no parameter \'scale\', which its `undecayed` names; it has linear.weight'
            ),
            hint="name parameters as `named_parameters()` does",
            path=("graph", "node", 1),
        ),
    )


class RefusesItsOptions(Buffered):
    def __init__(self, inputs, options):
        raise SpecError(Problem(message="too wide", hint="4 at most", path=("width",)))

    def forward(self, *streams):
        return streams


def test_a_refused_option_of_a_block_is_one_of_its_node(made):
    with pytest.raises(SpecError) as caught:
        measure_shapes(made(RefusesItsOptions, kind="buffered"), (8,), torch.float32)
    assert caught.value.problems == (
        Problem(
            message='node "mine": block "mine": too wide',
            hint="4 at most",
            path=("graph", "node", 1, "options", "width"),
        ),
    )


class NoBlock(nn.Linear):
    pass


def test_a_module_that_is_no_block(made):
    with pytest.raises(PluginError) as caught:
        measure_shapes(made(NoBlock), (8,), torch.float32)
    assert caught.value.problems == (
        Problem(
            message='block "mine" of mine: blocks_of_this_test:Mine is not a subclass of petra_graph.blocks.Block',
            hint="subclass AdditiveCoupling, Buffered or Head",
            path=("graph", "node", 1),
        ),
    )


def test_measuring_leaves_running_statistics_and_gradients_alone(made):
    seen = []

    class Counts(Buffered):
        def __init__(self, inputs, options):
            super().__init__(inputs, options)
            self.norm = nn.BatchNorm1d(6)

        def forward(self, x, t):
            seen.append((torch.is_grad_enabled(), self.norm.track_running_stats))
            return self.norm(x), t

    measure_shapes(made(Counts), (8,), torch.float32)
    assert seen == [(False, False)]
