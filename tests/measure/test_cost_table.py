"""The measured costs are those of the runners, on every device of the measurement."""

from __future__ import annotations

import attrs
import pytest
import torch
from torch import nn
from torch.nn import functional

from petra_graph.blocks import Buffered
from petra_graph.measure import costs as module
from petra_graph.measure.costs import measure_costs
from petra_graph.plugins.contract import BLOCK, LOSS, plugin_of
from petra_graph.plugins.registry import Registry
from petra_graph.spec.model import PrecisionSpec
from tests.support.costs import conditions, costs
from tests.support.pipelines import BRANCHES, CHAIN, CLASSES, REVNET, SKIP, built_graph, node

pytestmark = pytest.mark.slow
IMAGE = (3, 12, 12)
EVERY = (
    node("stem", "conv-stem", channels=8, pool=2),
    node("basic", "rev-basic", dropout=0.5),
    node("down", "down-bottleneck", channels=16, hidden=8, stride=2),
    node("bottleneck", "rev-bottleneck", hidden=4),
    node("smaller", "down-basic", channels=8, stride=2),
    node("head", "pool-linear", outputs=CLASSES),
)
RESNETS = (
    node("stem", "conv-stem", channels=8, streams=1),
    node("basic", "res-basic", channels=8, stride=2),
    node("bottleneck", "res-bottleneck", channels=16, hidden=4),
    node("head", "pool-linear", outputs=CLASSES),
)


def refuse(*_):
    raise NotImplementedError


def on_cpu(monkeypatch, nodes, shape, batch, **changes):
    """The same table, run with values."""
    run = module._run
    monkeypatch.setattr(module, "_run", lambda *given: run(*given) if given[-1] == "cpu" else refuse())
    return costs(nodes, shape, batch=batch, **changes)


@pytest.mark.parametrize(
    ("nodes", "shape", "memory_format", "compute"),
    [
        (EVERY, IMAGE, "channels-last", "float32"),
        (EVERY, IMAGE, "contiguous", "float64"),
        (RESNETS, IMAGE, "channels-last", "bfloat16"),
        (RESNETS, IMAGE, "contiguous", "float32"),
        (SKIP, (8,), "channels-last", "float64"),
        (BRANCHES, (8,), "contiguous", "bfloat16"),
    ],
    ids=lambda value: "" if isinstance(value, tuple) else value,
)
def test_without_memory_it_is_what_the_cpu_holds_to_the_byte(monkeypatch, nodes, shape, memory_format, compute):
    precision = PrecisionSpec(compute=compute, memory_format=memory_format)
    expected = costs(nodes, shape, batch=4, precision=precision)
    found = on_cpu(monkeypatch, nodes, shape, 4, precision=precision)
    for name, cost in expected.nodes.items():
        assert cost == found.nodes[name], name


def test_a_reversible_backward_evaluates_once():
    """PETRA section 4.2: four units, where a forward is one."""
    work = costs(REVNET, IMAGE).nodes["a0"].work
    forward = work["forward"].flops
    assert forward > 0
    assert {name: work[name].flops / forward for name in ("record", "replay", "reverse", "recompute", "invert")} == {
        "record": 1,
        "replay": 2,
        "reverse": 3,
        "recompute": 3,
        "invert": 1,
    }


def test_a_coupling_shares_the_streams_that_it_swaps():
    work = costs(REVNET, IMAGE).nodes["a0"].work
    assert work["forward"].shares == (None, 0)  # (x, t) -> (t + F(x), x)
    assert work["reverse"].shares == (1, None, None, 2)  # (y, s), (dy, ds) -> (s, y - F(s)), (dx, dy)


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 1), ("adam", 2), ("adamw", 2)])
def test_optimizer_state_is_what_the_optimizer_makes(optimizer, copies):
    node = costs(REVNET, IMAGE, optimizer=optimizer).nodes["a0"]
    counters = 4 * 8 if copies == 2 else 0  # Adam counts the steps of each of the eight tensors, in float32.
    assert node.optimizer_bytes == copies * node.parameter_bytes + counters
    assert node.gradient_bytes == node.parameter_bytes == 4 * node.parameters


def test_optimizer_state_of_a_head_is_that_of_a_table():
    """Costs are measured with copies of the parameters, which must be tables as well."""
    muon, adamw = (costs(REVNET, IMAGE, optimizer=name).nodes for name in ("muon", "adamw"))
    assert muon["head"].optimizer_bytes == adamw["head"].optimizer_bytes
    assert muon["a0"].optimizer_bytes < adamw["a0"].optimizer_bytes


def test_equal_nodes_are_measured_once(monkeypatch):
    run: list[str] = []
    original = module._measure
    monkeypatch.setattr(
        module, "_measure", lambda of, node, inputs: run.append(node.name) or original(of, node, inputs)
    )
    table = costs(REVNET, IMAGE)
    assert run == ["stem", "a0", "down", "b0", "head"]
    assert table.nodes["a1"] == table.nodes["a0"]


class Reader(Buffered):
    """Reads values, which the meta device does not have."""

    def __init__(self, inputs):
        super().__init__(inputs)
        self.linear = nn.Linear(inputs[0][0], inputs[0][0])

    def forward(self, *streams):
        scale = 1.0 if float(streams[0].detach().abs().max()) < 1e9 else 0.5
        return tuple(self.linear(stream) * scale for stream in streams)


class InFloat32(Reader):
    """Switches autocast off as many networks do, where torch.autocast knows no meta device."""

    def forward(self, *streams):
        with torch.autocast(streams[0].device.type, enabled=False):
            return tuple(self.linear(stream.float()) for stream in streams)


def with_block(block, **kinds):
    graph = built_graph(CHAIN)
    name = f"{__name__}:{block}"
    plugin, _ = Registry(entries=(), folders=()).resolve(BLOCK, name).read({})
    changed = attrs.evolve(graph.nodes["rev1"], block=name, plugin=plugin, **kinds)
    graph.nodes = {**graph.nodes, "rev1": changed}
    return graph


@pytest.mark.parametrize("block", ["Reader", "InFloat32"])
@pytest.mark.parametrize("batch", [2, 7, 64])
def test_a_block_that_the_meta_device_stops_runs_on_the_cpu(batch, block):
    table = measure_costs(with_block(block, kind="buffered"), conditions((8,), batch=batch))
    work = table.nodes["rev1"].work["forward"]
    assert work.flops == 2 * (2 * batch * 6 * 6)
    assert table.nodes["rev1"].output_bytes == (batch * 6 * 4,) * 2


class Weighted:
    """Cross-entropy with weights of classes, which are on the CPU."""

    def __init__(self):
        self.weights = torch.ones(CLASSES)

    def __call__(self, output, target):
        return functional.cross_entropy(output, target, self.weights[torch.arange(output.shape[1])])

    def metrics(self, output, target):
        return {}


def guarded(loss):
    return plugin_of(LOSS, loss.__name__, loss).read({})[0].build()


def test_a_loss_with_tensors_of_its_own_is_measured_on_the_cpu():
    """A run with class weights was not planned, and `plan` refused it."""
    plain = measure_costs(built_graph(CHAIN), conditions((8,), batch=6)).nodes["head"]
    table = measure_costs(built_graph(CHAIN), conditions((8,), batch=6, loss=guarded(Weighted)))
    assert table.nodes["head"].work["forward_backward"].flops == plain.work["forward_backward"].flops
