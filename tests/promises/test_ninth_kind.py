"""A kind of plugin in one module and one entry point: it is listed, shown, checked, named by specs, and asked before a run.

The module is the one that CONTRIBUTING shows.
"""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from petra_graph.cli.main import main
from tests.support import ROOT
from tests.support.pages import Page

PAGE = Page(ROOT / ".github" / "CONTRIBUTING.md")
(MODULE,) = (listing for listing in PAGE.listings("python") if "METRIC = PluginKind(" in listing)
PLUGINS = """\
from my_metric import MetricDeclaration
from petra_graph.plugins import AtLeast, option
from attrs import frozen

@frozen(kw_only=True)
class Options:
    scale: float = option("of the value", validator=AtLeast(0))

class Error:
    def __init__(self, options):
        self.scale = options.scale
    def __call__(self, output, target):
        return self.scale * (output.argmax(1) != target).sum()

class Negative(Error):
    def __call__(self, output, target):
        return -super().__call__(output, target)

ERROR = MetricDeclaration(summary="Wrong answers.", options=Options, build="my_metrics:Error")
NEGATIVE = MetricDeclaration(summary="Less than nothing.", options=Options, build="my_metrics:Negative")
NOTHING = MetricDeclaration(summary="No function.", options=Options, build="builtins:str")
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
[[metric]]
name = "error"
options = { scale = 2.0 }
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
    install("my-kind", "[petra_graph.kinds]\nmetric = my_metric:METRIC\n", my_metric=MODULE)
    entries = "error = my_metrics:ERROR\nnegative = my_metrics:NEGATIVE\nnothing = my_metrics:NOTHING\n"
    install("my-metrics", f"[petra_graph.metrics]\n{entries}", my_metrics=PLUGINS)
    write("a.toml", SPEC)
    return run_petra_graph


def test_it_is_listed_and_shown(petra_graph):
    listed = json.loads(petra_graph("list", "metrics", "--json").stdout)
    assert [(one["name"], one["distribution"], one["fault"]) for one in listed] == [
        ("error", "my-metrics", ""),
        ("negative", "my-metrics", ""),
        ("nothing", "my-metrics", ""),
    ]
    shown = petra_graph("show", "metrics/error").stdout
    assert "Wrong answers." in shown
    assert '[[metric]]\n    name = "error"\n    [metric.options]\n    scale = 0.1' in shown


def test_a_specification_names_its_plugins(petra_graph):
    assert petra_graph("validate", "a.toml").exit_code == 0
    done = petra_graph("validate", "a.toml", "--set", "metric.0.name=eror", "--set", "metric.0.options.scale=-1")
    assert done.exit_code == 2
    assert "unknown metric \"eror\"\n    help: did you mean 'error'?" in done.stderr
    done = petra_graph("validate", "a.toml", "--set", "metric.error.options.scale=-1")
    assert 'scale in the options of metric "error" must be at least 0 (got -1)' in done.stderr
    schema = json.loads(petra_graph("schema").stdout)
    assert schema["properties"]["metric"]["items"]["properties"]["name"]["anyOf"][0]["enum"] == [
        "error",
        "negative",
        "nothing",
    ]


def test_what_is_built_is_checked_and_its_promises_are_asked_before_a_run(petra_graph):
    assert petra_graph("run", "a.toml", "--dry-run").exit_code == 0
    done = petra_graph("run", "a.toml", "--dry-run", "--set", "metric.0={name='negative', options={scale=1.0}}")
    assert (done.exit_code, 'metric "negative" of my-metrics breaks a promise (at least 0)' in done.stderr) == (4, True)
    done = petra_graph("run", "a.toml", "--dry-run", "--set", "metric.0={name='nothing', options={scale=1.0}}")
    assert (done.exit_code, 'metric "nothing" of my-metrics is broken: its build returns' in done.stderr) == (4, True)


def test_the_kit_asks_its_promises(petra_graph):
    done = petra_graph("check", "my-metrics", "--json")
    found = {one["plugin"]: one["status"] for one in json.loads(done.stdout)}
    assert found == {"metrics/error": "kept", "metrics/negative": "broken", "metrics/nothing": "broken"}


@pytest.mark.parametrize(
    ("entry", "found"),
    [
        ("metric = my_metric:GONE", "cannot be loaded from 'my_metric:GONE'"),
        ("metric = my_metric:MetricDeclaration", "is type, not PluginKind"),
        ("metric = petra_graph.kinds.loss:LOSS", 'another kind has its group, "petra_graph.losses"'),
    ],
)
def test_a_broken_kind_is_named_and_left_out(install, run_petra_graph, entry, found):
    install("my-kind", f"[petra_graph.kinds]\n{entry}\n", my_metric=MODULE)
    done = run_petra_graph("list", "losses")
    assert done.exit_code == 0
    assert found in done.stderr
    assert "cross-entropy" in done.stdout
