"""Files that extend files, and `--set` over them: which value wins, which options stay, and where a value came from."""

from __future__ import annotations

import sys
import tomllib

import pytest
import tomli_w
from hypothesis import given
from hypothesis import strategies as st

from petra_graph.errors import Problem, SpecError
from petra_graph.spec.load_spec import default_name, find_lines, load, parse_override
from tests.support.specs import SPEC

# --- lines ---

TEXT = '''\
# a = 1
"quoted key" = """
[not.a.table] # """ # a comment with = and [
point = 0.5
list = [ 1, # one
  "]",
  [2, { deep = 3 }],
]
[a.b]
c.d = { e = 1, f = ['x'] }
[[n]]
x = 1
[[n]]
[n.options]
y = '#'
[a]
'''
LINES = {
    ("quoted key",): 2, ("point",): 4, ("list",): 5, ("list", 0): 5, ("list", 1): 5, ("list", 2): 5, ("list", 2, 0): 5, ("list", 2, 1): 5,
    ("list", 2, 1, "deep"): 5, ("a",): 16, ("a", "b"): 9, ("a", "b", "c"): 10, ("a", "b", "c", "d"): 10, ("a", "b", "c", "d", "e"): 10,
    ("a", "b", "c", "d", "f"): 10, ("a", "b", "c", "d", "f", 0): 10, ("n",): 11, ("n", 0): 11, ("n", 0, "x"): 12, ("n", 1): 13,
    ("n", 1, "options"): 14, ("n", 1, "options", "y"): 15,
}  # fmt: skip
words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5)
any_values = st.recursive(
    st.integers() | st.booleans() | st.floats(allow_nan=False, allow_infinity=False) | words,
    lambda more: st.lists(more, max_size=3) | st.dictionaries(words, more, max_size=3),
    max_leaves=6,
)


def test_the_line_of_every_path():
    assert find_lines(TEXT) == LINES
    assert find_lines(TEXT.replace("\n", "\r\n")) == LINES


@given(st.dictionaries(words, any_values, max_size=4))
def test_every_path_of_any_text_has_a_line(values):
    text = tomli_w.dumps(values)
    assert set(find_lines(text)) == set(paths(tomllib.loads(text)))


def paths(value, path=()):
    items = value if isinstance(value, dict) else dict(enumerate(value)) if isinstance(value, list) else {}
    return [*[path][: len(path)], *(one for key, item in items.items() for one in paths(item, (*path, key)))]


# --- files ---


def values(name):
    return load(name).values


def place(layers, *path):
    [problem] = layers.in_order([Problem(message="", path=path)])
    return str(problem.where)


def test_tables_merge_and_arrays_replace_and_the_file_itself_wins(write):
    write("one.toml", 'run = { epochs = 1, seed = 1, threads = 1 }\npartition = { devices = ["a", "b"] }\n')
    write("two.toml", "run = { epochs = 2, seed = 2 }")
    write("a.toml", 'extends = ["one.toml", "two.toml"]\nrun.epochs = 3\npartition.devices = ["c"]\n')
    assert values("a.toml") == {"run": {"epochs": 3, "seed": 2, "threads": 1}, "partition": {"devices": ["c"]}}


def test_names_are_relative_to_the_file_that_contains_them_and_a_file_may_be_extended_twice(write):
    write("base/common/c.toml", "run.seed = 7")
    write("base/b.toml", 'extends = "common/c.toml"\nrun.epochs = 2\n')
    write("a.toml", 'extends = ["base/b.toml", "base/common/c.toml"]\n')
    assert values("a.toml") == {"run": {"seed": 7, "epochs": 2}}


STEP = '[lr_schedule]\nname = "step"\nwarmup_epochs = 5\noptions = { milestones = [1], gamma = 0.1 }'


@pytest.mark.parametrize(
    ("base", "above", "merged"),
    [
        (STEP, '[lr_schedule]\nname = "cosine"', {"name": "cosine", "warmup_epochs": 5}),
        (STEP, "[lr_schedule]\noptions = { gamma = 0.2 }",
         {"name": "step", "warmup_epochs": 5, "options": {"milestones": [1], "gamma": 0.2}}),
        # The table's own default counts as the name that the base gave.
        ("[lr_schedule]\noptions = { none = 1 }", '[lr_schedule]\nname = "constant"', {"name": "constant", "options": {"none": 1}}),
        ("[lr_schedule]\noptions = { none = 1 }", '[lr_schedule]\nname = "step"', {"name": "step"}),
        # An option may be called name.
        ('[lr_schedule]\noptions = { name = "x", options = 1 }', '[lr_schedule]\noptions = { name = "y" }',
         {"options": {"name": "y", "options": 1}}),
        # A schedule belongs to its method.
        ('[method]\nschedule = "1f1b"\naccumulation = 2', '[method]\nname = "backprop"', {"name": "backprop", "accumulation": 2}),
        ('[method]\nschedule = "1f1b"', '[method]\nname = "petra"', {"name": "petra", "schedule": "1f1b"}),
    ],
)  # fmt: skip
def test_options_belong_to_the_plugin_that_is_named(write, base, above, merged):
    write("base.toml", base)
    write("a.toml", f'extends = "base.toml"\n{above}\n')
    assert list(values("a.toml").values()) == [merged]


def test_one_way_of_saying_the_network_drops_the_other(write):
    write("base.toml", '[architecture]\nname = "revnet"\n')
    write("a.toml", 'extends = "base.toml"\n[[graph.node]]\nname = "x"\n')
    write("b.toml", 'extends = "a.toml"\n[architecture]\nname = "resnet"\n')
    assert list(values("a.toml")) == ["graph"]
    assert list(values("b.toml")) == ["architecture"]
    assert list(load("a.toml", ["architecture.name=revnet"]).values) == ["architecture"]


def test_positions_point_into_the_file_a_value_came_from(write):
    write("base/b.toml", "[run]\nepochs = 9\nseed = 1\n")
    write("a.toml", 'extends = "base/b.toml"\n[run]\nepochs = 0\n')
    paths = [("run", "epochs"), ("run", "seed"), ("run", "nothing"), ("nothing",)]
    assert [place(load("a.toml"), *path) for path in paths] == ["a.toml:3", "base/b.toml:3", "a.toml:2", "a.toml"]


# --- what is set ---


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("run.epochs = 3", ("run", "epochs"), 3),
        ('name="3"', ("name",), "3"),
        ("data.options.root=~/data/x y", ("data", "options", "root"), "~/data/x y"),
        ("optimizer={ name = 'adam' }", ("optimizer",), {"name": "adam"}),
        ('graph.node."layer1.0".kind=buffered', ("graph", "node", "layer1.0", "kind"), "buffered"),
        ("name=a=b", ("name",), "a=b"),
        ("name=1\nx=2", ("name",), "1\nx=2"),
    ],
)
def test_values_are_toml_and_a_bare_word_is_a_string(text, keys, value):
    override = parse_override(text)
    assert (override.keys, override.value) == (keys, value)


NODES = """
[[graph.node]]
name = "stem"
block = "conv-stem"
options = { channels = 8 }
[[graph.node]]
name = "head"
block = "pool-linear"
[lr_schedule]
name = "step"
options = { milestones = [1] }
"""


def applied(write, *texts):
    return load(write("a.toml", NODES), texts)


def test_nodes_by_index_and_by_name_and_tables_that_are_not_there(write):
    layers = applied(write, "graph.node.1.kind=head", "graph.node.stem.options.channels=16", "optimizer.options.lr=-1")
    stem, head = layers.values["graph"]["node"]
    assert (stem["options"], head["kind"]) == ({"channels": 16}, "head")
    assert layers.values["optimizer"] == {"options": {"lr": -1}}
    path = ("graph", "node", 0, "options")
    assert place(layers, *path, "channels") == "--set graph.node.stem.options.channels=16"
    assert place(layers, *path) == "a.toml:4"
    assert place(layers, "optimizer") == "--set optimizer.options.lr=-1"


@pytest.mark.parametrize("order", [1, -1])
def test_another_plugin_drops_options_whatever_the_order(write, order):
    texts = ["lr_schedule.name=cosine", "lr_schedule.options.final=0.2"][::order]
    assert applied(write, *texts).values["lr_schedule"] == {"name": "cosine", "options": {"final": 0.2}}


def test_another_block_drops_options_another_node_name_does_not_and_a_whole_table_replaces(write):
    layers = applied(write, "graph.node.stem.block=linear-stem", "graph.node.head.name=end", "lr_schedule.name=step")
    nodes = [{"name": "stem", "block": "linear-stem"}, {"name": "end", "block": "pool-linear"}]
    assert layers.values["graph"]["node"] == nodes
    assert layers.values["lr_schedule"]["options"] == {"milestones": [1]}
    assert applied(write, "graph.node.0.name=first").values["graph"]["node"][0]["options"] == {"channels": 8}
    assert applied(write, "lr_schedule={ warmup_epochs = 1 }").values["lr_schedule"] == {"warmup_epochs": 1}


# --- what is loaded ---


def test_files_are_relative_to_the_text_that_names_them(write, here):
    write("base/a.toml", f'{SPEC}[partition]\nprofile = "times.json"\n[init]\nweights = "first"\n')
    file = write("mine/b.toml", 'extends = "../base/a.toml"\ninit.weights = "second"\n')
    spec = load(file).spec
    assert (spec.partition.profile, spec.init.weights) == ("base/times.json", "mine/second")
    assert load(file, ["partition.profile=times.json"]).spec.partition.profile == "times.json"
    assert load(spec, ["init.weights=third"]).spec.init.weights == "third"
    assert load(file).folders == [str(here / "mine"), str(here / "base")]
    for name in ("/there/times.json", "~/times.json", "$DATA/times.json"):  # each says where it begins
        write("mine/c.toml", f'extends = "../base/a.toml"\npartition.profile = "{name}"\n')
        assert load("mine/c.toml").spec.partition.profile == name


def test_problems_come_in_reading_order_with_overrides_last(write):
    write("base.toml", "[run]\nseed = -1\n")
    network = '[data]\nname = "digits"\n[architecture]\nname = "revnet"\n'
    text = f'extends = "base.toml"\nnam = 1\n{network}[run]\nepochs = 0\n'
    loaded = load(write("a.toml", text), ["run.threads=0", "nothing"])
    assert loaded.spec is None
    places = ["a.toml:2", "a.toml:8", "base.toml:2", "--set run.threads=0", "--set nothing"]
    assert [str(problem.where) for problem in loaded.problems] == places


def test_a_closed_standard_input_is_an_empty_file(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(SpecError, match="<stdin>: the file is empty"):
        load("-")


@pytest.mark.parametrize(("path", "name"), [("-", "stdin"), ("a b.c.toml", "a-b.c"), ("/x/.RevNet.toml", "RevNet")])
def test_a_run_is_called_after_its_file(path, name):
    assert default_name(path) == name
