"""One more kind of plugin in a module with an entry point: it is listed, shown, checked, named by specs; its checks are another one.

The modules are those that CONTRIBUTING shows.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import Page

PAGE = Page(ROOT / ".github" / "CONTRIBUTING.md")
MODULE, CHECKS = (listing for listing in PAGE.listings("python") if "SAMPLER" in listing)
PLUGINS = """\
from my_sampler import SamplerDeclaration
from petra_graph.plugins import AtLeast, option
from attrs import frozen

@frozen(kw_only=True)
class Options:
    step: int = option("between two samples", validator=AtLeast(1))

class Strided:
    def __init__(self, options):
        self.step = options.step
    def __call__(self, samples, epoch):
        return sorted(range(samples), key=lambda sample: sample % self.step)

class Skips(Strided):
    def __call__(self, samples, epoch):
        return range(0, samples, self.step)

STRIDED = SamplerDeclaration(summary="Every few samples.", options=Options, build="my_samplers:Strided")
SKIPS = SamplerDeclaration(summary="Some samples.", options=Options, build="my_samplers:Skips")
NOTHING = SamplerDeclaration(summary="No function.", options=Options, build="builtins:str")
"""
SPEC = """\
[[graph.node]]
name = "stem"
block = "linear-stem"
options = { features = 4, streams = 1 }
[[graph.node]]
name = "head"
block = "pool-linear"
options = { outputs = 10 }
[data]
name = "random"
options = { shape = [3], dtype = "float32", classes = 10, train = 16, test = 8 }
batch = 8
[run]
epochs = 1
[[sampler]]
name = "strided"
options = { step = 2 }
"""


@pytest.fixture
def run_petra_graph(capsys):
    def run(*arguments):
        exit_code = main(arguments)
        captured = capsys.readouterr()
        return SimpleNamespace(exit_code=exit_code, stdout=captured.out, stderr=captured.err)

    return run


@pytest.fixture
def petra_graph(install, write, run_petra_graph):
    checks = "[petra_graph_conformance.kinds]\nsampler = my_sampler_checks:SAMPLER_CHECKS\n"
    kind = "[petra_graph.kinds]\nsampler = my_sampler:SAMPLER\n"
    install("my-kind", f"{kind}{checks}", my_sampler=MODULE, my_sampler_checks=CHECKS)
    entries = "strided = my_samplers:STRIDED\nskips = my_samplers:SKIPS\nnothing = my_samplers:NOTHING\n"
    install("my-samplers", f"[petra_graph.samplers]\n{entries}", my_samplers=PLUGINS)
    write("a.toml", SPEC)
    return run_petra_graph


def test_it_is_listed_and_shown(petra_graph):
    listed = json.loads(petra_graph("list", "samplers", "--json").stdout)
    assert [(one["name"], one["distribution"], one["fault"]) for one in listed] == [
        ("nothing", "my-samplers", ""),
        ("skips", "my-samplers", ""),
        ("strided", "my-samplers", ""),
    ]
    shown = petra_graph("show", "samplers/strided").stdout
    assert "Every few samples." in shown
    assert '[[sampler]]\n    name = "strided"\n    [sampler.options]\n    step = 64' in shown


def test_a_specification_names_its_plugins(petra_graph):
    assert petra_graph("validate", "a.toml").exit_code == 0
    done = petra_graph("validate", "a.toml", "--set", "sampler.0.name=stride", "--set", "sampler.0.options.step=-1")
    assert done.exit_code == 2
    assert "unknown sampler \"stride\"\n    help: did you mean 'strided'?" in done.stderr
    done = petra_graph("validate", "a.toml", "--set", "sampler.strided.options.step=-1")
    assert 'step in the options of sampler "strided" must be at least 1 (got -1)' in done.stderr
    schema = json.loads(petra_graph("schema").stdout)
    assert schema["properties"]["sampler"]["items"]["properties"]["name"]["anyOf"][0]["enum"] == [
        "nothing",
        "skips",
        "strided",
    ]


def test_what_is_built_is_checked_and_its_promises_are_asked_before_a_run(petra_graph):
    assert petra_graph("run", "a.toml", "--dry-run").exit_code == 0
    done = petra_graph("run", "a.toml", "--dry-run", "--set", "sampler.0={name='skips', options={step=2}}")
    assert (done.exit_code, 'sampler "skips" of my-samplers breaks a promise (each once)' in done.stderr) == (4, True)
    done = petra_graph("run", "a.toml", "--dry-run", "--set", "sampler.0={name='nothing', options={step=2}}")
    assert (done.exit_code, 'sampler "nothing" of my-samplers is broken: its build returns' in done.stderr) == (4, True)


def test_the_kit_asks_its_promises(petra_graph):
    done = petra_graph("check", "my-samplers", "--json")
    found = {one["plugin"]: one["status"] for one in json.loads(done.stdout)}
    assert found == {"samplers/strided": "kept", "samplers/skips": "broken", "samplers/nothing": "broken"}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("sampler = my_sampler:GONE", "cannot be loaded from 'my_sampler:GONE'"),
        ("sampler = my_sampler:SamplerDeclaration", "is type, not PluginKind"),
        ("sampler = petra_graph.kinds.loss:LOSS", 'another kind has its group, "petra_graph.losses"'),
    ],
)
def test_a_broken_kind_is_named_and_left_out(install, run_petra_graph, entry, found):
    install("my-kind", f"[petra_graph.kinds]\n{entry}\n", my_sampler=MODULE)
    done = run_petra_graph("list", "losses")
    assert done.exit_code == 0
    assert found in done.stderr
    assert "cross-entropy" in done.stdout
