"""What a checked specification holds, and what a broken one tells."""

import sys

import pytest

from petra_graph.errors import PluginError, SpecError
from petra_graph.planning.check_spec import check_spec
from petra_graph.training.prepare import prepare
from tests.support.runs import named
from tests.support.specs import SPEC

ARCHITECTURE = """
[data]
name = "cifar10"
options = { root = "nowhere" }
[optimizer]
options = { lr = 0.1 }
[architecture]
name = "revnet"
options = { depth = 18 }
"""


def faults(write, text, kind=SpecError, overrides=()):
    with pytest.raises(kind) as caught:
        check_spec(write("a.toml", text), overrides)
    assert type(caught.value) is kind
    return [f"{problem.where}: {problem.message}" for problem in caught.value.problems]


SORTED = """
from pathlib import Path
from petra_graph.plugins import DataFacts, Problem, SpecError

class Sorted:
    "Images whose classes a file lists."

    def __init__(self, *, classes: int | None = None): ...

    @staticmethod
    def facts(*, classes: int | None = None):
        return DataFacts(shape=(3, 32, 32), classes=classes)

    @staticmethod
    def completed(*, classes: int | None = None):
        if classes is not None:
            return {}
        if not Path("classes.txt").exists():
            raise SpecError(Problem(message="there is no file classes.txt", hint="write it", path=("classes",)))
        return {"classes": len(Path("classes.txt").read_text().split())}
"""


def test_what_only_the_files_tell(write, here):
    """A network by name asked for a number that the data set could count."""
    write("sorted_files.py", SORTED)
    text = ARCHITECTURE.replace('"cifar10"', '"sorted_files:Sorted"').replace('root = "nowhere"', "classes = 7")
    counted = text.replace("classes = 7", "")
    assert check_spec(write("a.toml", text)).facts.classes == 7
    assert faults(write, counted) == ["a.toml:3: there is no file classes.txt"]
    write("classes.txt", "cat dog owl")
    checked = check_spec(write("a.toml", counted))
    assert checked.facts.classes == checked.data.options.classes == checked.graph.nodes["head"].options.outputs == 3
    (here / "classes.txt").unlink()
    assert (
        check_spec(write("a.toml", text), ["data.options={}", "architecture.options.classes=5"]).facts.classes is None
    )


BROKEN = "[petra_graph.losses]\nbad = bad_loss:LOSS\n"


def test_plugins_alone_are_at_fault(write, install):
    install("bad-losses", BROKEN, bad_loss="raise RuntimeError('no')\n")
    assert faults(write, SPEC + "[loss]\nname = 'bad'\n", PluginError) == [
        "a.toml:29: loss \"bad\" of bad-losses cannot be loaded from 'bad_loss:LOSS': RuntimeError: no"
    ]


def test_code_of_a_data_set_or_architecture_that_fails_is_the_plugins_fault(write, install):
    install(
        "bad-data",
        "[petra_graph.datasets]\nbad = bad_data:Data\n[petra_graph.architectures]\nbad = bad_data:nodes\n",
        bad_data="""
        def nodes(facts):
            return ["not a node"]
        class Data:
            @staticmethod
            def facts():
                return nothing
        """,
    )
    assert faults(write, SPEC.replace('"digits"', '"bad"'), PluginError) == [
        ("a.toml:1: data set \"bad\" of bad-data: facts failed: NameError: name 'nothing' is not defined")
    ]
    text = "[data]\nname = 'digits'\n[optimizer]\noptions = { lr = 0.1 }\n[architecture]\nname = 'bad'\n"
    assert faults(write, text, PluginError) == [
        ('a.toml:5: architecture "bad" of bad-data is broken: it returns something else than a tuple of NodeSpec')
    ]


LOCAL = SPEC.replace('block = "rev-mlp"', 'block = "right_here:Mine"')


def test_the_options_of_a_block_in_a_file_are_checked(write, site):
    (site / "right_there.py").write_text(
        "class Mine:\n    kind = 'reversible'\n    streams = 2\n    def __init__(self, inputs, *, size: int): ...\n"
    )
    text = LOCAL.replace("right_here", "right_there")
    with pytest.raises(SpecError) as caught:
        check_spec(write("a.toml", text))
    assert [problem.message for problem in caught.value.problems] == [
        'size is missing in the options of block "right_there:Mine"',
        'unknown key "hidden" in the options of block "right_there:Mine"',
    ]


def listed_faults(write, text):
    with pytest.raises(SpecError) as caught:
        check_spec(write("a.toml", SPEC + text))
    return [(str(problem.where.line), problem.message, problem.hint) for problem in caught.value.problems]


def test_mistakes_have_their_places(write):
    line = SPEC.count("\n")
    text = named("callback", "emo", "ema", "ema", "mlflow") + "experimnt = 1\noptions = { experiment = 2 }\n"
    assert [(int(at) - line, message) for at, message, _ in listed_faults(write, text)] == [
        (3, 'unknown callback "emo"'),
        (9, 'callback "ema" is listed twice'),
        (13, 'unknown key "experimnt" in callback "mlflow"'),
        (14, 'experiment in the options of callback "mlflow" must be a string (got 2)'),
    ]


def test_a_missing_package_is_told_before_the_run_with_what_installs_it(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    text = SPEC + named("callback", "ema", "mlflow")
    assert check_spec(write("a.toml", text))
    with pytest.raises(SpecError) as caught:
        prepare(write("a.toml", text))
    (problem,) = caught.value.problems
    assert problem.message == "callback \"mlflow\" needs the module 'mlflow', which is not installed"
    assert problem.hint == "pip install 'petra-graph-studies[mlflow]'"
