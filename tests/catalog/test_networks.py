"""RevNets and ResNets are the paper's, to the parameter; nothing is allocated to know it."""

from __future__ import annotations

import pytest

from petra_graph.catalog.architectures import resnet, revnet
from petra_graph.plugins.data_set import DataFacts
from petra_graph.spec.model import DataSpec, MethodSpec, Spec
from tests.support.pipelines import measured_network, programs_of

CIFAR10 = DataFacts(shape=(3, 32, 32), classes=10)
IMAGENET32 = DataFacts(shape=(3, 32, 32), classes=1000)
IMAGENET = DataFacts(shape=(3, 224, 224), classes=1000)
DATA = (CIFAR10, IMAGENET32, IMAGENET)
KINDS = {"revnet": revnet, "resnet": resnet}
PARAMETERS = {
    ("revnet", 18): (11_185_802, 12_200_552, 12_215_912),
    ("revnet", 34): (21_297_674, 22_312_424, 22_327_784),
    ("revnet", 50): (26_350_218, 30_406_248, 30_421_608),
    ("revnet", 101): (45_368_458, 49_424_488, 49_439_848),
    ("resnet", 18): (11_178_762, 11_686_632, 11_694_312),
    ("resnet", 34): (21_290_634, 21_798_504, 21_806_184),
    ("resnet", 50): (23_547_402, 25_575_912, 25_583_592),
    ("resnet", 101): (42_565_642, 44_594_152, 44_601_832),
}
"""On CIFAR-10, ImageNet32 and ImageNet. As the authors' code counts them; 101 and ResNet34, which it lacks, by the
same rules."""
STAGES = {
    ("revnet", 18): "SRRDRDRDRH",
    ("revnet", 34): "SRRRDRRRDRRRRRDRRH",
    ("revnet", 50): "SDRRDRRRDRRRRRDRRH",
    ("revnet", 101): f"SDRRDRRRD{22 * 'R'}DRRH",
    ("resnet", 18): f"S{8 * 'D'}H",
    ("resnet", 34): f"S{16 * 'D'}H",
    ("resnet", 50): f"S{16 * 'D'}H",
    ("resnet", 101): f"S{33 * 'D'}H",
}
"""S stem, R reversible, D downsampling or other buffered, H head."""
LETTERS = {"reversible": "R", "buffered": "D", "head": "H"}


def written_out(kind, facts, **options):
    return KINDS[kind](facts, **options)


def network(kind, facts, **options):
    spec = Spec(data=DataSpec(name="random"), method=MethodSpec(name="petra"))
    return measured_network(written_out(kind, facts, **options), spec, facts)


@pytest.mark.parametrize(("kind", "depth"), PARAMETERS)
def test_parameters_are_the_papers(kind, depth):
    assert PARAMETERS[kind, depth] == tuple(network(kind, facts, depth=depth).count_parameters()[0] for facts in DATA)


@pytest.mark.parametrize(("kind", "depth"), STAGES)
def test_stages_are_the_papers(kind, depth):
    measured = network(kind, CIFAR10, depth=depth)
    letters = [LETTERS[measured.graph.nodes[name].kind] for name in measured.graph.order]
    assert STAGES[kind, depth] == "S" + "".join(letters[1:])
    assert len(programs_of(measured)) == len(letters)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("stem", "side", "expected"),
    [
        ("auto", 28, (28, 28)),
        ("auto", 63, (63, 63)),
        ("auto", 64, (16, 16)),
        ("auto", 224, (56, 56)),
        ("cifar", 224, (224, 224)),
        ("imagenet", 32, (8, 8)),
    ],
)
def test_the_stem_follows_the_image(kind, stem, side, expected):
    facts = DataFacts(shape=(1, side, side), classes=3)
    outputs = network(kind, facts, depth=18, width=0.125, stem=stem).shapes["stem"].outputs
    assert {shape[1:] for shape in outputs} == {expected}
