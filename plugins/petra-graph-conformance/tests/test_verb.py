"""`petra-graph check`, as its users see it: one plugin, all of a distribution, what a module has."""

from __future__ import annotations

import json

import pytest

from petra_graph.cli.main import main

CODE = """
from attrs import frozen
from torch import nn
from petra_graph.blocks import AdditiveCoupling, Buffered
from petra_graph.plugins import BlockDeclaration, DataFacts, DataSetDeclaration, LossDeclaration, option

@frozen(kw_only=True)
class Options:
    width: int = option("width")

class Coupling(AdditiveCoupling):
    Options = Options
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.linear = nn.Linear(inputs[0][-1], inputs[0][-1])
    def residual(self, x):
        return self.linear(x)

class Wrong(Coupling):
    def inverse(self, y, s):
        return s, y + self.residual(s)

class Embeds(Buffered):
    streams = 1
    def __init__(self, inputs, options):
        super().__init__(inputs, options)
        self.table = nn.Embedding(8, 3)
    def forward(self, x):
        return (self.table(x),)

class Files:
    def __init__(self, options):
        from petra_graph.plugins import SpecError
        raise SpecError("no files", "download them")

@frozen(kw_only=True)
class Root:
    root: str = option("folder")

COUPLING = BlockDeclaration(summary="x", options=Options, build=f"{__name__}:Coupling", kind="reversible", streams=2)
WRONG = BlockDeclaration(summary="x", options=Options, build=f"{__name__}:Wrong", kind="reversible", streams=2)
FILES = DataSetDeclaration(summary="x", options=Root, build=f"{__name__}:Files", facts=lambda _: DataFacts(shape=(2,)))
class Critic:
    def __init__(self, options): pass
    def __call__(self, output, target): return output.double().mean()
    def metrics(self, output, target): return {}

EMPTY = LossDeclaration(summary="", build="a:b")

class Wide(Coupling):
    def residual(self, x):
        return super().residual(x.view(-1, 999))

def dense(options):
    from torch.nn.functional import cross_entropy
    def loss(output, target):
        if output.shape[1:] != (3, 5, 7):
            raise ValueError("odd sizes alone")
        return cross_entropy(output, target)
    loss.metrics = lambda output, target: {}
    return loss

def net(options, facts):
    import torch
    from petra_graph.plugins import NodeSpec
    return (NodeSpec(name="head", block="pool-linear", options={"outputs": facts.classes, "streams": 1}),)
"""
SLOW = """
from torch.nn.functional import cross_entropy
from petra_graph.plugins import LossDeclaration

class Slow:
    def __init__(self, options): pass
    def __call__(self, output, target): return cross_entropy(output.double(), target)
    def metrics(self, output, target): return {}

SLOW = LossDeclaration(summary="x", build=f"{__name__}:Slow")
"""
POINTS = """
[petra_graph.blocks]
coupling = check_me:COUPLING
wrong = check_me:WRONG
[petra_graph.datasets]
files = check_me:FILES
wrong = check_me:FILES
[petra_graph.losses]
gone = check_me:GONE
"""


@pytest.fixture(autouse=True)
def alone(install, site, monkeypatch):
    install("my-plugins", POINTS, check_me=CODE)
    from petra_graph.registry import registry

    scan = registry.scan
    monkeypatch.setattr(registry, "scan", lambda _search=None: scan([str(site)]))


def test_one_plugin(capsys):
    assert main(["check", "coupling"]) == 0
    assert capsys.readouterr().out == (
        """\
blocks/coupling of my-plugins (8x6x6, 8x6x6; Options(width=4)): 21 promises kept, 1 doubtful
  declaration: doubtful: importing it imports torch, in check_me: `validate` and `list` wait for it
    do: keep declarations in a module that imports petra_graph.plugins alone, and __init__ empty
1 plugin: 1 doubtful
"""
    )
    assert main(["check", "blocks/coupling", "--set", "width=2", "--inputs", "5,5"]) == 0
    assert "blocks/coupling of my-plugins (5, 5; Options(width=2)): 21 promises kept" in capsys.readouterr().out


def test_several_plugins(capsys):
    assert main(["check", "coupling", "blocks/wrong", "losses/check_me:Critic"]) == 4
    assert capsys.readouterr().out.splitlines()[-1] == "3 plugins: 2 doubtful, 1 did not"


def test_a_module(capsys):
    assert main(["check", "check_me"]) == 2
    assert capsys.readouterr().err == (
        'nothing that is installed is called "check_me"\n'
        "    help: it is a module: name what is to be checked in it, as in check_me:MyBlock\n"
    )


def test_a_distribution(capsys):
    assert main(["check", "My_Plugins"]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith(
        "  declaration: doubtful: importing it imports torch, in check_me"
    )  # once: it is one module
    assert [lines[0], lines[3]] == [
        "blocks/coupling of my-plugins (8x6x6, 8x6x6; Options(width=4)): 21 promises kept, 1 doubtful",
        "blocks/wrong of my-plugins (8x6x6, 8x6x6; Options(width=4)): 20 promises kept, 1 broken",
    ]
    assert lines[4].startswith("  inverse: inverse(*forward(*x)) is not x: relative error ")
    assert lines[5].startswith("    do: undo the steps of forward in the opposite order")
    gone = "losses/gone: broken: loss \"gone\" of my-plugins cannot be loaded from 'check_me:GONE'"
    assert lines[6].startswith(gone)
    needs = "not tried: it cannot be opened without its own values of root (--set root=VALUE)"
    assert lines[7:] == [
        f"datasets/files of my-plugins: {needs}",
        f"datasets/wrong of my-plugins: {needs}",
        "5 plugins: 1 doubtful, 2 did not, 2 not tried",
    ]


def test_as_json(capsys):
    assert main(["check", "blocks/wrong", "--json"]) == 4
    [result] = json.loads(capsys.readouterr().out)
    assert (result["plugin"], result["distribution"], result["status"]) == ("blocks/wrong", "my-plugins", "broken")
    broken = [outcome for outcome in result["outcomes"] if outcome["status"] == "broken"]
    assert [(one["promise"], bool(one["found"]), bool(one["remedy"])) for one in broken] == [("inverse", True, True)]


@pytest.mark.parametrize("location", ["check_me:Embeds", "check_me:COUPLING"])
def test_what_a_module_has(location, capsys):
    assert main(["check", location]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"{location} (")
    assert "1 plugin: 1 kept all promises\n" in printed


def test_what_takes_no_guess_is_not_tried_and_what_is_given_is(capsys):
    """A right block, of sizes that nobody would guess, was called broken."""
    assert main(["check", "check_me:Wide", "--set", "width=4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("check_me:Wide: not tried: it takes none of 15 guessed inputs; with 8x6x6, 8x6x6;")
    assert printed.endswith(
        " (say what it takes, as in --inputs 8x6x6,8x6x6 or --tokens 50000)\n1 plugin: 1 not tried\n"
    )
    assert main(["check", "losses/check_me:dense", "--json"]) == 0
    [result] = json.loads(capsys.readouterr().out)
    assert (result["status"], result["outcomes"]) == ("not tried", [])
    assert main(["check", "losses/check_me:dense", "--output", "3x5x7", "--targets", "classes"]) == 0
    assert capsys.readouterr().out.startswith(
        "losses/check_me:dense (outputs [3, 5, 7]; NoOptions()): 12 promises kept\n"
    )
    assert main(["check", "check_me:Embeds", "--tokens", "3", "--inputs", "5"]) == 0
    assert capsys.readouterr().out.startswith("check_me:Embeds (5 (tokens below 3); NoOptions()): 18 promises kept\n")


def test_a_loose_module_may_import_torch(capsys):
    """`validate` reads it whatever it imports; the declarations of a package are read wherever that is installed."""
    facts = ["--facts", "shape=[6,5,4]", "--facts", "classes=3", "--facts", "dtype=float32"]
    main(["check", "architectures/check_me:net", *facts])
    printed = capsys.readouterr().out
    assert printed.startswith("architectures/check_me:net (samples 6x5x4; NoOptions()): ")
    assert "no torch" not in printed


def test_what_may_be_meant_does_not_fail(capsys):
    assert main(["check", "losses/check_me:Critic"]) == 0
    printed = capsys.readouterr().out
    assert (
        "(outputs [10]; NoOptions()): 10 promises kept, 2 doubtful\n  bounded: doubtful: down the gradient of its"
        in printed
    )
    assert "    do: see its sign\n" in printed
    assert printed.endswith("1 plugin: 1 doubtful\n")


def test_an_installed_declaration_that_imports_torch(install, capsys):
    install("slow-plugins", "[petra_graph.losses]\nslow = slow_me:SLOW\n", slow_me=SLOW)
    assert main(["check", "losses/slow"]) == 0
    printed = capsys.readouterr().out
    assert (
        "  declaration: doubtful: importing it imports torch, in slow_me: `validate` and `list` wait for it\n"
        in printed
    )
    assert (
        "    do: keep declarations in a module that imports petra_graph.plugins alone, and __init__ empty\n" in printed
    )


def test_a_declaration_of_a_module_that_breaks_its_contract(capsys):
    assert main(["check", "check_me:EMPTY"]) == 4
    assert "check_me:EMPTY: broken: the declaration has no summary\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "error"),
    [
        (
            ["wrong"],
            2,
            '"wrong" is the name of 2 plugins\n    help: write one of them: "blocks/wrong" or "datasets/wrong"\n',
        ),
        (["couplin"], 2, "did you mean 'coupling'? `petra-graph list` shows the plugins; distributions: my-plugins\n"),
        (["blocks/couplin"], 2, 'unknown block "couplin"'),
        (["nowhere:X"], 2, "'nowhere' is neither importable nor a distribution with plugins"),
        (["check_me:Options"], 4, '"check_me:Options" is a type, and no plugin\n'),
        (["check_me:Nothing"], 4, '"check_me:Nothing" cannot be loaded: AttributeError'),
        (["coupling", "--set", "widht=2"], 2, 'unknown key "widht" in the options of block "coupling"'),
        (["coupling", "--set", "a.b=2"], 2, "an option is one key"),
        (["coupling", "--inputs", "5;5"], 2, "'5;5' is not a list of shapes, as in 8x6x6,8x6x6"),
        (["coupling", "--output", "5"], 2, "it is a setting of losses and metrics, not of blocks"),
        (["coupling", "--tokens", "0"], 2, "0 is not in the range x>=1"),
        (["losses/check_me:dense", "--output", "5,5"], 2, "an output is one shape, as in 5x8x6"),
        (["losses/check_me:dense", "--targets", "pixels"], 2, "'pixels' is not one of 'classes', 'last-classes',"),
        (["architectures/check_me:net", "--facts", "shape=[0]"], 2, "have shape = (0,), not a tuple of integers above"),
        (
            ["architectures/check_me:net", "--facts", "clases=5"],
            2,
            'unknown key "clases" in [facts]\n    help: did you',
        ),
        (["architectures/check_me:net", "--facts", "shape"], 2, "not KEY=VALUE"),
        (["files", "--set", "root=here"], 2, "no files\n    help: download them\n"),
    ],
)
def test_what_cannot_be_checked(arguments, code, error, capsys):
    assert main(["check", *arguments]) == code
    printed = capsys.readouterr()
    assert error in printed.err
    assert printed.out == ""
