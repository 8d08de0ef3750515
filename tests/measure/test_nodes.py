"""What nodes return without memory, and blocks of a user's own: what they return, read and raise while they are measured."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from petra_graph.blocks import AdditiveCoupling, Buffered, Head, Reversible
from petra_graph.errors import PluginError, Problem, SpecError
from petra_graph.graph.node_graph import NodeInput, build_graph
from petra_graph.measure.nodes import measure_shapes
from petra_graph.plugins.contract import BLOCK, plugin_of
from petra_graph.plugins.data_set import DataFacts
from petra_graph.spec.model import NodeSpec
from tests.support.pipelines import GRAPHS, SHAPES, built_graph, node, node_inputs, pipeline

STEM = node("stem", "linear-stem", features=6)
HEAD = node("head", "pool-linear", outputs=5)


@pytest.fixture
def refused():
    """Measure a graph that cannot run, and return its problems."""

    def problems_of(graph, sample) -> list[Problem]:
        with pytest.raises(SpecError) as caught:
            measure_shapes(graph, DataFacts(shape=sample, dtype="float32"))
        return list(caught.value.problems)

    return problems_of


@pytest.fixture
def made():
    """A graph stem, mine, head with a block class of the test's own in one or several nodes in the middle."""

    def graph_with(block: type, kind: str | None = None, nodes: tuple[str, ...] = ("mine",)):
        plugin = plugin_of(BLOCK, "mine", block, "mine")
        tables = node_inputs((STEM, HEAD))
        mine = [
            NodeInput(
                spec=NodeSpec(name=name, block="mine", kind=kind),
                plugin=plugin.read({})[0],
                path=("graph", "node", index),
            )
            for index, name in enumerate(nodes, start=1)
        ]
        graph, problems = build_graph([tables[0], *mine, tables[1]])
        assert not problems
        return graph

    return graph_with


# --- what is trained, and too few streams ---


@pytest.mark.parametrize("graph", GRAPHS)
def test_what_is_measured_is_what_is_trained(graph):
    built = pipeline(GRAPHS[graph], SHAPES[graph])
    trained = {
        name: sum(p.numel() for p in module.parameters())
        for executor in built.executors
        for name, module in executor.modules.items()
    }
    assert {name: shapes.parameters for name, shapes in built.network.shapes.items()} == trained


def test_too_few_streams(refused):
    nodes = (node("stem", "linear-stem", features=6, streams=1), node("rev", "rev-mlp", hidden=7), HEAD)
    assert refused(built_graph(nodes), (8,)) == [
        Problem(
            message='node "rev": block "rev-mlp" reads 2 streams, and its inputs carry 1',
            hint="a stem with streams = 2 feeds reversible blocks",
            path=("graph", "node", 1),
        )
    ]


# --- blocks of one's own ---


ROWS = DataFacts(shape=(8,), dtype="float32")


def outputs(graph):
    return measure_shapes(graph, ROWS)["mine"].outputs


class Folds(Reversible):
    """Other shapes, from which the inverse returns to those of the inputs."""

    def forward(self, x, t):
        return torch.cat((x, t), 1), x[:, :0]

    def inverse(self, y, _):
        return y.tensor_split(2, 1)


class Passes(Reversible):
    def forward(self, x, t):
        return x, t

    def inverse(self, y, s):
        return y, s


class Halves(Passes):
    """Reversible, and yet it returns other shapes."""

    def forward(self, x, t):
        return x[:, :3], t


class InvertsToList(Passes):
    def inverse(self, y, s):
        return [y, s]


class InverseReadsValues(Passes):
    def inverse(self, y, s):
        return (y, s) if y.sum().item() == 0 else (s,)


class ReadsItem(Buffered):
    def forward(self, x, t):
        return (x * (x.sum().item() + 1), t)


class ReadsWhileBuilt(Buffered):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.rates = [rate.item() for rate in torch.linspace(0, 1, 3)]
        self.layer = nn.Linear(6, 6)

    def forward(self, x, t):
        return self.layer(x), t


class KnowsItsDevices(Buffered):
    def forward(self, x, t):
        if x.device.type not in {"cpu", "cuda"}:
            raise ValueError("only processors and GPUs")
        return x, t


@pytest.mark.parametrize("block", [InverseReadsValues, ReadsItem, ReadsWhileBuilt, KnowsItsDevices])
def test_a_block_that_the_meta_device_stops_runs_on_the_cpu(made, block):
    before = torch.get_rng_state()
    assert outputs(made(block)) == ((6,), (6,))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_reversible_block_may_change_shapes_and_stand_as_a_buffered_node(made):
    assert outputs(made(Folds)) == ((12,), (0,))
    assert outputs(made(Halves, kind="buffered")) == ((3,), (6,))


class HeadReadsValues(Head):
    def forward(self, x, t):
        return (x,)

    def returned(self, streams):
        return streams[0] if streams[0].sum().item() == 0 else streams


def test_what_a_head_gives_the_loss_may_depend_on_values():
    head = plugin_of(BLOCK, "mine", HeadReadsValues, "mine").read({})[0]
    last = NodeInput(spec=NodeSpec(name="mine", block="mine", kind=None), plugin=head, path=("graph", "node", 1))
    graph, _ = build_graph([*node_inputs((STEM,)), last])
    assert not measure_shapes(graph, ROWS)["mine"].several


class Broadcasts(AdditiveCoupling):
    def residual(self, x):
        return x[:, :1]


class Raises(Buffered):
    def forward(self, x, t):
        message = "the moon is not full\nand other reasons"
        raise ValueError(message)


class LooksUp(Buffered):
    def __init__(self, inputs):
        super().__init__(inputs)
        {}["width"]

    def forward(self, x, t):
        return x, t


class Forgets(Buffered):
    def forward(self, x, t):
        return [x, t]


class Merges(Buffered):
    def forward(self, x, t):
        return (x.reshape(-1, 3), t)


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (Broadcasts, "cannot read its input: residual must return a tensor of its input's shape, [2, 6] (got [2, 1])"),
        (InvertsToList, "cannot invert its output: it returned list; a block returns a tensor or a tuple of tensors"),
        (Raises, "raised in its forward: the moon is not full"),
        (LooksUp, "cannot be built: KeyError: 'width'"),
        (Forgets, "is wrong: it returned list; a block returns a tensor or a tuple of tensors"),
        (Merges, "is wrong: it returned a stream [4, 3] for 2 samples; the batch is a stream's first dimension"),
    ],
)
def test_a_block_that_a_run_would_fail_on(made, block, message, refused):
    (problem,) = refused(made(block), (8,))
    assert problem.message.startswith(f'node "mine": block "mine" {message}')
    assert problem.path == ("graph", "node", 1)


class ClaimsAnInverse(Buffered):
    kind = "reversible"

    def forward(self, x, t):
        return x, t


class NoInverse(Reversible):
    def forward(self, x, t):
        return x, t


class NoResidual(AdditiveCoupling):
    pass


class ExemptsNothing(Buffered):
    undecayed = ("scale",)

    def forward(self, *streams):
        return streams


class KeepsAList(Buffered):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.layers = [nn.Linear(6, 6)]

    def forward(self, x, t):
        return self.layers[0](x), t


@pytest.mark.parametrize(
    ("block", "message"),
    [
        (ClaimsAnInverse, 'node "mine" is reversible, and {class} is not a subclass of Reversible'),
        (NoInverse, 'node "mine" is reversible, and {class} does not define inverse'),
        (NoResidual, 'node "mine" is reversible, and {class} does not define residual'),
        (ExemptsNothing, "node \"mine\" has no tensor 'scale', which its `undecayed` names"),
        (KeepsAList, 'node "mine" holds what requires a gradient and is not a parameter'),
    ],
)
def test_a_class_that_does_not_keep_its_kind(made, block, message):
    with pytest.raises(PluginError) as caught:
        measure_shapes(made(block), ROWS)
    (problem,) = caught.value.problems
    said = message.replace("{class}", f"{__name__}:{block.__name__}")
    assert problem.message.startswith(f'block "mine" of mine: {said}')
    assert problem.path == ("graph", "node", 1)
    if block is NoInverse:
        assert outputs(made(block, kind="buffered")) == ((6,), (6,))
