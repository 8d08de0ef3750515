"""All combinations are checked before anything starts, and a problem is said once."""

from __future__ import annotations

import pytest
from petra_graph_studies.sweeping.combinations import axes_of_texts, combinations, seed_axis
from petra_graph_studies.sweeping.prepare_sweep import prepare_groups

from petra_graph.errors import PluginError, SpecError
from tests.support.runs import SPEC


@pytest.fixture
def prepared(write):
    name = write("small.toml", SPEC)

    def of(*texts, overrides=(), seeds=2):
        axes = axes_of_texts(texts)
        axes += [seed_axis(0, seeds)] * all("run.seed" not in text for text in texts)
        return prepare_groups(name, [*overrides], combinations(axes))

    return of


def problems(error):
    return [str(problem).splitlines()[0] for problem in error.value.problems]


def test_each_group_is_prepared_once(prepared):
    groups = prepared("optimizer.options.lr=0.1,0.01", "method.accumulation=1,2")
    assert [group.figures["updates"] for group in groups] == [22, 12, 22, 12]
    assert len({group.identity for group in groups}) == 4
    assert {group.parent for group in groups} == {"runs"}


def test_a_problem_of_all_runs_is_said_once_and_as_it_is(prepared):
    with pytest.raises(SpecError) as error:
        prepared("optimizer.options.lr=0.1,0.01", overrides=["data.batch=0"])
    assert problems(error) == ["--set data.batch=0: batch in [data] must be at least 1 (got 0)"]


def test_a_swept_value_is_named_by_its_sweep(prepared):
    with pytest.raises(SpecError) as error:
        prepared("optimizer.options.lr=0.1,-1,fast", "method.accumulation=1,2,0")
    text = "\n".join(problems(error))
    assert len(problems(error)) == 3, text
    assert all(f"--sweep {of}: " in text for of in ("optimizer.options.lr=-1", "method.accumulation=0"))
    assert "(with" not in text, "the swept value says it"


def test_what_only_some_combinations_have_is_said_with_them(prepared):
    with pytest.raises(SpecError) as error:
        prepared("method.name=petra,backprop", "method.schedule=lockstep,1f1b", "optimizer.options.lr=0.1,0.2")
    first, second = problems(error)
    assert first.startswith("--sweep method.schedule=lockstep: "), first
    assert second.startswith("--sweep method.schedule=1f1b: "), second
    assert all(one.endswith(" (with method.name=backprop)") for one in (first, second)), (first, second)


def test_seeds_that_are_swept_are_checked_too(prepared):
    with pytest.raises(SpecError) as error:
        prepared("run.seed=0,-1")
    assert problems(error)[0].startswith("--sweep run.seed=-1: ")


def test_combinations_that_are_the_same_run_are_refused(prepared):
    with pytest.raises(SpecError) as error:
        prepared("run.threads=1", "name=a,b")
    assert problems(error) == ["these combinations are the same run: threads=1, name=a; threads=1, name=b"]


def test_a_plugin_that_is_missing(prepared):
    with pytest.raises((SpecError, PluginError)) as error:
        prepared("optimizer.name=sgd,nothing")
    assert len(error.value.problems) == 1
