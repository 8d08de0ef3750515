"""What an update takes beside the optimizer's step."""

from __future__ import annotations

import pytest

from petra_graph.compiler.durations import stage_seconds
from tests.support.pipelines import REVNET, SHAPES, pipeline

SECONDS = {"update": 1.0, "copy": 10.0, "predict": 100.0, "estimate": 1000.0}


def update_seconds(**how):
    built = pipeline(REVNET, SHAPES["revnet"], **how)
    return [
        stage_seconds(program, lambda _, operation: SECONDS.get(operation, 0.0)).update for program in built.programs
    ]


@pytest.mark.parametrize(
    ("how", "delayed"),
    [
        ({"schedule": "1f1b"}, 1101.0),
        ({"method": "pipedream", "schedule": "1f1b"}, 11.0),
        ({"method": "backprop"}, 1.0),
        ({"method": "gpipe", "accumulation": 2}, 1.0),
    ],
    ids=str,
)
def test_weights_for_a_delay_are_made_once_an_update_where_there_is_one(how, delayed):
    """Where backwards use stored parameters, these are copied, and an optimizer that makes others is refused."""
    *others, head = update_seconds(**how)
    assert others == [delayed] * len(others)
    assert head == 1.0
