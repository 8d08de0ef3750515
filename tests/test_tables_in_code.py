"""Modules and Datasets as tables of a specification that is made in code."""

from __future__ import annotations

from functools import partial

import pytest
import torch

import petra_graph as pg

TRAIN = torch.utils.data.TensorDataset(torch.zeros(4, 2), torch.zeros(4, dtype=torch.int64))


class Mine(torch.nn.Linear):
    pass


def test_tables():
    data = pg.from_torch(TRAIN, Mine, classes=["a", "b"], batch=2)
    names = {"train": f"{__name__}:TRAIN", "test": f"{__name__}:Mine"}
    assert data == {"name": "torch", "options": {**names, "classes": ["a", "b"]}, "batch": 2}
    held = pg.from_torch(TRAIN, Mine, validation=TRAIN)
    assert (held["validation"], held["options"]["validation"]) == ("validation", f"{__name__}:TRAIN")


def spec(middle, loss, **tables):
    nodes = [
        {"block": "linear-stem", "options": {"features": 8, "streams": 1}},
        {"name": "mine", **middle},
        {"block": "pool-linear", "options": {"outputs": 10}},
    ]
    return pg.make_spec(nodes, data={"name": "digits", "batch": 128}, loss=loss, **tables)


WEIGHTED = torch.nn.CrossEntropyLoss(weight=torch.ones(10))


def test_a_class_of_modules_is_a_block_and_an_instance_is_a_loss_also_in_a_run_that_goes_on(here):
    smoothed = torch.nn.CrossEntropyLoss(label_smoothing=0.1)
    middle = {"block": Mine, "options": {"in_features": 8, "out_features": 8}}
    made = spec(middle, smoothed, checkpoint={"every": "1 epoch"})
    assert made.loss.name == "torch.nn.modules.loss:CrossEntropyLoss"
    assert made.loss.options["label_smoothing"] == 0.1
    resumed = pg.train(resume=pg.train(made), changes={"run.epochs": 2})
    of_names = {"name": "torch.nn:CrossEntropyLoss", "options": {"label_smoothing": 0.1}}
    whole = pg.train(spec(middle, of_names, run={"epochs": 2}))
    ours, theirs = ((one.directory / "weights.safetensors").read_bytes() for one in (resumed, whole))
    assert ours == theirs
    assert resumed.evaluate().means == whole.summary["test"]


def test_a_loss_whose_arguments_no_file_has_goes_by_its_name():
    middle = {"block": Mine, "options": {"in_features": 8, "out_features": 8}}
    assert spec(middle, WEIGHTED).loss.name == f"{__name__}:WEIGHTED"
    with pytest.raises(
        pg.SpecError, match="an object of class CrossEntropyLoss has no name at the top level of a module"
    ):
        spec(middle, torch.nn.CrossEntropyLoss(weight=torch.ones(10)))
    middle["options"]["in_feature"] = 8
    with pytest.raises(pg.SpecError, match=r"block \".*:Mine\": unknown key in_feature"):
        pg.plan(spec(middle, WEIGHTED))


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: pg.make_spec([torch.nn.Linear(2, 2)]), "graph.node.0.block cannot be an object of class Linear"),
        (lambda: pg.make_spec([lambda: torch.nn.Linear(2, 2)]), "has no name at the top level"),
        (lambda: pg.make_spec(module=partial(torch.nn.Linear, 2, out_features=3)), r"by their names \(got \(2,\)\)"),
    ],
)
def test_what_a_run_could_not_find_again(call, reason):
    with pytest.raises(pg.SpecError, match=reason):
        call()
