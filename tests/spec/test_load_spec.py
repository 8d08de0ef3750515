"""Loading: names, what is kept, and order of problems."""

import pytest

from petra_graph.spec.load_spec import default_name, load

SPEC = """\
[data]
name = "digits"
[architecture]
name = "revnet"
"""


def test_a_loaded_spec_keeps_its_values_and_text(write):
    loaded = load(write("tiny.toml", SPEC), ["run.epochs=2"])
    assert loaded.problems == ()
    assert (loaded.spec.name, loaded.spec.run.epochs) == ("tiny", 2)
    assert loaded.text == SPEC
    assert loaded.values == {"data": {"name": "digits"}, "architecture": {"name": "revnet"}, "run": {"epochs": 2}}


@pytest.mark.parametrize(
    ("path", "name"),
    [("-", "stdin"), ("specs/a.toml", "a"), ("a b.c.toml", "a-b.c"), ("/x/RevNet.toml", "RevNet"), (".a.toml", "a")],
)
def test_default_name(path, name):
    assert default_name(path) == name


def test_problems_come_in_reading_order_with_overrides_last(write):
    write("base.toml", "[run]\nseed = -1\n")
    loaded = load(
        write("a.toml", f'extends = "base.toml"\nnam = 1\n{SPEC}[run]\nepochs = 0\n[method]\naccumulation = 0\n'),
        ["run.threads=0", "nothing"],
    )
    assert loaded.spec is None
    assert [str(problem.where) for problem in loaded.problems] == [
        "a.toml:2",
        "a.toml:8",
        "a.toml:10",
        "base.toml:2",
        "--set run.threads=0",
        "--set nothing",
    ]
