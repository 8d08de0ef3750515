"""Files that extend files: which value wins, which options stay, and where a value came from."""

import os

import pytest

from petra_graph.errors import Problem, SpecError
from petra_graph.spec import load_spec
from petra_graph.spec.load_spec import read_layers
from petra_graph.spec.source import read_source


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

    assert place("run", "epochs") == "a.toml:3:10"
    assert place("run", "seed") == "base/b.toml:3:8"
    assert place("run", "nothing") == "a.toml:2:1"
    assert place("nothing") == "a.toml"


def test_cycle(write):
    write("b.toml", 'extends = "a.toml"\n')
    write("a.toml", 'extends = "b.toml"\n')
    assert fault("a.toml") == (
        """\
b.toml:1:11: extends "a.toml", which extends this file again
    extends = "a.toml"
    help: a chain of extends must end"""
    )


def test_itself(write):
    write("a.toml", 'extends = "a.toml"\n')
    assert fault("a.toml") == (
        """\
a.toml:1:11: extends itself
    extends = "a.toml"
    help: a chain of extends must end"""
    )


def test_every_missing_or_invalid_base_is_reported(write):
    write("bad.toml", "x = \n")
    write("specs/a.toml", 'extends = [\n  "gone.toml",\n  "../bad.toml",\n]\n')
    assert fault("specs/a.toml") == (
        """\
specs/a.toml:2:3: extends "gone.toml", but there is no such file
    "gone.toml",
    help: looked for 'specs/gone.toml'; the name is relative to the file that contains it
bad.toml:1:5: invalid TOML: invalid value
    x ="""
    )


def test_wrong_type(write):
    write("a.toml", 'extends = ["b.toml", 3]\n')
    assert fault("a.toml") == (
        """\
a.toml:1:12: extends "b.toml", but there is no such file
    extends = ["b.toml", 3]
    help: looked for 'b.toml'; the name is relative to the file that contains it
a.toml:1:22: extends must be a file's name or a list of them (got 3)
    extends = ["b.toml", 3]"""
    )


def test_a_file_that_two_files_a_level_extend_is_read_once(write, monkeypatch):
    """Fourteen levels of two references took 40 seconds and 546 MB."""
    write("b0.toml", "run.seed = 7")
    for level in range(1, 40):
        write(f"b{level}.toml", f'extends = ["b{level - 1}.toml", "b{level - 1}.toml"]\n')
    layers = read_layers("b39.toml")
    assert layers.values == {"run": {"seed": 7}}
    assert [source.file for source in layers.sources] == [f"b{level}.toml" for level in reversed(range(40))]


def test_a_chain_has_an_end(write):
    write("b0.toml", "run.seed = 7")
    for level in range(1, 60):
        write(f"b{level}.toml", f'extends = "b{level - 1}.toml"\n')
    assert fault("b59.toml") == 'b9.toml:1:11: extends over more than 50 levels\n    extends = "b8.toml"'


def test_no_line_of_another_file_is_shown_unless_it_is_toml(write):
    """`extends = "/etc/shadow"` in somebody else's specification printed a line of it."""
    write("shadow", "root:$6$secret:1:0\n")
    write("a.toml", 'extends = "shadow"\n')
    write("b.toml", "root:$6$shown:1:0\n")
    write("c.toml", 'extends = "b.toml"\n')
    assert "secret" not in fault("a.toml")
    assert fault("a.toml").startswith("shadow:1:5: invalid TOML: ")
    assert "shown" in fault("c.toml")


@pytest.mark.parametrize("name", ["/dev/zero", "/dev/stdin", "fifo"])
def test_only_regular_files_are_extended(write, here, name):
    os.mkfifo(here / "fifo")
    write("a.toml", f'extends = "{name}"\n')
    assert fault("a.toml").endswith("cannot be read: not a regular file")


def test_a_name_that_no_file_can_have(write):
    write("a.toml", 'extends = "a\\u0000b"\n')
    assert "extends must be a file's name" in fault("a.toml")


def test_names_over_links_to_folders_are_read_once(write, here, monkeypatch):
    """Links give a file as many names as there are paths; so does a mistake in the last of doubled files."""
    for link in "pq":
        (here / link).symlink_to(".")
    write("b0.toml", "run.seed = [\n")
    for level in range(1, 31):
        write(f"b{level}.toml", f'extends = ["p/b{level - 1}.toml", "q/b{level - 1}.toml"]\n')
    read = []
    monkeypatch.setattr(load_spec, "read_source", lambda path, **more: read.append(path) or read_source(path, **more))
    assert "invalid TOML" in fault("b30.toml")
    assert len(read) == 31


def test_files_have_an_end(write):
    for number in range(1_001):
        write(f"b{number}.toml", "name = 'x'")
    names = ", ".join(f'"b{number}.toml"' for number in range(1_001))
    write("a.toml", f"extends = [{names}]")
    assert "extends more than 1000 files in all" in fault("a.toml")
