"""A specification written out means the same when it is read again."""

from __future__ import annotations

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from petra_graph.spec import model, run_tables
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


def tuples(strategy, least=0):
    return st.lists(strategy, min_size=least, max_size=3).map(tuple)


plugins = st.builds(model.PluginSpec, name=words, options=options)
nodes = st.builds(
    model.NodeSpec,
    name=names,
    block=words,
    kind=st.sampled_from([None, "buffered"]),
    inputs=st.none() | tuples(words),
    options=options,
)
graphs = st.builds(model.GraphSpec, node=tuples(nodes, 1))
specs = st.builds(
    lambda network, **rest: model.Spec(**network, **rest),
    network=graphs.map(lambda graph: {"graph": graph}) | plugins.map(lambda plugin: {"architecture": plugin}),
    name=names,
    partition=st.builds(
        run_tables.PartitionSpec,
        stages=st.just("per-block") | tuples(tuples(words)),
        devices=st.integers(1, 4) | tuples(words, 1),
    ),
    optimizer=st.builds(
        model.OptimizerSpec, name=words, options=options, clip=st.none() | st.builds(model.ClipSpec, limit=rates)
    ),
    data=st.builds(model.DataSpec, name=words, options=options, evaluation_batch=st.none() | st.integers(1, 9)),
    callback=st.none() | tuples(plugins),
)


@given(specs)
def test_a_dumped_spec_loads_as_an_equal_one(spec):
    loaded = load(spec)
    assert loaded.problems == ()
    assert loaded.spec == spec


def test_defaults_are_written_and_unset_keys_are_left_out():
    architecture = model.PluginSpec(name="revnet", options={"depth": 18})
    spec = model.Spec(architecture=architecture, data=model.DataSpec(name="digits", options={}))
    written = tomllib.loads(dump(spec))
    assert written["architecture"] == {"name": "revnet", "options": {"depth": 18}}
    assert written["data"] == {"name": "digits", "batch": 64, "workers": 0}
    assert written["method"] == {"name": "petra", "accumulation": 1, "allow_stored": False}
    assert "graph" not in written
