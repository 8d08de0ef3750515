"""A specification written out means the same when it is read again."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.spec import model
from petra_graph.spec.load_spec import dump, load

words = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=8)
names = st.from_regex(r"[\w-][\w.-]{0,7}", fullmatch=True)
rates = st.floats(0.001, 1e6)
values = st.recursive(
    st.integers(-100, 100) | st.booleans() | rates | words,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, min_size=1, max_size=3),
    max_leaves=5,
)
options = st.dictionaries(words, values, max_size=3)


def table(cls, **given):
    """A strategy of a table with some keys given; the others have their defaults."""
    return st.builds(cls, **given)


nodes = table(
    model.NodeSpec,
    name=names,
    block=words,
    kind=st.sampled_from([None, "reversible", "buffered", "head"]),
    inputs=st.none() | st.lists(words, max_size=3).map(tuple),
    repeat=st.integers(1, 3),
    options=options,
)
inputs = st.none() | table(model.InputSpec, shape=st.lists(st.integers(1, 9), min_size=1, max_size=3).map(tuple))
graphs = table(model.GraphSpec, input=inputs, node=st.lists(nodes, min_size=1, max_size=3).map(tuple))
clips = st.none() | table(model.ClipSpec, by=st.sampled_from(["norm", "value"]), limit=rates)
cuts = st.lists(st.lists(words, max_size=2).map(tuple), max_size=3).map(tuple)
specs = st.builds(
    lambda network, **rest: model.Spec(**network, **rest),
    network=graphs.map(lambda graph: {"graph": graph})
    | table(model.PluginSpec, name=words, options=options).map(lambda plugin: {"architecture": plugin}),
    name=names,
    loss=table(model.LossSpec, name=words, options=options),
    method=table(
        model.MethodSpec, name=words, schedule=st.sampled_from([None, "1f1b"]), accumulation=st.integers(1, 9)
    ),
    partition=table(
        model.PartitionSpec,
        stages=st.just("per-block") | cuts,
        devices=st.integers(1, 4) | st.lists(words, min_size=1, max_size=3).map(tuple),
    ),
    optimizer=table(model.OptimizerSpec, name=words, options=options, clip=clips),
    lr_schedule=table(model.LrScheduleSpec, name=words, warmup_epochs=rates, delay_epochs=rates),
    data=table(model.DataSpec, name=words, options=options, evaluation_batch=st.none() | st.integers(1, 9)),
    callback=st.none() | st.lists(table(model.PluginSpec, name=words, options=options), max_size=2).map(tuple),
    run=table(model.RunSpec, seed=st.integers(0, 9), directory=words),
)


@given(specs)
def test_a_dumped_spec_loads_as_an_equal_one(spec):
    loaded = load(spec)
    assert loaded.problems == ()
    assert loaded.spec == spec


def test_defaults_are_written_and_unset_keys_are_left_out():
    spec = model.Spec(
        name="tiny",
        architecture=model.PluginSpec(name="revnet", options={"depth": 18}),
        data=model.DataSpec(name="digits", options={}),
    )
    assert dump(spec) == Path(__file__).with_name("dumped.toml").read_text()
