"""Modules and Datasets as tables of a specification that is made in code."""

from __future__ import annotations

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
    held = pg.from_torch(TRAIN, Mine, validation=0.1, plain=TRAIN)
    assert (held["validation"], held["options"]["plain"]) == (0.1, f"{__name__}:TRAIN")
    held = pg.from_torch(TRAIN, Mine, validation=TRAIN)
    assert (held["validation"], held["options"]["validation"]) == ("validation", f"{__name__}:TRAIN")
    node = pg.head(torch.nn.Linear, in_features=2, out_features=2)
    made = {"module": "torch.nn.modules.linear:Linear", "kwargs": {"in_features": 2, "out_features": 2}}
    assert node == {"block": "module-head", "options": made}


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (
            lambda: pg.buffered(torch.nn.Linear(2, 2)),
            r"got an object of class Linear\)(.|\n)*give the class and its arguments",
        ),
        (lambda: pg.head(lambda: torch.nn.Linear(2, 2)), "has no name at the top level"),
        (
            lambda: pg.buffered(Mine, norm=torch.nn.LayerNorm),
            "norm cannot be the class LayerNorm(.|\n)*makes the whole module",
        ),
        (lambda: pg.from_torch([1, 2], TRAIN), "the list has no name at the top level of a module"),
    ],
)
def test_what_a_run_could_not_find_again(call, reason):
    with pytest.raises(pg.SpecError, match=reason):
        call()
