"""Chains of residual nodes made reversible: the network itself without a coupling, and with one the same gradients without storing."""

from __future__ import annotations

import pytest
import torch
from petra_graph_modules import declared
from petra_graph_modules.declared_passes import ConversionOptions, FinetuneOptions, LoraOptions
from safetensors.torch import load_file

from petra_graph.errors import SpecError
from petra_graph.kinds.listener import Listener
from petra_graph.training.training_run import run
from tests.networks import own_modules
from tests.networks.own_modules import WIDTH
from tests.support import ROOT
from tests.support.costs import predicted_and_measured
from tests.support.pages import Page
from tests.support.pairwise import pairs_of
from tests.support.pipelines import BLOCKS, batches, node, pipeline, plain_network, relative_error
from tests.support.runs import only_run

TOKENS = 5
LAYERS = """
from torch import nn
from petra_graph.blocks import Buffered

class Layer(Buffered):
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        width = inputs[0][0]
        self.norm, self.q_proj, self.v_proj = nn.LayerNorm(width), nn.Linear(width, width), nn.Linear(width, width)
    def forward(self, x):
        return x + self.q_proj(self.norm(x)).sigmoid() * self.v_proj(x)
"""
NETWORK = """
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 8, streams = 1 }
[[graph.node]]
name = "layer"
block = "layers:Layer"
repeat = 3
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[optimizer]
options = { lr = 0.001 }
[data]
name = "digits"
"""
COUPLINGS = ("dual-residual", "midpoint")


@pytest.fixture(autouse=True)
def _blocks(monkeypatch):
    monkeypatch.setitem(BLOCKS, "module", declared.MODULE)
    monkeypatch.setitem(BLOCKS, "module-head", declared.MODULE_HEAD)


def block(name, **kwargs):
    return node(name, "module", module=f"{own_modules.__name__}:PreNorm", kwargs={"width": WIDTH, **kwargs})


def chain(count, **kwargs):
    return (
        node("stem", "module", module="torch.nn:Linear", kwargs={"in_features": WIDTH, "out_features": WIDTH}),
        *(block(f"layer{index}", **kwargs) for index in range(count)),
        node("head", "module-head", module=f"{own_modules.__name__}:Pooled"),
    )


SHAPE = (TOKENS, WIDTH)


def built(count=4, coupling="midpoint", *, nodes=None, **settings):
    keys = {key: settings.pop(key) for key in ("anchors", "alpha", "beta") if key in settings}
    if "chosen" in settings:
        keys["nodes"] = settings.pop("chosen")
    passes = {} if coupling is None else {"conversion": ConversionOptions(coupling=coupling, **keys)}
    if "finetune" in settings:
        passes["finetune"] = settings.pop("finetune")
    return pipeline(nodes or chain(count), SHAPE, passes=passes, **settings)


def kinds(made):
    return [one.kind for one in made.network.graph.nodes.values()]


def outputs(made):
    _, forward = plain_network(made)
    return forward(batches(SHAPE, 1)[0][0]).detach()


def test_without_a_coupling_it_is_the_network_to_the_bit():
    none, plain = built(coupling="none"), built(coupling=None)
    for made in (none, plain):
        made.train(batches(SHAPE, 4))
    assert all(torch.equal(value, plain.parameters()[name]) for name, value in none.parameters().items())


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_parameters_keep_names_and_first_values(coupling):
    made, plain = built(coupling=coupling), built(coupling=None)
    new = made.parameters().keys() - plain.parameters().keys()
    assert all(name.rpartition("/")[2] in {"alpha", "beta"} for name in new)
    assert all(torch.equal(value, made.parameters()[name]) for name, value in plain.parameters().items())
    assert kinds(made) == ["buffered", *["reversible"] * 4, "head"]


@pytest.mark.parametrize("method", ["reversible-backprop", "petra"])
@pytest.mark.parametrize("coupling", COUPLINGS)
def test_gradients_are_plain_autograd_s(coupling, method):
    made = built(coupling=coupling, method=method, schedule="sequential", beta=0.5)
    data = batches(SHAPE, 6)
    modules, forward = plain_network(made)
    trained = [one for module in modules.values() for one in module.parameters() if one.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.05, momentum=0.9, nesterov=True)
    made.train(data)
    for samples, targets in data:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(forward(samples), targets).backward()
        optimizer.step()
    plain = {f"{name}/{key}": value for name, module in modules.items() for key, value in module.state_dict().items()}
    assert relative_error(made.parameters(), plain) < 1e-10


def reconstruction_error(count, coupling, **settings):
    """Return the relative error of the first input, reconstructed from the last output in float32."""
    made = built(count, coupling, compute="float32", **settings)
    modules, _ = plain_network(made)
    x = torch.randn(3, *SHAPE)
    streams = (x,)
    with torch.no_grad():
        for index in range(count):
            streams = modules[f"layer{index}"](*streams)
        for index in reversed(range(count)):
            streams = modules[f"layer{index}"].invert(*streams)
    return float((streams[0] - x).norm() / x.norm())


def test_the_inverse_s_error_in_float32():
    assert reconstruction_error(12, "midpoint") < 1e-4
    assert reconstruction_error(4, "dual-residual", beta=0.5) < 1e-4
    assert reconstruction_error(8, "dual-residual") > 100 * reconstruction_error(8, "midpoint")  # it grows by 1 / beta


def test_the_distance_from_the_network_grows_with_the_nodes_under_midpoint_and_falls_with_beta():
    plain = {count: outputs(built(count, None)) for count in (2, 8)}

    def distance(count, coupling, **keys):
        return float((outputs(built(count, coupling, **keys)) - plain[count]).norm() / plain[count].norm())

    assert 0 < distance(2, "midpoint") < distance(8, "midpoint")
    assert distance(8, "dual-residual", beta=1e-3) < distance(8, "dual-residual", beta=0.1)
    assert distance(8, "dual-residual", beta=1e-9) < 1e-6


def test_every_n_th_node_of_a_chain_is_an_anchor():
    assert kinds(built(7, anchors=3))[1:-1] == [
        *["reversible", "reversible", "buffered"] * 2,
        "reversible",
    ]


def test_anchors_change_no_function():
    made, anchored = built(6, method="reversible-backprop"), built(6, method="reversible-backprop", anchors=2)
    for one in (made, anchored):
        one.train(batches(SHAPE, 5))
    assert relative_error(made.parameters(), anchored.parameters()) < 1e-12


@pytest.mark.parametrize("coupling", COUPLINGS)
def test_adapters_and_dropout_in_a_chain(coupling):
    finetune = FinetuneOptions(trained=["head"], lora=LoraOptions(on=["layer*/*qkv"], rank=2, dropout=0.1))
    made = built(nodes=chain(4, dropout=0.2), coupling=coupling, finetune=finetune)
    before = made.parameters()
    made.train(batches(SHAPE, 12))
    moved = {name for name, value in made.parameters().items() if not torch.equal(value, before[name])}
    assert {name.partition(".lora")[0] for name in moved} == {
        "head/module.linear.weight",
        "head/module.linear.bias",
        *(f"layer{index}/module.qkv" for index in range(4)),
    }


def test_a_skip_edge_reads_the_first_stream_of_a_chain():
    nodes = (*chain(3)[:-1], node("join", "add", inputs=["layer2", "stem", "layer0"], streams=1), chain(0)[-1])
    made, plain = built(nodes=nodes, coupling="dual-residual", beta=1e-9), built(nodes=nodes, coupling=None)
    assert made.network.graph.nodes["join"].read_by_block(range(5)) == [0, 2, 3]
    assert torch.allclose(outputs(made), outputs(plain), rtol=1e-6)
    made.train(batches(SHAPE, 6))


@pytest.mark.parametrize(("coupling", "method"), pairs_of(COUPLINGS, ["petra", "reversible-backprop"], together=1))
def test_predicted_memory_is_the_measured(coupling, method):
    settings = {"batch": 16, "method": method, "passes": {"conversion": ConversionOptions(coupling=coupling)}}
    predicted, measured = predicted_and_measured(chain(4), SHAPE, **settings)
    assert max(abs(stage.total / found - 1) for stage, found in zip(predicted, measured, strict=True)) < 0.01


def test_a_pattern_that_names_no_node_that_fits():
    with pytest.raises(SpecError) as raised:
        built(chosen=["layers*"])
    (problem,) = raised.value.problems
    assert problem.path == ("conversion", "nodes")
    assert problem.message == "'layers*' names no node that can be of a chain"
    assert problem.hint == "did you mean 'layer3'? nodes that can be: layer0, layer1, layer2, layer3"


def test_a_network_without_a_chain():
    with pytest.raises(SpecError) as raised:
        built(1)
    assert raised.value.problems[0].message == "no two nodes follow one another that could be a chain"


def test_the_page_s_examples_on_a_chain_of_attention(write):
    """`[conversion]` and `[finetune]` as specs/README.md shows them, together."""
    write("layers.py", LAYERS)
    page = Page(ROOT / "specs" / "README.md").listings("toml")
    shown = [listing for listing in page if listing.startswith("[conversion]") or "[finetune]" in listing]
    assert len(shown) == 2
    text = NETWORK + "\n".join(listing[max(0, listing.find("[finetune]")) :] for listing in shown)
    run(write("chain.toml", text), ["run.epochs=1", "run.micro_batches=4"], Listener())
    weights = load_file(only_run() / "weights.safetensors")
    assert {name.partition("/")[2] for name in weights if "lora_A" in name} == {
        "q_proj.lora_A.weight",
        "v_proj.lora_A.weight",
    }
    assert weights["layer.1/beta"].item() == pytest.approx(0.1)


def test_a_converted_block_hands_its_mode_on():
    made = built(nodes=chain(2, dropout=0.5))
    modules, _ = plain_network(made)
    x = torch.randn(3, *SHAPE, dtype=torch.float64)
    first = modules["layer0"]
    assert not torch.equal(first(x)[0], first(x)[0])
    first.eval()
    assert torch.equal(first(x)[0], first(x)[0])
