"""`--set`: what it means, what it drops, and what is wrong with it."""

import pytest

from petra_graph.errors import Problem, SpecError
from petra_graph.spec.load_spec import read_layers
from petra_graph.spec.overrides import apply_overrides, parse_override


@pytest.mark.parametrize(
    ("text", "keys", "value"),
    [
        ("method.name=backprop", ("method", "name"), "backprop"),
        ("run.epochs=3", ("run", "epochs"), 3),
        ("run.epochs = 3", ("run", "epochs"), 3),
        ("optimizer.options.lr=1e-2", ("optimizer", "options", "lr"), 0.01),
        ("data.options.flip=true", ("data", "options", "flip"), True),
        ('name="3"', ("name",), "3"),
        ("data.options.root=~/data/x y", ("data", "options", "root"), "~/data/x y"),
        ('partition.devices=["a", "b"]', ("partition", "devices"), ["a", "b"]),
        ("optimizer={ name = 'adam' }", ("optimizer",), {"name": "adam"}),
        ('graph.node."layer1.0".kind=buffered', ("graph", "node", "layer1.0", "kind"), "buffered"),
        ("name=a=b", ("name",), "a=b"),
        ("name=1\nx=2", ("name",), "1\nx=2"),
    ],
)
def test_values_are_toml_and_a_bare_word_is_a_string(text, keys, value):
    override = parse_override(text)
    assert (override.keys, override.value) == (keys, value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("epochs", "--set epochs: not KEY=VALUE\n    help: for example --set run.epochs=3"),
        ("=3", "--set =3: not KEY=VALUE\n    help: for example --set run.epochs=3"),
        ("run.epochs=", "--set run.epochs=: no value\n    help: empty text is written run.epochs='\"\"'"),
        ("run..epochs=1", '--set run..epochs=1: "run..epochs" is not a TOML key'),
        ("a=[1", "--set a=[1: [1 is not a TOML value: Unclosed array (at end of document)"),
        ("a=[cuda:0, cpu]", "--set a=[cuda:0, cpu]: [cuda:0, cpu] is not a TOML value: Invalid value"),
    ],
)
def test_a_text_that_is_no_override_is_refused(text, expected):
    with pytest.raises(SpecError) as caught:
        parse_override(text)
    assert str(caught.value) == expected


@pytest.mark.parametrize("text", [f"{'.'.join('a' * 1000)}=1", f"a={'[' * 1000}", f"a={'[' * 150}{']' * 150}"])
def test_a_text_of_many_levels_is_refused(text):
    with pytest.raises(SpecError, match=r"nested too deeply|not a TOML value"):
        parse_override(text)


SPEC = """
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
    layers, problems = apply_overrides(read_layers(write("a.toml", SPEC)), texts)
    assert problems == ()
    return layers


def faults(write, *texts):
    _, problems = apply_overrides(read_layers(write("a.toml", SPEC)), texts)
    return [str(problem) for problem in problems]


def test_nodes_by_index_and_by_name(write):
    layers = applied(write, "graph.node.1.kind=head", "graph.node.stem.options.channels=16")
    stem, head = layers.values["graph"]["node"]
    assert stem["options"] == {"channels": 16}
    assert head["kind"] == "head"


def test_tables_that_are_not_there_are_made(write):
    assert applied(write, "optimizer.options.lr=0.1").values["optimizer"] == {"options": {"lr": 0.1}}


def test_a_table_given_whole_replaces(write):
    assert applied(write, "lr_schedule={ warmup_epochs = 1 }").values["lr_schedule"] == {"warmup_epochs": 1}


@pytest.mark.parametrize("order", [1, -1])
def test_another_plugin_drops_options_whatever_the_order(write, order):
    texts = ["lr_schedule.name=polynomial", "lr_schedule.options.power=2"][::order]
    assert applied(write, *texts).values["lr_schedule"] == {"name": "polynomial", "options": {"power": 2}}


def test_the_same_plugin_keeps_options(write):
    assert applied(write, "lr_schedule.name=step").values["lr_schedule"]["options"] == {"milestones": [1]}


def test_another_block_drops_options_and_another_node_name_does_not(write):
    layers = applied(write, "graph.node.stem.block=linear-stem", "graph.node.head.name=end")
    stem, end = layers.values["graph"]["node"]
    assert stem == {"name": "stem", "block": "linear-stem"}
    assert end == {"name": "end", "block": "pool-linear"}
    renamed = applied(write, "graph.node.0.name=first").values["graph"]["node"][0]
    assert renamed["options"] == {"channels": 8}


def test_naming_an_architecture_drops_the_graph(write):
    assert list(applied(write, "architecture.name=revnet").values) == ["lr_schedule", "architecture"]


def test_positions_are_the_overrides_own(write):
    layers = applied(write, "graph.node.stem.options.channels=0", "optimizer.options.lr=-1")

    def place(*path):
        return str(layers.locate(Problem(message="", path=path)).where)

    assert place("graph", "node", 0, "options", "channels") == "--set graph.node.stem.options.channels=0"
    assert place("graph", "node", 0, "options") == "a.toml:4"
    assert place("optimizer", "options", "lr") == "--set optimizer.options.lr=-1"
    assert place("optimizer") == "--set optimizer.options.lr=-1"


def test_the_text_given_is_not_changed(write):
    layers = read_layers(write("a.toml", SPEC))
    apply_overrides(layers, ["graph.node.stem.options.channels=16"])
    assert layers.values["graph"]["node"][0]["options"] == {"channels": 8}


def test_every_override_without_a_target_is_reported(write):
    assert faults(
        write,
        "graph.node.2.kind=head",
        "graph.node.stam.kind=head",
        "lr_schedule.name.x=1",
        "nothing",
    ) == [
        "--set nothing: not KEY=VALUE\n    help: for example --set run.epochs=3",
        "--set graph.node.2.kind=head: graph.node has 2 items, counted from 0 (got 2)",
        (
            '--set graph.node.stam.kind=head: graph.node has no item named "stam"\n'
            "    help: did you mean 'stem'? allowed: head, stem"
        ),
        '--set lr_schedule.name.x=1: lr_schedule.name is "step", not a table',
    ]
