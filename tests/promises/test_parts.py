"""A network by its parts: the bits of the module itself, its names there and back, and what is no such network refused by name."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

import petra_graph as pg
from petra_graph.training.prepare import prepare
from tests.networks import networks_by_parts as networks

STEPS, BATCH = 25, 8
SAMPLES = STEPS * BATCH


class Images(torch.utils.data.Dataset):
    shape = (1, networks.SIDE, networks.SIDE)

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randn(self.shape, generator=generator), index % networks.CLASSES


class Rows(Images):
    shape = (networks.WIDTH,)


class Tokens(Images):
    def __getitem__(self, index):
        text = torch.randint(networks.WORDS, (7,), generator=torch.Generator().manual_seed(index))
        return text[:-1], text[1:]


OF_IMAGES = ("UNet", "ViewOfImages")
STARTS = "tests.networks.networks_by_parts"
SGD = {"lr": 0.1, "momentum": 0.9, "nesterov": False, "weight_decay": 0.0}


def spec_of(name, options=None, **tables):
    data = Images if name in OF_IMAGES else Tokens if name == "Gpt" else Rows
    classes = networks.WORDS if name == "Gpt" else networks.CLASSES
    tables["run"] = {"epochs": 1, "directory": "runs", **tables.get("run", {})}
    return pg.make_spec(
        architecture={"name": "module", "options": {"build": f"{STARTS}:{name}", **(options or {})}},
        data=pg.from_torch(data, data, classes=classes, batch=BATCH),
        **{
            "optimizer": {"name": "sgd", "options": SGD},
            "method": {"name": "backprop"},
            "lr_schedule": {"name": "constant"},
            "precision": {"memory_format": "contiguous"},
            **tables,
        },
    )


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


@pytest.mark.parametrize(
    ("name", "options", "tables"),
    [
        ("UNet", {}, {}),
        ("Gpt", {}, {"partition": {"stages": 1}}),
        ("OneNode", {}, {}),
        ("KeptByAHook", {}, {}),
        ("TwoNames", {}, {}),
    ],
)
def test_twenty_five_steps_are_those_of_the_module_itself(here, name, options, tables):
    torch.manual_seed(3)
    network = getattr(networks, name)()
    torch.save(network.state_dict(), "begun.pt")
    spec = spec_of(name, options, init={"weights": "begun.pt"}, **tables)
    prepared = prepare(spec)
    order = prepared.opened.epoch(0).parts
    assert len(order) == STEPS
    run = pg.train(spec)
    trained_alone(network, order, {"UNet": Images, "Gpt": Tokens}.get(name, Rows)())
    found = {key.partition("/")[2]: one for key, one in load_file(run.directory / "weights.safetensors").items()}
    expected = network.state_dict()
    assert found.keys() >= expected.keys() - {"head.weight"}
    different = [key for key, one in expected.items() if not torch.equal(found.get(key, one), one)]
    assert not different
    loaded = getattr(networks, name)()
    loaded.load_state_dict({key: found.get(key, found.get("wte.weight")) for key in expected}, strict=True)


@pytest.mark.parametrize(
    ("name", "options", "nodes"),
    [
        ("plain", {}, ["stem", "layers", "head"]),
        ("plain", {"split": ["layers"]}, ["stem", "layers.0", "layers.1", "head"]),
        ("UNet", {}, ["down1", "down2", "mid", "up2", "up1", "last"]),
        ("OneNode", {}, ["onenode"]),
    ],
)
def test_nodes(name, options, nodes):
    graph = prepare(spec_of(name, options)).network.graph
    assert list(graph.nodes) == nodes
    if name == "UNet":
        assert graph.nodes["up1"].inputs == ("up2", "down1")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("MeanInForward", "in training, its part 'b' computes something else than in the module's forward"),
        ("LayerDrop", "its forward draws from the global generator of Python, and its parts draw otherwise"),
        ("Hooked", "its parts return [4, 3] with other values than its forward"),
        ("Reversed", "in its part 'a', the gradient of a.weight is another than in the module itself"),
        ("SideChannel", 'node "b": block "module-part-head" raised in its forward: pop from empty list'),
        ("HiddenTie", "b.others[0].weight"),
        ("SharedNorm", "in its part 'a', the buffer of a.1.running_mean is another than in the module itself"),
        ("Lazy", "parameters have no shape before the first forward: a.weight"),
        ("Scripted", "modules are of torch.jit: a"),
        ("UnknownName", "reads 'c'; in front of it are a"),
        ("NotModules", "its part 'b' is an object of class method, and no torch.nn.Module"),
        ("OwnTensor", "its tensor 'weight' is none of the network's"),
    ],
)
@pytest.mark.filterwarnings("ignore:`torch.jit")
def test_what_is_no_network_of_its_parts(name, said):
    with pytest.raises(pg.PetraGraphError) as caught:
        prepare(spec_of(name, partition={"stages": 1}))
    assert said in str(caught.value)


def test_a_view_of_images_as_they_lie_in_a_run(here):
    prepare(spec_of("ViewOfImages"))
    with pytest.raises((pg.PetraGraphError, RuntimeError), match="view size is not compatible"):
        pg.train(spec_of("ViewOfImages", precision={"memory_format": "channels-last"}))


def test_nodes_that_share_a_parameter_are_in_one_stage(here):
    with pytest.raises(pg.SpecError, match=r'nodes "embedded" and "head" share the parameter wte.weight'):
        pg.plan(spec_of("Gpt", partition={"stages": 2}))
    run = pg.train(spec_of("Gpt", partition={"stages": 2, "untie": True}, run={"epochs": 1, "micro_batches": 2}))
    weights = load_file(run.directory / "weights.safetensors")
    assert not torch.equal(weights["embedded/wte.weight"], weights["head/head.weight"])


@pytest.mark.parametrize("coupling", ["dual-residual", "midpoint"])
def test_residual_parts_are_coupled(here, coupling):
    torch.manual_seed(3)
    network = networks.Gpt(layers=4)
    torch.save(network.state_dict(), "begun.pt")
    given = {"kwargs": {"layers": 4}, "coupling": coupling, "alpha": 1.0, "beta": 1e-4}
    spec = spec_of(
        "Gpt",
        given,
        partition={"stages": 1},
        init={"weights": "begun.pt"},
        method={"name": "reversible-backprop"},
        optimizer={"name": "sgd", "options": {"lr": 0.0, "weight_decay": 0.0}},
        run={"epochs": 1, "micro_batches": 1},
    )
    kinds = [node.kind for node in prepare(spec).network.graph.nodes.values()]
    assert kinds == ["buffered", *["reversible"] * 4, "head"]
    tokens = torch.stack([Tokens()[index][0] for index in range(4)])
    found = pg.load(pg.train(spec))(tokens)
    x = before = network.nodes()["embedded"](tokens)
    for at, layer in enumerate(network.layers):
        if at == 0:
            after = layer(x)
        elif coupling == "midpoint":
            after = before + 2 * (layer(x) - x)
        else:
            after = layer(x) + 1e-4 * before
        x, before = after, x
    torch.testing.assert_close(found, network.head(x))


def test_anchors_and_a_network_without_residual_parts():
    nodes = prepare(
        spec_of("Gpt", {"kwargs": {"layers": 4}, "coupling": "midpoint", "anchors": 2}, partition={"stages": 1})
    )
    assert [one.kind for one in nodes.network.graph.nodes.values()][1:5] == ["reversible", "buffered"] * 2
    with pytest.raises(pg.SpecError, match="has no two residual parts"):
        prepare(spec_of("UNet", {"coupling": "midpoint"}))


def test_frozen_parameters(here):
    spec = spec_of("TwoNames", init={"freeze": ["first", "*.bias"]})
    begun, run = prepare(spec), pg.train(spec)
    start = pg.train(spec_of("TwoNames", run={"epochs": 1, "micro_batches": 1}, optimizer={"options": {"lr": 0.0}}))
    before, after = (load_file(one.directory / "weights.safetensors") for one in (start, run))
    moved = {name for name, one in after.items() if not torch.equal(one, before[name])}
    assert moved == {"last/last.weight", "last/body.1.weight", "options/options.weight"}
    assert begun.network.shapes["first"].trained == {}


def test_a_tied_parameter_is_frozen_under_all_names():
    with pytest.raises(pg.SpecError, match="'frist' names no parameter of the network"):
        prepare(spec_of("TwoNames", init={"freeze": ["frist"]}))
    with pytest.raises(pg.SpecError, match=r"wte.weight is one parameter of several nodes: freeze it in all of them"):
        prepare(spec_of("Gpt", partition={"stages": 1}, init={"freeze": ["head"]}))
    prepare(spec_of("Gpt", partition={"stages": 1}, init={"freeze": ["head", "embedded"]}))


def test_what_is_exported_is_loaded_strictly_and_two_values_of_one_tensor_are_not_written(here):
    short = {"epochs": 1, "micro_batches": 2, "directory": "runs"}
    run = pg.train(spec_of("TwoNames", run=short))
    run.export("safetensors", "net.safetensors")
    network, rows = networks.TwoNames().eval(), torch.stack([Rows()[index][0] for index in range(4)])
    network.load_state_dict(load_file("net.safetensors"), strict=True)
    torch.testing.assert_close(network(rows), run.load()(rows))
    untied = pg.train(spec_of("Gpt", partition={"stages": 2, "untie": True}, run=short))
    with pytest.raises(pg.PetraGraphError, match="nothing is written"):
        untied.export("safetensors", "gpt.safetensors")
