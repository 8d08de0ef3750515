"""What `--sweep` and `--seeds` mean: values apart, all combinations, and what is refused."""

from __future__ import annotations

import pytest
from petra_graph_studies.sweeping.combinations import axes_of_texts, axes_of_values, combinations, seed_axis

from petra_graph.errors import SpecError


def swept(*texts, seeds=None, fixed=()):
    axes = axes_of_texts(texts)
    return combinations(axes if seeds is None else [*axes, seed_axis(*seeds)], fixed)


def test_all_combinations_the_last_sweep_first():
    found = swept("optimizer.options.lr=0.1, 0.03", "method.name=petra,backprop", seeds=(7, 2))
    assert [one.overrides for one in found][:3] == [
        ("optimizer.options.lr=0.1", "method.name=petra", "run.seed=7"),
        ("optimizer.options.lr=0.1", "method.name=petra", "run.seed=8"),
        ("optimizer.options.lr=0.1", "method.name=backprop", "run.seed=7"),
    ]
    assert len(found) == 8
    assert [one.group for one in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert (found[3].words, found[3].group_words) == ("lr=0.1, method=backprop, seed=8", "lr=0.1, method=backprop")
    assert found[3].folder == "4-lr=0.1-method=backprop-seed=8"


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("optimizer.options.betas=[0.9, 0.99],[0.8,0.99]", [[0.9, 0.99], [0.8, 0.99]]),
        ('name="a,b",c', ["a,b", "c"]),
        ("name='a]',c", ["a]", "c"]),
        ("optimizer={ name = 'sgd', options = { lr = 1 } },adam", [{"name": "sgd", "options": {"lr": 1}}, "adam"]),
        ("run.epochs=3", [3]),
    ],
)
def test_commas_in_lists_tables_and_quotes_part_no_values(text, values):
    (axis,) = axes_of_texts([text])
    assert [one.value for one in axis.values] == values


def test_seeds_may_be_swept_and_a_sweep_may_be_of_seeds_alone():
    assert [(one.group, one.words) for one in swept("run.seed=3,5")] == [(0, "seed=3"), (0, "seed=5")]
    assert {one.group_words for one in swept(seeds=(0, 2))} == {"as it is"}


def test_values_of_python():
    (axis,) = axes_of_values({"optimizer.options.lr": [0.1, 0.03]})
    assert [one.value for one in axis.values] == [0.1, 0.03]
    with pytest.raises(TypeError, match=r"values of 'run\.epochs' are a list .*got an object of class int"):
        axes_of_values({"run.epochs": 3})


@pytest.mark.parametrize(
    ("texts", "fixed", "message"),
    [
        (["run.epochs"], (), "--sweep run.epochs: not KEY=VALUE"),
        (["run.epochs=1,,2"], (), "--sweep run.epochs=1,,2: no value"),
        (["run.epochs=1,2,1"], (), "--sweep run.epochs=1,2,1: 1 stands there twice"),
        (["optimizer.options.lr=0.1,1e-1"], (), "0.1 stands there twice"),
        (["run.epochs=1", "run.epochs=2"], (), "--sweep run.epochs=2: run.epochs is swept already"),
        (["run.seed=1"], (), "--seeds 2: run.seed is swept already"),
        (["run.epochs=1"], ["run.epochs=3"], "--sweep run.epochs=1: run.epochs is set as well, by --set run.epochs=3"),
        (["run.directory=a,b"], (), "run.directory cannot be swept"),
        (["a=[1,2"], (), "is not a TOML value"),
    ],
)
def test_what_is_refused(texts, fixed, message):
    with pytest.raises(SpecError) as error:
        swept(*texts, fixed=fixed, seeds=(0, 2))
    assert message in str(error.value)


def test_all_that_is_refused_is_said_at_once():
    with pytest.raises(SpecError) as error:
        axes_of_texts(["a", "b=1,1"])
    assert len(error.value.problems) == 2
