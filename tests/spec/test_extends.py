"""Files that extend files: which value wins, which options stay, and where a value came from."""

import pytest

from petra_graph.errors import Problem, SpecError
from petra_graph.spec.load_spec import read_layers


def values(name):
    return read_layers(name).values


def fault(name):
    with pytest.raises(SpecError) as caught:
        read_layers(name)
    return str(caught.value)


def test_tables_merge_and_arrays_replace(write):
    write("base.toml", 'run = { epochs = 9, seed = 1 }\npartition = { devices = ["a", "b"] }\n')
    write("a.toml", 'extends = "base.toml"\nrun.epochs = 2\npartition.devices = ["c"]\n')
    assert values("a.toml") == {"run": {"epochs": 2, "seed": 1}, "partition": {"devices": ["c"]}}


def test_later_ones_win_and_the_file_itself_wins_over_all(write):
    write("one.toml", "run = { epochs = 1, seed = 1, threads = 1 }")
    write("two.toml", "run = { epochs = 2, seed = 2 }")
    write("a.toml", 'extends = ["one.toml", "two.toml"]\nrun.epochs = 3\n')
    assert values("a.toml") == {"run": {"epochs": 3, "seed": 2, "threads": 1}}


def test_names_are_relative_to_the_file_that_contains_them(write):
    write("base/common/c.toml", "run.seed = 7")
    write("base/b.toml", 'extends = "common/c.toml"\nrun.epochs = 2\n')
    write("a.toml", 'extends = "base/b.toml"\n')
    assert values("a.toml") == {"run": {"seed": 7, "epochs": 2}}


def test_a_file_may_be_extended_twice_over_two_ways(write):
    write("c.toml", "run.seed = 7")
    write("b.toml", 'extends = "c.toml"\n')
    write("a.toml", 'extends = ["b.toml", "c.toml"]\n')
    assert values("a.toml") == {"run": {"seed": 7}}


@pytest.mark.parametrize(
    ("base", "above", "merged"),
    [
        (
            '[lr_schedule]\nname = "step"\nwarmup_epochs = 5\noptions = { milestones = [1] }',
            '[lr_schedule]\nname = "cosine"',
            {"name": "cosine", "warmup_epochs": 5},
        ),
        (
            '[lr_schedule]\nname = "step"\noptions = { milestones = [1], gamma = 0.1 }',
            '[lr_schedule]\nname = "step"\noptions = { gamma = 0.2 }',
            {"name": "step", "options": {"milestones": [1], "gamma": 0.2}},
        ),
        (
            '[lr_schedule]\nname = "step"\noptions = { milestones = [1] }',
            "[lr_schedule]\noptions = { gamma = 0.2 }",
            {"name": "step", "options": {"milestones": [1], "gamma": 0.2}},
        ),
        # The table's own default counts as the name that the base gave.
        (
            "[lr_schedule]\noptions = { none = 1 }",
            '[lr_schedule]\nname = "constant"',
            {"name": "constant", "options": {"none": 1}},
        ),
        (
            "[lr_schedule]\noptions = { none = 1 }",
            '[lr_schedule]\nname = "step"',
            {"name": "step"},
        ),
    ],
)
def test_options_belong_to_the_plugin_that_is_named(write, base, above, merged):
    write("base.toml", base)
    write("a.toml", f'extends = "base.toml"\n{above}\n')
    assert values("a.toml") == {"lr_schedule": merged}


def test_one_way_of_saying_the_network_drops_the_other(write):
    write("base.toml", '[architecture]\nname = "revnet"\n')
    write("a.toml", 'extends = "base.toml"\n[[graph.node]]\nname = "x"\n')
    write("b.toml", 'extends = "a.toml"\n[architecture]\nname = "resnet"\n')
    assert list(values("a.toml")) == ["graph"]
    assert list(values("b.toml")) == ["architecture"]


def test_positions_point_into_the_file_a_value_came_from(write):
    write("base/b.toml", "[run]\nepochs = 9\nseed = 1\n")
    write("a.toml", 'extends = "base/b.toml"\n[run]\nepochs = 0\n')
    layers = read_layers("a.toml")

    def place(*path):
        return str(layers.locate(Problem(message="", path=path)).where)

    assert place("run", "epochs") == "a.toml:3"
    assert place("run", "seed") == "base/b.toml:3"
    assert place("run", "nothing") == "a.toml:2"
    assert place("nothing") == "a.toml"


def test_cycle(write):
    write("b.toml", 'extends = "a.toml"\n')
    write("a.toml", 'extends = "b.toml"\n')
    assert fault("a.toml") == 'b.toml:1: extends "a.toml", which extends this file again'
    write("c.toml", 'extends = "c.toml"\n')
    assert fault("c.toml") == 'c.toml:1: extends "c.toml", which extends this file again'


def test_every_missing_or_invalid_base_is_reported(write):
    write("bad.toml", "x = \n")
    write("specs/a.toml", 'extends = [\n  "gone.toml",\n  "../bad.toml",\n  3,\n]\n')
    assert fault("specs/a.toml") == (
        """\
specs/a.toml:2: extends "gone.toml", but there is no such file
    help: looked for 'specs/gone.toml'; the name is relative to the file that contains it
specs/a.toml:4: extends must be a file's name or a list of them (got 3)
bad.toml:1: invalid TOML: invalid value; text needs quotes"""
    )
