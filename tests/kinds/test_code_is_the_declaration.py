"""What is stated once: a class of options is its plugin's declaration, an entry point may name the code, tests may be given it."""

from __future__ import annotations

import pickle

import pytest
from attrs import frozen
from attrs.exceptions import FrozenInstanceError

from petra_graph.cli.main import main
from petra_graph.errors import PluginError
from petra_graph.kinds.declaration import stated_by
from petra_graph.kinds.plugin import load
from petra_graph.plugins import (
    DataFacts,
    DataSetDeclaration,
    LossDeclaration,
    declares,
    option,
)
from petra_graph.registry.registry import discover


@declares(DataSetDeclaration, "somewhere:Noise", read="somewhere:read")
class Noise:
    """Noise in classes.

    More of it.
    """

    samples: int = option("training samples", default=3)

    def facts(self):
        return DataFacts(shape=(self.samples,))

    def training_samples(self):
        return self.samples

    def build(self):
        """A method of its own, whatever the declaration has of this name."""


class TestDeclares:
    def test_the_class_has_the_declaration(self):
        declaration = stated_by(Noise)
        assert (declaration.summary, declaration.options, declaration.build, declaration.read) == (
            "Noise in classes.",
            Noise,
            "somewhere:Noise",
            "somewhere:read",
        )
        assert declaration.facts(Noise(samples=2)) == DataFacts(shape=(2,))
        assert declaration.training_samples(Noise()) == 3

    def test_it_is_a_frozen_class_with_keywords_that_can_be_pickled(self):
        assert pickle.loads(pickle.dumps(Noise(samples=5))) == Noise(samples=5)
        with pytest.raises(TypeError):
            Noise(3)
        with pytest.raises(FrozenInstanceError):
            Noise().samples = 4

    def test_a_class_that_attrs_has_made_stays_what_it_is(self):
        @declares(LossDeclaration, "somewhere:loss")
        @frozen(kw_only=True)
        class Options:
            "Its summary."

            margin: float = 1.0

        assert stated_by(Options).options is Options
        assert Options(margin=2.0).margin == 2.0

    def test_a_class_that_inherits_from_it_is_not_the_same_plugin(self):
        class Other(Noise):
            pass

        assert stated_by(Other) is Other

    def test_what_a_kind_does_not_declare_is_refused_with_the_line(self, install, site):
        install(
            "my-blocks",
            "[petra_graph.blocks]\nmine = declares_wrongly:Mine\n",
            declares_wrongly="""\
                from petra_graph.plugins import BlockDeclaration, declares

                @declares(BlockDeclaration, "somewhere:Mine", knid="head")
                class Mine: pass
            """,
        )
        registry = discover([str(site)])
        with pytest.raises(PluginError) as caught:
            registry.resolve(registry.kind("blocks"), "mine")
        assert str(caught.value) == (
            "block \"mine\" of my-blocks cannot be loaded from 'declares_wrongly:Mine': TypeError: "
            "BlockDeclaration.__init__() got an unexpected keyword argument 'knid'\n"
            f"    help: raised at {site}/declares_wrongly.py:3"
        )

    def test_a_class_for_another_kind_is_refused(self, install, site):
        install("my-losses", f"[petra_graph.losses]\nmine = {__name__}:Noise\n")
        registry = discover([str(site)])
        with pytest.raises(PluginError, match="is DataSetDeclaration, not LossDeclaration"):
            registry.resolve(registry.kind("losses"), "mine")


CODE = """\
import torch
from attrs import frozen
from petra_graph.blocks import Head
from petra_graph.plugins import DataFacts, LossDeclaration, NodeSpec, declares, option


@frozen(kw_only=True)
class Rate:
    lr: float = option("base learning rate", default=0.1)


class LastLayer(Head):
    "A linear layer."

    streams = 1

    @frozen(kw_only=True)
    class Options:
        outputs: int = option("outputs")

    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = torch.nn.Linear(inputs[0][0], options.outputs)

    def forward(self, x):
        return self.linear(x)


def one_layer(options, facts):
    "A head alone."
    return (NodeSpec(name="head", block="last-layer", options={"outputs": facts.classes}),)


def plain(groups, options: Rate):
    return torch.optim.SGD(groups.param_groups(weight_decay=0.1), lr=options.lr)


class Squares:
    def __init__(self, options):
        pass

    def __call__(self, output, target):
        return (output - torch.nn.functional.one_hot(target, 10)).square().mean()

    def metrics(self, output, target):
        return {"top1": (output.argmax(1) == target).sum()}

"""
ENTRY_POINTS = """\
[petra_graph.blocks]
last-layer = named_code:LastLayer
[petra_graph.architectures]
one-layer = named_code:one_layer
[petra_graph.optimizers]
plain = named_code:plain
[petra_graph.losses]
squares = named_code:Squares
"""
SPEC = """\
name = "named"
architecture = { name = "one-layer" }
optimizer = { name = "plain" }
loss = { name = "squares" }
data = { name = "random", batch = 8, options = { shape = [4], dtype = "float32", classes = 10, train = 16, test = 8 } }
run = { epochs = 1 }
"""


class TestEntryPoints:
    @pytest.fixture
    def registry(self, install, site):
        install("named-code", ENTRY_POINTS, named_code=CODE)
        return discover([str(site)])

    def test_they_may_name_the_code(self, registry):
        block = registry.resolve(registry.kind("blocks"), "last-layer")
        assert (block.name, block.distribution) == ("last-layer", "named-code")
        declaration = block.declaration
        assert (declaration.summary, declaration.kind, declaration.streams) == ("A linear layer.", "head", 1)
        assert (declaration.options.__name__, load(block).__name__) == ("Options", "LastLayer")
        assert registry.resolve(registry.kind("optimizers"), "plain").declaration.options.__name__ == "Rate"

    def test_they_train_and_are_listed(self, registry, write, capsys):
        assert main(["run", write("a.toml", SPEC), "--json"]) == 0
        capsys.readouterr()
        assert main(["list", "blocks/last-layer"]) == 0
        shown = capsys.readouterr().out
        assert "A linear layer." in shown
        assert "outputs" in shown
