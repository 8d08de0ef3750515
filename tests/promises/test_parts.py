"""A network by its parts: the bits of the module itself, its names there and back, and what is no such network refused by name."""

import pytest
import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.catalog.networks import module_nodes
from petra_graph.plugins import DataFacts
from petra_graph.training.prepare import prepare
from tests.networks import networks_by_parts as networks

STEPS, BATCH = 25, 8
SAMPLES = STEPS * BATCH


class Images(torch.utils.data.Dataset):
    shape = (1, networks.SIDE, networks.SIDE)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(index)), index % networks.CLASSES


class Rows(Images):
    shape = (networks.WIDTH,)


class Tokens(Images):
    def __getitem__(self, index):
        text = torch.randint(networks.WORDS, (7,), generator=torch.Generator().manual_seed(index))
        return text[:-1], text[1:]


DATA = {"UNet": Images, "Gpt": Tokens}
STARTS = "tests.networks.networks_by_parts"
SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0}


def spec_of(name, options=None, **tables):
    data = DATA.get(name, Rows)
    classes = networks.WORDS if data is Tokens else networks.CLASSES
    tables["run"] = {"epochs": 1, "directory": "runs", **tables.get("run", {})}
    usual = {
        "optimizer": {"name": "sgd", "options": SGD},
        "method": {"name": "backprop"},
        "lr_schedule": {"name": "constant"},
        "precision": {"memory_format": "contiguous"},
    }
    return pg.make_spec(
        architecture={"name": "module", "options": {"build": f"{STARTS}:{name}", **(options or {})}},
        data=pg.from_torch(data, data, classes=classes, batch=BATCH),
        **{**usual, **tables},
    )


def begun(network):
    """Keep the parameters of a new module, from which a run may begin."""
    torch.save(network.state_dict(), "begun.pt")
    return network


ONE_STAGE = {"partition": {"stages": 1}}
SHORT = {"run": {"micro_batches": 2}}


def trained_alone(network, order, data):
    """Train a module in plain torch on the same samples in the same order."""
    optimizer = torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)
    network.train()
    for indices in order:
        x, y = zip(*(data[int(index)] for index in indices), strict=True)
        optimizer.zero_grad()
        targets = torch.stack([torch.as_tensor(one) for one in y])
        torch.nn.functional.cross_entropy(network(torch.stack(x)), targets).backward()
        optimizer.step()


@pytest.mark.parametrize(("name", "tables"), [("UNet", {}), ("Gpt", ONE_STAGE), ("OneNode", {}), ("TwoNames", {})])
def test_the_steps_are_those_of_the_module_itself(here, name, tables):
    torch.manual_seed(3)
    network = begun(getattr(networks, name)())
    spec = spec_of(name, init={"weights": "begun.pt"}, **tables)
    order = prepare(spec).opened.epoch(0).parts
    assert len(order) == STEPS
    run = pg.train(spec)
    trained_alone(network, order, DATA.get(name, Rows)())
    found = {key.partition("/")[2]: one for key, one in load_file(run.directory / "weights.safetensors").items()}
    expected = network.state_dict()
    assert found.keys() >= expected.keys() - {"head.weight"}
    assert not [key for key, one in expected.items() if not torch.equal(found.get(key, one), one)]
    loaded = {key: found.get(key, found.get("wte.weight")) for key in expected}
    getattr(networks, name)().load_state_dict(loaded, strict=True)


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("plain", ["stem", "layers", "head"]),
        ("UNet", ["down1", "down2", "mid", "up2", "up1", "last"]),
        ("OneNode", ["onenode"]),
    ],
)
def test_nodes(name, nodes):
    graph = prepare(spec_of(name)).network.graph
    assert list(graph.nodes) == nodes
    if name == "UNet":
        assert graph.nodes["up1"].inputs == ("up2", "down1")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MeanInForward", "in training, its parts return float32 [4, 3] with other values than its forward"),
        ("LayerDrop", "its forward draws from the global generator of Python, and its parts draw otherwise"),
        ("Reversed", "in its part 'a', a.weight: the gradient is another than in the module itself"),
        ("HiddenTie", "b.others"),
        ("OwnTensor", "its tensor 'weight' does not belong to the network"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_no_network_of_its_parts(name, said):
    with pytest.raises(pg.PetraGraphError) as caught:
        prepare(spec_of(name, **ONE_STAGE))
    assert said in str(caught.value)


class Difference(torch.nn.Module):
    def forward(self, b, a):
        return a - b


def test_inputs_whose_names_come_in_another_order_than_in_the_forward_are_refused():
    facts = [
        DataFacts(shape=dict.fromkeys(names, (1,)), dtype=dict.fromkeys(names, "float32")) for names in ("ba", "ab")
    ]
    assert len(module_nodes(facts[0], build=f"{__name__}:Difference")) == 1
    with pytest.raises(ValueError, match="Difference reads b, a"):
        module_nodes(facts[1], build=f"{__name__}:Difference")


def test_nodes_that_share_a_parameter_are_in_one_stage_or_are_untied(here):
    with pytest.raises(pg.SpecError, match=r'nodes "embedded" and "head" share the parameter wte.weight'):
        pg.plan(spec_of("Gpt", partition={"stages": 2}))
    run = pg.train(spec_of("Gpt", partition={"stages": 2, "untie": True}, **SHORT))
    weights = load_file(run.directory / "weights.safetensors")
    assert not torch.equal(weights["embedded/wte.weight"], weights["head/head.weight"])


def test_frozen_parameters(here):
    spec = spec_of("TwoNames", init={"freeze": ["first", "*.bias"]})
    begun, run = prepare(spec), pg.train(spec)
    start = pg.train(spec_of("TwoNames", optimizer={"options": {"lr": 0.0}}, **SHORT))
    before, after = (load_file(one.directory / "weights.safetensors") for one in (start, run))
    moved = {name for name, one in after.items() if not torch.equal(one, before[name])}
    assert moved == {"last/last.weight", "last/body.1.weight", "options/options.weight"}
    assert not any(one.trained for one in begun.network.shapes["first"].named.values())


def test_a_tied_parameter_is_frozen_under_all_names():
    with pytest.raises(pg.SpecError, match="'frist' names no parameter of the network"):
        prepare(spec_of("TwoNames", init={"freeze": ["frist"]}))
    with pytest.raises(pg.SpecError, match=r"wte.weight is one parameter of several nodes: freeze it in all of them"):
        prepare(spec_of("Gpt", init={"freeze": ["head"]}, **ONE_STAGE))
    prepare(spec_of("Gpt", init={"freeze": ["head", "embedded"]}, **ONE_STAGE))
