"""Launchers' variables: which process this is, and where all meet."""

from __future__ import annotations

import pytest

from petra_graph.errors import SpecError
from petra_graph.runtime.control.rank_info import rank_info_from

GIVEN = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def test_what_torchrun_sets():
    info = rank_info_from({**GIVEN, "PETRA_GRAPH_SECRET": "s", "PETRA_GRAPH_JOIN_SECONDS": "5"})
    assert (info.rank, info.size, info.address, info.port) == (1, 2, "127.0.0.1", 29500)
    assert (info.secret, info.join_seconds) == ("s", 5.0)
    assert "'s'" not in repr(info), "a secret is in no message"


def test_without_variables_or_for_one_process_there_is_nobody_to_meet():
    assert rank_info_from({}) is None
    assert rank_info_from({**GIVEN, "RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"MASTER_PORT": "-1"}, "MASTER_PORT must lie in 1 .. 65535 (got -1)"),
        ({"MASTER_PORT": "99999999"}, "MASTER_PORT must lie in 1 .. 65535 (got 99999999)"),
        ({"MASTER_PORT": "x"}, "must be numbers"),
        ({"MASTER_ADDR": ""}, "but not MASTER_ADDR"),
        ({"RANK": "2"}, "RANK must lie in 0 .. WORLD_SIZE - 1 (got RANK = 2, WORLD_SIZE = 2)"),
        ({"PETRA_GRAPH_JOIN_SECONDS": "0"}, "PETRA_GRAPH_JOIN_SECONDS must be a number of seconds (got '0')"),
        ({"PETRA_GRAPH_JOIN_SECONDS": "soon"}, "PETRA_GRAPH_JOIN_SECONDS must be a number of seconds (got 'soon')"),
        ({"PETRA_GRAPH_JOIN_SECONDS": "inf"}, "PETRA_GRAPH_JOIN_SECONDS must be a number of seconds (got 'inf')"),
    ],
)
def test_what_cannot_be(changed, message):
    with pytest.raises(SpecError) as caught:
        rank_info_from(GIVEN | changed)
    assert message in str(caught.value)
