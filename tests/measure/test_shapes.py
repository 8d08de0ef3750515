"""The output streams of nodes, measured without memory, and the messages where they cannot run."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Head, Reversible, TwoFunctionCoupling
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.graph.build import NodeInput, build_graph
from petra_graph.measure.shapes import NodeShapes, measure_shapes
from petra_graph.registry.contracts import BLOCKS, BlockDeclaration, NoOptions
from petra_graph.registry.registry import Plugin
from petra_graph.spec.model import NodeSpec
from tests.support.pipelines import GRAPHS, REVNET, SHAPES, built_graph, node, node_inputs, pipeline

STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)
IMAGE = (3, 6, 6)


def refused(graph, sample) -> list[Problem]:
    with pytest.raises(SpecError) as caught:
        measure_shapes(graph, sample, torch.float32)
    return list(caught.value.problems)


@pytest.fixture
def made(monkeypatch):
    """A graph stem, mine, head with a block class of the test's own in the middle."""

    def graph_with(block: type, kind: str | None = None):
        module = ModuleType("blocks_of_this_test")
        module.Mine = block
        monkeypatch.setitem(sys.modules, module.__name__, module)
        declaration = BlockDeclaration(
            summary="x", build="blocks_of_this_test:Mine", kind=getattr(block, "kind", "buffered"), streams=None
        )
        plugin = Plugin(group=BLOCKS, name="mine", distribution="mine", declaration=declaration)
        tables = node_inputs((STEM, HEAD))
        spec = NodeSpec(name="mine", block="mine", kind=kind)
        mine = NodeInput(spec=spec, plugin=plugin, options=NoOptions(), path=("graph", "node", 1))
        graph, problems = build_graph([tables[0], mine, tables[1]])
        assert not problems
        return graph

    return graph_with


def test_shapes_and_parameters_of_a_revnet():
    assert measure_shapes(built_graph(REVNET), IMAGE, torch.float32) == {
        "stem": NodeShapes(inputs=(IMAGE,), outputs=((4, 6, 6),) * 2, parameters=(27 + 1 + 2) * 8, additive=False),
        "a0": NodeShapes(
            inputs=((4, 6, 6),) * 2, outputs=((4, 6, 6),) * 2, parameters=2 * (9 * 4 + 1 + 2) * 4, additive=True
        ),
        "a1": NodeShapes(
            inputs=((4, 6, 6),) * 2, outputs=((4, 6, 6),) * 2, parameters=2 * (9 * 4 + 1 + 2) * 4, additive=True
        ),
        "down": NodeShapes(
            inputs=((4, 6, 6),) * 2,
            outputs=((6, 3, 3),) * 2,
            parameters=((9 * 4 + 3) + (9 * 6 + 3) + (4 + 3)) * 6,
            additive=False,
        ),
        "b0": NodeShapes(
            inputs=((6, 3, 3),) * 2, outputs=((6, 3, 3),) * 2, parameters=2 * (9 * 6 + 1 + 2) * 6, additive=True
        ),
        "head": NodeShapes(inputs=((6, 3, 3),) * 2, outputs=((5,),), parameters=(12 + 1) * 5, additive=False),
    }


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_is_measured_is_what_is_trained(graph):
    built = pipeline(GRAPHS[graph], SHAPES[graph])
    trained = {
        name: sum(p.numel() for p in module.parameters())
        for executor in built.executors
        for name, module in executor.modules.items()
    }
    assert {name: shapes.parameters for name, shapes in built.network.shapes.items()} == trained


def test_nothing_is_allocated_and_nothing_random_is_drawn():
    """The widest layer alone would need 4 TB."""
    huge = (node("stem", "linear-stem", features=10**6), HEAD)
    before = torch.get_rng_state()
    measured = measure_shapes(built_graph(huge), (10**6,), torch.float32)
    assert measured["stem"].parameters == (10**6 + 1) * 2 * 10**6
    assert torch.equal(torch.get_rng_state(), before)


def test_a_wrong_channel_count():
    nodes = (
        node("stem", "conv-stem", channels=4),
        node("down", "down-basic", channels=6, stride=2),
        node("join", "add", inputs=["down", "stem"]),
        HEAD,
    )
    (problem,) = refused(built_graph(nodes), IMAGE)
    assert problem.message.startswith('node "join": block "add" cannot read its input: ')  # the rest is torch's
    assert problem.hint == "its input streams are 6x3x3, 6x3x3, 4x6x6, 4x6x6 (without the batch); it reads down, stem"
    assert problem.path == ("graph", "node", 2)


def test_too_few_streams():
    nodes = (node("stem", "linear-stem", features=6, streams=1), node("rev", "rev-mlp", hidden=7), HEAD)
    assert refused(built_graph(nodes), (8,)) == [
        Problem(
            message='node "rev": block "rev-mlp" reads 2 streams, and its inputs carry 1',
            hint="a stem with streams = 2 feeds reversible blocks",
            path=("graph", "node", 1),
        )
    ]


def test_too_many_streams():
    nodes = (STEM, node("res", "res-basic", channels=4), HEAD)
    assert refused(built_graph(nodes), (8,)) == [
        Problem(
            message='node "res": block "res-basic" reads 1 streams, and its inputs carry 2',
            hint='merge nodes read several streams (block = "add"); others read one node',
            path=("graph", "node", 1),
        )
    ]


def test_a_block_that_cannot_be_built():
    nodes = (STEM, node("join", "add", streams=3), HEAD)
    (problem,) = refused(built_graph(nodes), (8,))
    assert problem == Problem(
        message='node "join": block "add" cannot be built: its inputs carry 2 streams, which is no multiple of '
        "streams = 3",
        hint="its input streams are 6, 6 (without the batch); it reads stem",
        path=("graph", "node", 1),
    )


def test_every_branch_is_walked_to_its_first_fault():
    nodes = (
        STEM,
        node("left", "add", inputs=["stem"], streams=3),
        node("right", "add", inputs=["stem"], streams=5),
        node("join", "add", inputs=["left", "right"], streams=7),
        HEAD,
    )
    assert [problem.path[-1] for problem in refused(built_graph(nodes), (8,))] == [1, 2]


class Halves(Reversible):
    """Reversible, and yet it returns other shapes."""

    def forward(self, x, t):
        return x[:, :3], t

    def inverse(self, y, s):
        return y, s


def test_a_reversible_block_that_changes_shapes(made):
    assert refused(made(Halves), (8,)) == [
        Problem(
            message='node "mine" is reversible but changes shapes: 6, 6 to 3, 6',
            hint='set kind = "buffered"',
            path=("graph", "node", 1),
        )
    ]


def test_the_same_block_as_a_buffered_node(made):
    assert measure_shapes(made(Halves, kind="buffered"), (8,), torch.float32)["mine"].outputs == ((3,), (6,))


class ReadsItem(Buffered):
    def forward(self, x, t):
        return (x * (x.sum().item() + 1), t)


class ReadsTruth(Buffered):
    def forward(self, x, t):
        return (x, t) if x.sum() == 0 else (t, x)


class ReadsIndices(Buffered):
    def forward(self, x, t):
        return (x, t[:, (t[0] >= 0).nonzero().flatten()])


class ReadsNumpy(Buffered):
    def forward(self, x, t):
        return (x + float(x.detach().numpy().sum()), t)


@pytest.mark.parametrize("block", [ReadsItem, ReadsTruth, ReadsIndices, ReadsNumpy])
def test_a_block_that_reads_values_runs_on_the_cpu(made, block):
    measured = measure_shapes(made(block), (8,), torch.float32)
    assert measured["mine"].outputs == ((6,), (6,))
    assert measured["head"].parameters == (12 + 1) * 5


class Raises(Buffered):
    def forward(self, x, t):
        message = "the moon is not full\nand other reasons"
        raise ValueError(message)


class RaisesOnValues(Buffered):
    def forward(self, x, t):
        x.sum().item()
        raise KeyError


@pytest.mark.parametrize(("block", "reason"), [(Raises, "the moon is not full"), (RaisesOnValues, "KeyError")])
def test_a_block_that_raises(made, block, reason):
    assert refused(made(block), (8,)) == [
        Problem(
            message=f'node "mine": block "mine" cannot read its input: {reason}',
            hint="its input streams are 6, 6 (without the batch); it reads stem",
            path=("graph", "node", 1),
        )
    ]


class Forgets(Buffered):
    def forward(self, x, t):
        return x


def test_a_block_that_returns_no_tuple(made):
    (problem,) = refused(made(Forgets), (8,))
    assert problem.message == (
        'node "mine": block "mine" cannot read its input: it returned Tensor; a block returns a tuple of tensors'
    )


class ReadsWhileBuilt(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.layer = nn.Linear(6, 4)

    def forward(self, x, t):
        return self.layer(x), t


def test_a_block_whose_building_reads_values_is_built_on_the_cpu(made):
    before = torch.get_rng_state()
    measured = measure_shapes(made(ReadsWhileBuilt), (8,), torch.float32)["mine"]
    assert (measured.outputs, measured.parameters) == (((4,), (6,)), 7 * 4)
    assert torch.equal(torch.get_rng_state(), before)


class LooksUp(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        {}["width"]

    def forward(self, x, t):
        return x, t


def test_an_exception_that_says_one_word_is_named(made):
    (problem,) = refused(made(LooksUp), (8,))
    assert problem.message == 'node "mine": block "mine" cannot be built: KeyError: \'width\''


class Broadcasts(AdditiveCoupling):
    def residual(self, x):
        return x[:, :1]


class InvertsOneStream(Halves):
    def forward(self, x, t):
        return x, t

    def inverse(self, y, s):
        return (y,)


class InvertsToTensor(InvertsOneStream):
    def inverse(self, y, s):
        return y


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
        (InvertsToTensor, "cannot invert its output: it returned Tensor; a block returns a tuple of tensors"),
        (InverseRaises, "cannot invert its output: "),  # the rest is torch's
    ],
)
def test_an_inverse_that_a_run_would_fail_on(made, block, message):
    (problem,) = refused(made(block), (8,))
    assert problem.message.startswith(f'node "mine": block "mine" {message}')


def test_an_inverse_of_other_shapes(made):
    assert refused(made(InvertsOneStream), (8,)) == [
        Problem(
            message='node "mine": the inverse of block "mine" returns 6',
            hint="it must return the input streams, 6, 6, in their order",
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
            'node "mine" is reversible, and blocks_of_this_test:Mine is no subclass of Reversible',
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
    assert caught.value.problems == (Problem(message=f'block "mine": {message}', hint=hint, path=("graph", "node", 1)),)


@pytest.mark.parametrize(
    ("block", "message"),
    [(ClaimsToBeAHead, 'node "head" is head, and it:Mine is no subclass of Head'), (NoForward, "define `forward`")],
)
def test_a_head_that_is_none(block, message, monkeypatch):
    module = ModuleType("it")
    module.Mine = block
    monkeypatch.setitem(sys.modules, "it", module)
    declaration = BlockDeclaration(summary="x", build="it:Mine", kind="head")
    plugin = Plugin(group=BLOCKS, name="mine", distribution="mine", declaration=declaration)
    head = NodeInput(
        spec=NodeSpec(name="head", block="mine"), plugin=plugin, options=NoOptions(), path=("graph", "node", 1)
    )
    graph, problems = build_graph([*node_inputs((STEM,)), head])
    assert not problems
    with pytest.raises(PluginError, match=message):
        measure_shapes(graph, (8,), torch.float32)


def test_a_block_without_an_inverse_may_stand_as_a_buffered_node(made):
    assert measure_shapes(made(NoInverse, kind="buffered"), (8,), torch.float32)["mine"].outputs == ((6,), (6,))


class NoBlock(nn.Linear):
    pass


def test_a_module_that_is_no_block(made):
    with pytest.raises(PluginError) as caught:
        measure_shapes(made(NoBlock), (8,), torch.float32)
    assert caught.value.problems == (
        Problem(
            message='block "mine": blocks_of_this_test:Mine is no subclass of petra_graph.blocks.Block',
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
